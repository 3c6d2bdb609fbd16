# SPDX-License-Identifier: Apache-2.0
"""The delivered sequence is a function of data, spec, seed and world, and of nothing else."""
import hashlib
import json
import os
import shutil
import subprocess

import harness
from harness import Case, ids_of, need, program, random_lengths


class Cat(Case):
    keys = ["rows=8", "buckets=5", "seed=11",
            "fields=[{name: input_ids, dtype: i64, pad: 0}, {name: labels, from: input_ids, pad: -100}, "
            "{name: attention_mask, make: mask}]"]

    def setUp(self):
        super().setUp()
        need("stoker")
        self.data, _ = self.dataset(random_lengths(701, high=120), shards=5)

    def cat(self, d, *args, keys=None, job="cat", build=None, status=0):
        env = dict(os.environ)
        if build:
            env.pop("LD_LIBRARY_PATH", None)  # the runner's, which leads to its own build
        p = subprocess.run(
            [program("stoker", build), "cat", self.data, "--socket", d.socket, "--job", job, *args,
             *(keys or self.keys)], capture_output=True, timeout=60, env=env)
        self.assertEqual(p.returncode, status, p.stderr)
        return p.stdout

    def sha(self, *args, **options):
        return hashlib.sha256(self.cat(*args, **options)).hexdigest()


class Sequence(Cat):
    def all_ranks(self, d, world=2, **options):
        """Two epochs with all values, one rank after the other: feeds do not wait for each other."""
        return [self.sha(d, "--data", "--epochs", "2", "--rank", str(r), "--world", str(world), **options)
                for r in range(world)]

    def once(self, args=(), **options):
        d = self.daemon(args=list(args))
        try:
            return self.all_ranks(d, **options)
        finally:
            d.stop()

    def test_1_2_and_8_workers_deliver_the_same(self):
        seen = [self.once(["--workers", str(n)]) for n in (1, 2, 8)]
        self.assertEqual(seen[1:], seen[:1] * 2)
        self.assertNotEqual(seen[0][0], seen[0][1], "the ranks share nothing")

    def test_every_prefetch_delivers_the_same(self):
        d = self.daemon(args=["--workers", "2"])
        seen = [self.all_ranks(d, keys=self.keys + ["prefetch=%d" % n]) for n in (2, 3, 8, 16)]
        self.assertEqual(seen[1:], seen[:1] * 3)

    def test_another_job_beside_it_changes_nothing(self):
        d = self.daemon(args=["--workers", "2"])
        alone = self.all_ranks(d)
        other = self.attached(d, self.data, job="other", keys=["rows=3", "seed=5", "prefetch=4"])
        other.send("run", 3000)
        beside = self.all_ranks(d)
        self.assertEqual(beside, alone)
        self.assertEqual(len(other.receive(60)["entries"]), 3000)

    def test_two_machines_share_out_one_order(self):
        """Each with its own files, written last first, its own zone, language and number of workers."""
        folder, keys = self.path("elsewhere"), ["rows=4", "buckets=4", "epochs=1", "seed=3"]
        os.makedirs(folder)
        for name in sorted(os.listdir(self.data), reverse=True):
            shutil.copyfile(os.path.join(self.data, name), os.path.join(folder, name))
        a = self.daemon(args=["--workers", "1"], env={"TZ": "Pacific/Apia", "LC_ALL": "C"})
        b = self.daemon(args=["--workers", "16"], name="b", env={"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8"})
        seats = [(a, self.data, 0), (a, self.data, 1), (b, folder, 2), (b, folder, 3)]
        entries = [self.attached(d, path, rank=rank, world=4, keys=keys).run(data=True) for d, path, rank in seats]
        self.assertEqual(sorted(ids_of(sum(entries, []))), list(range(701)))
        self.assertEqual(len({len(e) for e in entries}), 1, "equal steps on every rank")
        twin = self.attached(b, folder, rank=0, world=4, keys=keys)
        self.assertEqual(twin.run(data=True), entries[0])

    def test_another_seed_or_epoch_delivers_something_else(self):
        d = self.daemon()
        lines = [json.loads(line) for line in self.cat(d, "--epochs", "2").splitlines()]
        first, second = [[x["sample_ids"] for x in lines if x["kind"] == "batch" and x["epoch"] == e]
                         for e in (0, 1)]
        self.assertTrue(first and second)
        self.assertNotEqual(first, second)
        self.assertNotEqual(self.sha(d), self.sha(d, keys=[k.replace("seed=11", "seed=12") for k in self.keys]))

    def test_the_same_samples_in_other_files_are_the_same_sequence_of_ids(self):
        a = self.daemon()
        before = self.cat(a)
        self.data, _ = self.dataset(random_lengths(701, high=120), name="moved", shards=5)
        self.assertEqual(self.cat(a, job="moved"), before)

    def test_another_build_delivers_the_same(self):
        build = os.environ.get("STOKER_OTHER_BUILD")
        if not program("stoker", build or "/nonexistent"):
            self.skipTest("STOKER_OTHER_BUILD names no second build")
        here = self.once(["--workers", "2"])
        d = self.daemon(args=["--workers", "2"], build=build)
        self.assertEqual(self.all_ranks(d), here)
        self.assertEqual(self.all_ranks(d, build=build), here)

    def test_the_same_plan_is_stated_by_every_state(self):
        d = self.daemon()
        state = self.path("state")
        self.cat(d, "--steps", "3", "--state", state)
        with open(state, "rb") as f:
            first = f.read()
        os.unlink(state)
        self.cat(d, "--steps", "3", "--state", state, keys=self.keys + ["prefetch=3"])
        with open(state, "rb") as f:
            self.assertEqual(f.read(), first, "prefetch is no part of it")


class Continued(Cat):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(90, high=60), name="small")
        self.d = self.daemon(args=["--workers", "2"])
        self.state = self.path("state")

    def batches(self, text):
        return [line for line in text.splitlines() if json.loads(line)["kind"] == "batch"]

    def test_cut_after_any_step_and_continued_is_the_uninterrupted_run(self):
        whole = self.batches(self.cat(self.d, "--epochs", "2", "--data"))
        per_epoch = len(whole) // 2
        for cut in (1, 2, per_epoch - 1, per_epoch, per_epoch + 1, 2 * per_epoch - 1):
            if os.path.exists(self.state):
                os.unlink(self.state)
            first = self.batches(self.cat(self.d, "--steps", str(cut), "--data", "--state", self.state))
            rest = self.batches(self.cat(self.d, "--steps", str(2 * per_epoch - cut), "--data", "--state",
                                         self.state))
            self.assertEqual(first + rest, whole, "cut after step %d" % cut)

    def test_continued_one_step_at_a_time_is_the_uninterrupted_run(self):
        whole = self.batches(self.cat(self.d))
        single = []
        for _ in whole:
            single += self.batches(self.cat(self.d, "--steps", "1", "--state", self.state))
        self.assertEqual(single, whole)


if __name__ == "__main__":
    harness.main()
