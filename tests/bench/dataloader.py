#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader on the same data set and job, tuned: the plan is made with NumPy at once, the
data set is given a whole batch of indices, and the collate copies rows into arrays made beforehand.

Prints one JSON object: real_tokens_per_s, daemon_cpu_s_per_mtok (of this process and its workers).
"""

import argparse
import glob
import json
import os
import resource
import struct
import time

import numpy as np
import torch

BUCKETS, ROWS, MULTIPLE = 8, 32, 8


def open_set(folder):
    path = sorted(glob.glob(os.path.join(folder, '*.safetensors')))[0]
    with open(path, 'rb') as f:
        size, = struct.unpack('<Q', f.read(8))
        tensors = json.loads(f.read(size))
    data = np.memmap(path, dtype=np.uint8, mode='r', offset=8 + size)
    values, offsets = (data[slice(*tensors['input_ids.' + n]['data_offsets'])] for n in ('values', 'offsets'))
    return values.view(np.uint16), offsets.view(np.int64)


def plan(lengths, seed):
    """Shuffled batches of neighbours in length: equal shares of the samples are a bucket."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))
    edges = np.quantile(lengths, np.arange(1, BUCKETS) / BUCKETS)
    bucket = np.searchsorted(edges, lengths[order])
    batches = []
    for b in range(BUCKETS):
        ids = order[bucket == b]
        batches += np.array_split(ids[:len(ids) // ROWS * ROWS], max(len(ids) // ROWS, 1))
    rng.shuffle(batches)
    return batches


class Batches(torch.utils.data.Dataset):
    def __init__(self, values, offsets):
        self.values, self.offsets = values, offsets

    def __getitem__(self, ids):
        starts, ends = self.offsets[ids], self.offsets[ids + 1]
        width = -(-int((ends - starts).max()) // MULTIPLE) * MULTIPLE
        tokens = np.zeros((len(ids), width), np.int64)
        mask = np.zeros((len(ids), width), np.int64)
        labels = np.full((len(ids), width), -100, np.int64)
        for row, (start, end) in enumerate(zip(starts, ends)):
            n = end - start
            tokens[row, :n] = self.values[start:end]
            labels[row, :n] = tokens[row, :n]
            mask[row, :n] = 1
        return torch.from_numpy(tokens), torch.from_numpy(mask), torch.from_numpy(labels), int((ends - starts).sum())


def cpu():
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('folder')
    parser.add_argument('--seconds', type=float, default=1)
    parser.add_argument('--workers', type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    values, offsets = open_set(options.folder)
    batches = plan(np.diff(offsets), 17)
    loader = torch.utils.data.DataLoader(Batches(values, offsets), sampler=batches, batch_size=None,
                                         num_workers=options.workers)
    tokens, seen, start, used = 0, 0, None, None
    while start is None or time.monotonic() - start < options.seconds:
        for _, _, _, n in loader:
            seen += 1
            if seen == 10:  # the first ones warm up
                tokens, start, used = 0, time.monotonic(), cpu()
            tokens += n
            if start is not None and time.monotonic() - start >= options.seconds:
                break
    took = time.monotonic() - start
    print(json.dumps({'real_tokens_per_s': tokens / took, 'daemon_cpu_s_per_mtok': (cpu() - used) / tokens * 1e6}))


if __name__ == '__main__':
    main()
