#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small language model on bytes of text, on the CPU, alone or under torchrun.

    train_lm.py SHARDS --steps 300
    torchrun --nproc-per-node 2 train_lm.py SHARDS --steps 300 --checkpoint run.pt --every 50

With --checkpoint a run that was killed goes on where its last checkpoint was, with the very batches that
it would have had. --ids FILE notes the sample ids of each step (FILE.RANK).
"""
import argparse
import os

import stoker
import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary=256, width=64, heads=4, layers=2, longest=2048):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, layers), nn.Linear(width, vocabulary)

    def forward(self, input_ids, labels, attention_mask):
        """The summed loss of predicting each token from those before it."""
        n = input_ids.shape[1]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        x = self.tokens(input_ids) + self.places(torch.arange(n))
        logits = self.head(self.body(x, mask=later))  # padding lies behind every token that counts
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shards")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=4096, help="padded tokens of a batch on each rank")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--checkpoint")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--ids")
    return parser.parse_args()


def main():
    o = arguments()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, state = 0, None
    if o.checkpoint and os.path.exists(o.checkpoint):
        saved = torch.load(o.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, state = saved["step"], saved["data"]
    # DDP averages over ranks; the sum over all ranks divided by their tokens is what is wanted.
    parallel = nn.parallel.DistributedDataParallel(model) if world > 1 else model

    loader = stoker.Loader(o.shards, tokens=o.tokens, buckets=8, seed=17, max_length=o.max_length, state=state)
    notes = open(f"{o.ids}.{rank}", "a", buffering=1) if o.ids else None
    while step < o.steps:
        for batch in loader:
            loss = parallel(**batch) * world / batch.global_tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if notes:
                print(step, *batch.sample_ids.tolist(), file=notes)
            if rank == 0 and (step % 10 == 0 or step == 1):
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if rank == 0 and o.checkpoint and step % o.every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                            "data": loader.state_dict()}, o.checkpoint + ".new")
                os.replace(o.checkpoint + ".new", o.checkpoint)
            if step == o.steps:
                break
    loader.close()


if __name__ == "__main__":
    main()
