# SPDX-License-Identifier: Apache-2.0
"""A shard that changes while it is served: an error for the jobs that use it, and for nobody else."""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import harness  # noqa: E402
from harness import Case, batches, random_lengths, wait_until  # noqa: E402


class Cut(Case):
    keys = ["rows=8", "prefetch=2", "order=none", "group=fixed"]

    def setUp(self):
        super().setUp()
        # Several pages for each shard: what is cut has to be gone, not just the end of a page.
        self.data, self.samples = self.dataset(random_lengths(400, low=50, high=200), shards=4)
        self.other, _ = self.dataset(random_lengths(100), name="other")
        self.d = self.daemon()
        self.t = self.attached(self.d, self.data, keys=self.keys)
        self.neighbour = self.attached(self.d, self.other, job="neighbour", keys=self.keys)
        self.neighbour.run(1)
        self.taken = self.t.run(2)
        self.victim = os.path.join(self.data, "part-002.safetensors")

    def check(self, *says, fresh=True):
        entries = self.t.run()
        self.assertLess(self.t.last["r"], 0, self.t.last)
        for word in says:
            self.assertIn(word, self.t.last["error"])
        # All good batches before the error arrive first, in order.
        steps = [b["step"] for b in self.taken + batches(entries)]
        self.assertEqual(steps, list(range(len(steps))))
        self.assertGreaterEqual(len(steps), 200 // 8, "both whole shards before it")
        self.assertLess(len(steps), 300 // 8 + 1)
        self.assertEqual(self.t.do("next", 100)["r"], self.t.last["r"], "an error is final")
        self.assertEqual(len(batches(self.neighbour.run(30))), 28, "two of them are ends of epochs")
        self.assertIsNone(self.d.process.poll())
        if fresh:
            self.assertIn("part-002.safetensors", self.refused(self.d, self.data, job="fresh", keys=self.keys))

    def test_a_shard_cut_while_it_is_served_is_named_in_the_error_of_its_job_only(self):
        size = os.path.getsize(self.victim)
        os.truncate(self.victim, 4096)
        self.check("part-002.safetensors", "4096", str(size))

    def test_a_shard_cut_to_nothing_is_named_too(self):
        os.truncate(self.victim, 0)
        self.check("part-002.safetensors")

    def test_a_shard_that_was_removed_is_named_too(self):
        os.unlink(self.victim)
        self.check("part-002.safetensors", fresh=False)

    def test_a_shard_that_was_replaced_is_named_too(self):
        os.rename(self.victim, self.victim + ".old")
        shutil.copy(self.victim + ".old", self.victim)
        self.check("part-002.safetensors", fresh=False)

    def test_a_job_on_a_cut_shard_ends_when_its_client_leaves(self):
        os.truncate(self.victim, 0)
        self.t.run()
        self.assertEqual(self.d.queue("job")["state"], "failed")
        self.t.end()
        wait_until(lambda: len(self.d.jobs()) == 1, what="the end of the job")


if __name__ == "__main__":
    harness.main()
