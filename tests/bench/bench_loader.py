#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Side by side: stoker.Loader, PyTorch's DataLoader, and a tuned NumPy and numba collate in the trainer.

The same job for all: shuffle, 8 buckets, batches of 32, padded to the longest row rounded up to 8, into
torch tensors: input_ids, labels (-100) and attention_mask, int64 or lean (int32, int32, uint8). The data
is what make_data writes. Every run is a fresh process; the runs are interleaved, the table has medians.

    tests/bench/make_data DIR && tests/bench/bench_loader.py DIR [--sets SML] [--repeats 3]

The package stoker has to be importable (PYTHONPATH=BUILD/client/python). Columns: samples and real
tokens per second; CPU seconds per million real tokens, over all processes, workers and daemon; the time
in next() at p50 and p99, and that to let go of the batch before at p50; memory (PSS) after the run; time from making the loader to the first batch.
In the paced runs a batch is taken every 10 ms; "wake" is the p50 and p99 by which an empty loop of that
pace comes late. numpy and numba take a batch when it is asked for; the others have prefetched it. A
peer of "--peers" that is not in the table by itself: "bare tensors", the same array's tensors again and again.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

SEED, BATCH, BUCKETS, MULTIPLE = 20261129, 32, 8, 8
TICK = os.sysconf("SC_CLK_TCK")


class Tokens:
    """What make_data writes: u16 values and i64 offsets in one safetensors file, mapped."""

    def __init__(self, path):
        import numpy as np
        name = os.path.join(path, "tokens.safetensors")
        with open(name, "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(size))

        def tensor(key, dtype):
            first, end = header[key]["data_offsets"]
            kind = np.dtype(dtype)
            return np.memmap(name, kind, "r", 8 + size + first, ((end - first) // kind.itemsize,)).view(np.ndarray)
        self.values, self.offsets = tensor("input_ids.values", "<u2"), np.array(tensor("input_ids.offsets", "<i8"))


def plan(tokens):
    """Batches of sample numbers: one permutation, equal-count buckets, batches in shuffled order."""
    import numpy as np
    lengths = np.diff(tokens.offsets)
    bounds = np.unique(np.quantile(lengths, np.arange(1, BUCKETS + 1) / BUCKETS, method="higher"))
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(lengths))
    bucket = np.searchsorted(bounds, lengths[order])
    batches = []
    for i in range(len(bounds)):
        rows = order[bucket == i]
        batches += np.split(rows, np.arange(BATCH, len(rows), BATCH))
    return [batches[i] for i in rng.permutation(len(batches))]


def kinds(lean):
    import numpy as np
    return (np.int32, np.uint8) if lean else (np.int64, np.int64)


def as_torch(ids, mask, labels, real):
    import torch
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(labels), "real": real}


class NumpyCollate:
    def __init__(self, path, lean):
        self.tokens, self.lean = Tokens(path), lean

    def __getitem__(self, rows):
        import numpy as np
        begin, end = self.tokens.offsets[rows].tolist(), self.tokens.offsets[rows + 1].tolist()
        lengths = [b - a for a, b in zip(begin, end)]
        width = -(-max(lengths) // MULTIPLE) * MULTIPLE
        integer, small = kinds(self.lean)
        ids, mask = np.zeros((len(rows), width), integer), np.zeros((len(rows), width), small)
        labels = np.full((len(rows), width), -100, integer)
        for i, (a, b, n) in enumerate(zip(begin, end, lengths)):
            row = self.tokens.values[a:b]
            ids[i, :n], mask[i, :n], labels[i, :n] = row, 1, row
        return as_torch(ids, mask, labels, sum(lengths))


class NumbaCollate(NumpyCollate):
    def __init__(self, path, lean):
        super().__init__(path, lean)
        import numba

        @numba.njit(nogil=True)
        def fill(values, offsets, rows, ids, mask, labels, width):
            real = 0
            for r in range(len(rows)):
                begin = offsets[rows[r]]
                n = offsets[rows[r] + 1] - begin
                for j in range(n):
                    v = values[begin + j]
                    ids[r, j] = v
                    mask[r, j] = 1
                    labels[r, j] = v
                for j in range(n, width):
                    ids[r, j] = 0
                    mask[r, j] = 0
                    labels[r, j] = -100
                real += n
            return real
        self.fill = fill

    def __getitem__(self, rows):
        import numpy as np
        lengths = self.tokens.offsets[rows + 1] - self.tokens.offsets[rows]
        width = int(-(-lengths.max() // MULTIPLE) * MULTIPLE)
        integer, small = kinds(self.lean)
        ids, mask = np.empty((len(rows), width), integer), np.empty((len(rows), width), small)
        labels = np.empty((len(rows), width), integer)
        real = self.fill(self.tokens.values, self.tokens.offsets, rows, ids, mask, labels, width)
        return as_torch(ids, mask, labels, int(real))


def compiled(collate):
    import numpy as np
    collate[np.arange(2)]
    return collate


def in_process(collate):
    batches = plan(collate.tokens)
    while True:
        for rows in batches:
            yield collate[rows]


def bare_tensors(lean):
    """No data at all: what the torch tensors of a batch cost whoever makes it."""
    import numpy as np
    integer, small = kinds(lean)
    ids, mask, labels = (np.zeros((BATCH, 344), kind) for kind in (integer, small, integer))
    while True:
        yield as_torch(ids, mask, labels, 0)


def endless(loader):
    while True:
        yield from loader


def make(peer, path, lean):
    """(iterator, real tokens of a batch, pids beside ours and our children, what must stay alive)"""
    if peer == "stoker":
        import stoker
        fields = None if not lean else [
            {"name": "input_ids", "dtype": "i32"}, {"name": "labels", "from": "input_ids", "dtype": "i32", "pad": -100},
            {"name": "attention_mask", "make": "mask", "dtype": "u8"}]
        loader = stoker.Loader(path, rows=BATCH, buckets=BUCKETS, seed=SEED, bucket_method="quantile",
                               **({"fields": fields} if fields else {}))
        return endless(loader), lambda b: b.real_tokens, [loader.info["daemon_pid"]], loader
    if peer == "bare tensors":
        return bare_tensors(lean), lambda b: b["real"], [], None
    if peer in ("numpy w0", "numba w0"):
        collate = NumpyCollate(path, lean) if peer == "numpy w0" else compiled(NumbaCollate(path, lean))
        return in_process(collate), lambda b: b["real"], [], None
    from torch.utils.data import DataLoader
    collate = NumpyCollate(path, lean)
    loader = DataLoader(collate, sampler=plan(collate.tokens), batch_size=None, num_workers=2, prefetch_factor=2)
    return endless(loader), lambda b: b["real"], [], loader


def processes(others):
    found, pending = [], [os.getpid(), *others]
    while pending:
        pid = pending.pop()
        found.append(pid)
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                pending += map(int, f.read().split())
    return found


def cpu_seconds(pids):
    """To the nanosecond, but for children that ended: of these the kernel keeps ticks."""
    total = 0
    for pid in pids:
        total += time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid() makes it
        with open(f"/proc/{pid}/stat") as f:
            words = f.read().rsplit(")", 1)[1].split()
        total += sum(map(int, words[13:15])) / TICK
    return total


def pss_mib(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            total += sum(int(line.split()[1]) for line in f if line.startswith("Pss:"))
    return total / 1024


def warm(path):
    with open(os.path.join(path, "tokens.safetensors"), "rb", buffering=0) as f:
        while f.read(1 << 20):
            pass


def measure(peer, path, lean, pace, window):
    import torch
    torch.set_num_threads(1)
    if peer != "empty":
        warm(path)
    start = time.perf_counter()
    iterator, real, others, keep = (iter(int, 1), lambda b: 0, [], None) if peer == "empty" else make(peer, path, lean)
    batch = next(iterator)
    first = time.perf_counter() - start
    for _ in range(8):
        batch = next(iterator)
    pids = processes(others)
    clock, took, freed, late = time.perf_counter, [], [], []
    tokens = samples = 0
    cpu, begin = cpu_seconds(pids), clock()
    wake = begin
    while clock() - begin < window:
        if pace:
            wake += pace
            time.sleep(max(0, wake - clock()))
            late.append(clock() - wake)
        t = clock()
        fresh = next(iterator)
        took.append(clock() - t)
        t = clock()
        batch = fresh  # the one before goes back
        freed.append(clock() - t)
        fresh = None
        if peer != "empty":
            tokens += real(batch)
            samples += len(batch["input_ids"])
    wall = clock() - begin
    cpu = cpu_seconds(pids) - cpu
    took.sort()
    freed.sort()
    late.sort()
    shown = late if peer == "empty" else took
    return {"samples_s": samples / wall, "tokens_s": tokens / wall, "cpu_mtok": cpu / (tokens / 1e6) if tokens else 0,
            "cores": cpu / wall, "p50_us": shown[len(shown) // 2] * 1e6, "p99_us": shown[len(shown) * 99 // 100] * 1e6,
            "free_us": freed[len(freed) // 2] * 1e6, "pss_mib": pss_mib(pids), "first_s": first}


def run(peer, path, lean, pace, window):
    argv = [sys.executable, os.path.abspath(__file__), path, "--one", peer, "--pace", str(pace), "--window", str(window)]
    done = subprocess.run(argv + (["--lean"] if lean else []), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{peer} on {path}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(results):
    print("| set | types | pace | loader | samples/s | Mtok/s | CPU s/Mtok | cores | next p50 us | p99 us | free p50 us | PSS MiB | first s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for (name, lean, pace, peer), runs in results.items():
        m = {key: statistics.median(r[key] for r in runs) for key in runs[0]}
        print(f"| {name} | {'lean' if lean else 'int64'} | {'10 ms' if pace else 'flat out'} | {peer} | "
              f"{m['samples_s']:.0f} | {m['tokens_s'] / 1e6:.2f} | {m['cpu_mtok']:.4f} | {m['cores']:.3f} | "
              f"{m['p50_us']:.1f} | {m['p99_us']:.1f} | {m['free_us']:.1f} | {m['pss_mib']:.0f} | {m['first_s']:.2f} |")


def ratios(results):
    """Throughput against each rival: the median over pairs of runs that were made in the same round."""
    for (name, lean, pace, peer), runs in results.items():
        ours = results.get((name, lean, pace, "stoker"))
        if not pace and ours and peer != "stoker":
            pairs = [a["tokens_s"] / b["tokens_s"] for a, b in zip(ours, runs)]
            print(f"{name} {'lean' if lean else 'int64'}: stoker is {statistics.median(pairs):.1f} times {peer} "
                  f"({min(pairs):.1f} to {max(pairs):.1f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--sets", default="SML")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.0, help="seconds of each run")
    parser.add_argument("--peers", default="stoker,numba w0,numpy w0,DataLoader w2")
    parser.add_argument("--modes", default="int64,lean,pace", help="of int64, lean, pace")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lean", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, default=0, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.one:
        print(json.dumps(measure(o.one, o.directory, o.lean, o.pace, o.window)))
        return
    peers = o.peers.split(",")
    jobs = [(s, lean, 0, p) for s in o.sets for lean in (False, True) for p in peers
            if ("lean" if lean else "int64") in o.modes]
    if "pace" in o.modes:
        jobs += [("M", False, 0.01, p) for p in ["empty", *peers] if "M" in o.sets]
    results = {job: [] for job in jobs}
    for r in range(o.repeats):
        for job in random.Random(r).sample(jobs, len(jobs)):
            name, lean, pace, peer = job
            results[job].append(run(peer, os.path.join(o.directory, name), lean, pace, o.window))
            print(f"round {r + 1}: {job}", file=sys.stderr)
    table(results)
    ratios(results)


if __name__ == "__main__":
    main()
