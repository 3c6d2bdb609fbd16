# SPDX-License-Identifier: Apache-2.0
"""A trainer dies, stops or forks while it holds batches: nobody else notices."""
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import harness  # noqa: E402
from harness import Case, batches, end_pid, ids_of, is_alive, random_lengths, wait_until  # noqa: E402

SOON = 2  # seconds, for what should take milliseconds


class Killed(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(400))
        self.d = self.daemon()
        self.keys = ["rows=4", "prefetch=4"]

    def pair(self):
        return self.ranks(self.d, 2, self.data, keys=self.keys)

    def test_killing_a_trainer_with_leases_frees_its_feed_at_once(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        self.d.wait_full("job")
        self.assertEqual(t.do("hold")["held"], 4)
        self.assertEqual(self.d.queue("job")["leased"], 4)
        self.assertEqual(self.d.queue("job")["seats"][0]["pid"], t.pid)
        self.assertGreater(self.d.call("Status")["memory_used"], 0)
        t.kill()
        wait_until(lambda: not self.d.jobs(), SOON, "the end of the job")
        self.assertEqual(self.d.queues(), [])
        wait_until(lambda: self.d.call("Status")["memory_used"] == 0, SOON, "its memory")

    def test_the_seat_of_a_killed_trainer_can_be_taken_again_and_goes_on_from_a_state(self):
        a, b = self.pair()
        first = a.run(3)
        state = a.state()
        a.do("next")
        a.kill()
        b.run(3)
        wait_until(lambda: self.d.queue("job", 0) is None, SOON, "the end of the feed")
        again = self.trainer(self.d, self.data, rank=0, world=2, keys=self.keys)
        self.assertEqual(again.hello["r"], 0, again.hello)
        self.assertEqual(again.run(3), first, "a plain attach starts where the job started")
        self.assertEqual(again.do("seek", state)["r"], 0)
        self.assertEqual([(e["epoch"], e["step"]) for e in again.run(3)], [(0, 3), (0, 4), (0, 5)])

    def test_the_other_rank_and_another_job_go_on(self):
        a, b = self.pair()
        other = self.attached(self.d, self.data, job="other", keys=self.keys + ["epochs=1"])
        other.run(5)
        a.do("hold")
        a.kill()
        steps = [e["step"] for e in batches(b.run(30))]
        self.assertEqual(steps, list(range(30)))
        self.assertEqual(len(ids_of(other.run())), 400 - 5 * 4)
        wait_until(lambda: len(self.d.queues("job")) == 1, SOON, "the end of the dead feed")

    def test_a_living_forked_child_does_not_keep_the_seat(self):
        for kind in ("", "raw"):
            t = self.attached(self.d, self.data, job="forks", keys=self.keys)
            t.do("hold")
            child = t.do("fork", kind)["pid"]
            self.addCleanup(end_pid, child)
            t.kill()
            self.assertTrue(is_alive(child))
            wait_until(lambda: not self.d.jobs(), SOON, "the end of the job")
            self.attached(self.d, self.data, job="forks", keys=self.keys).end()
            self.d.wait_idle()

    def test_a_forked_child_is_told_to_open_its_own_client(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        self.assertEqual(t.do("childnext")["r"], -10, "ECHILD")
        self.assertEqual(len(batches(t.run(10))), 10)

    def test_the_end_of_a_forked_child_does_not_end_its_parents_seat(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        child = t.do("fork")["pid"]
        end_pid(child)
        time.sleep(0.1)
        self.assertEqual(len(batches(t.run(10))), 10)

    def test_killed_trainers_leave_nothing_after_many_rounds(self):
        for i in range(3):
            self.one_round()
        harness.settled_fds(self.d.pid)
        before = harness.footprint(self.d.pid)
        for i in range(12):
            self.one_round()
        harness.settled_fds(self.d.pid)
        after = harness.footprint(self.d.pid)
        self.assertEqual(after["fds"], before["fds"])
        self.assertLessEqual(after["maps"], before["maps"] + 10)
        self.assertLessEqual(after["shmem_kb"], before["shmem_kb"] + 64)

    def one_round(self):
        t = self.attached(self.d, self.data, job="round", keys=self.keys)
        t.do("hold")
        t.kill()
        self.d.wait_idle()
        t.cleanup()

    def test_a_trainer_killed_while_it_attaches_leaves_nothing(self):
        before = harness.settled_fds(self.d.pid)
        for delay in (0, 1, 2, 5, 10):
            t = self.trainer(self.d, self.data, job="early", keys=self.keys, wait=False)
            time.sleep(delay / 1000)
            t.kill()
        self.d.wait_idle()
        wait_until(lambda: harness.footprint(self.d.pid)["fds"] <= before, SOON, "descriptors")


class Stopped(Case):
    def test_a_stopped_rank_disturbs_neither_its_neighbour_nor_another_job(self):
        data, _ = self.dataset(random_lengths(400))
        d = self.daemon()
        keys = ["rows=4", "prefetch=4"]
        a, b = self.ranks(d, 2, data, keys=keys)
        a.run(2)
        a.kill(signal.SIGSTOP)
        other = self.attached(d, data, job="other", keys=keys + ["epochs=1"])
        self.assertEqual(len(ids_of(other.run())), 400)
        self.assertEqual([e["step"] for e in batches(b.run(40))], list(range(40)))
        self.assertEqual(d.queue("job", 0)["state"], "running", "it keeps its seat")
        a.kill(signal.SIGCONT)
        self.assertEqual([e["step"] for e in batches(a.run(10))], list(range(2, 12)))

    def test_a_slow_rank_finds_every_batch_it_has_not_taken(self):
        data, _ = self.dataset(random_lengths(100))
        d = self.daemon()
        t = self.attached(d, data, keys=["rows=4", "prefetch=4", "epochs=1"])
        d.wait_full("job")
        time.sleep(0.2)
        self.assertEqual(d.queue("job")["steps_published"], 4, "nothing is made ahead of its slots")
        self.assertEqual(sorted(ids_of(t.run())), list(range(100)))


if __name__ == "__main__":
    harness.main()
