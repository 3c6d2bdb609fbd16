# SPDX-License-Identifier: Apache-2.0
"""The README's Python runs as it stands there."""
import os
import re
import subprocess
import types

import common
import harness
from common import LoaderCase, needs_torch, torch

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../README.md")


def blocks():
    with open(README) as f:
        return re.findall(r"^```python\n(.*?)^```", f.read(), re.M | re.S)


@needs_torch
class Readme(LoaderCase):
    def setUp(self):
        super().setUp()
        self.private()
        for name in "XDG_RUNTIME_DIR", "STOKERD":
            before = os.environ.get(name)
            os.environ[name] = self.environ[name]
            self.addCleanup(os.environ.__setitem__ if before else os.environ.pop, name, *([before] if before else [None]))
        here = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, here)

    def run_block(self, text, **names):
        exec(compile(text, "README.md", "exec"), names)
        if "loader" in names:
            names["loader"].close() if hasattr(names["loader"], "close") else None
        return names

    def test_every_block_runs(self):
        loop, shards, before, after = blocks()
        subprocess.run([harness.need("stoker"), "write", "--text", "text", "-", "-o", "set"], check=True, text=True,
                       capture_output=True, input='{"text": "one"}\n{"text": "two and more"}\n{"text": "4"}\n')
        seen = []

        class Model(torch.nn.Linear):
            def forward(self, input_ids, labels, attention_mask):
                self.check(input_ids, labels, attention_mask)
                return types.SimpleNamespace(loss=super().forward(input_ids[:, :1].float()).sum())

            def check(self, *tensors):
                seen.append({t.dtype for t in tensors})
        self.run_block(loop, model=Model(1, 1), torch=torch)
        self.assertEqual(set(map(frozenset, seen)), {frozenset([torch.int64])})
        self.assertGreaterEqual(len(seen), 3)
        self.assertEqual(torch.load("last.pt")["data"]["epoch"], 3)

        tokenized = [[1, 2, 3], [4], [5, 6]]
        got = self.run_block(shards, tokenized=tokenized, lines=["one", "two"])
        self.assertEqual(got["path"], "cached")
        self.assertTrue(os.path.exists("shards/dataset.json"))

        from torch.nn.utils.rnn import pad_sequence
        from torch.utils.data import DataLoader
        got = self.run_block(before, tokenized=tokenized, torch=torch, pad_sequence=pad_sequence,
                             DataLoader=lambda *a, num_workers, pin_memory, **k: DataLoader(*a, **k),
                             BucketSampler=lambda *a, **k: [[0, 1, 2]])
        want = next(iter(got["loader"]))
        text = after + "batch = next(iter(loader))\n"
        batch = self.run_block(text.replace("buckets=8", "buckets=1"), tokenized=tokenized)["batch"]
        order = batch.sample_ids
        for name in want:
            self.assertTrue(torch.equal(batch[name][:, :3], want[name][order]), name)


if __name__ == "__main__":
    common.main()
