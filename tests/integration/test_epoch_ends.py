# SPDX-License-Identifier: Apache-2.0
"""Tiny epochs, many workers: each epoch ends once for each consumer, after all of its batches."""
import json
import subprocess

from harness import Case, need, program


class EpochEnds(Case):
    epochs = 300

    def entries(self, d, data, rank, world, *keys):
        p = subprocess.run(
            [program("stoker"), "cat", data, "--socket", d.socket, "--job", "tiny", "--rank", str(rank), "--world",
             str(world), "--epochs", str(self.epochs), *keys], capture_output=True, timeout=120)
        self.assertEqual(p.returncode, 0, p.stderr)
        return [json.loads(line) for line in p.stdout.splitlines()]

    def check(self, entries, steps, samples):
        """Every epoch: its steps in order, then one end; returns the ids of each."""
        at = 0
        for epoch in range(self.epochs):
            batches = entries[at:at + steps]
            self.assertEqual([(e["kind"], e["epoch"], e["step"]) for e in batches],
                             [("batch", epoch, s) for s in range(steps)])
            end = entries[at + steps]
            self.assertEqual((end["kind"], end["epoch"]), ("epoch_end", epoch))
            samples[epoch] += [i for e in batches for i in e["sample_ids"]]
            at += steps + 1
        self.assertTrue(all(e["kind"] == "stream_end" for e in entries[at:]))
        self.assertLessEqual(len(entries) - at, 1)

    def test_each_ends_once_for_1_3_and_16_workers(self):
        need("stoker")
        for n, workers in ((2, 16), (5, 1), (7, 16), (23, 3)):
            with self.subTest(samples=n, workers=workers):
                data, _ = self.dataset([1 + i % 5 for i in range(n)], name="data%d-%d" % (n, workers), shards=1)
                d = self.daemon(args=["--workers", str(workers)])
                samples = [[] for _ in range(self.epochs)]
                steps = -(-n // 2)
                for rank in range(2):
                    self.check(self.entries(d, data, rank, 2, "rows=1", "buckets=1", "prefetch=3", "tail=pad"),
                               steps, samples)
                for ids in samples:
                    self.assertEqual(sorted(i for i in ids if i is not None and i >= 0), list(range(n)))
                d.stop()


if __name__ == "__main__":
    import unittest
    unittest.main()
