# SPDX-License-Identifier: Apache-2.0
"""Attaching and leaving, again and again, whole and half-way, costs the daemon nothing that stays."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import harness  # noqa: E402
from harness import Case, Raw, Refused, attach_parameters, footprint, is_sanitized, random_lengths, settled_fds, wait_until  # noqa: E402


class Cycles(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(100))
        self.d = self.daemon(args=["--workers", "2"])
        self.keys = ["rows=4", "prefetch=4"]

    def settled(self):
        self.d.wait_idle()
        wait_until(lambda: self.d.call("Status")["seats"] == 0, what="the end of all seats")
        settled_fds(self.d.pid)
        return footprint(self.d.pid)

    def check(self, before, rss_kb=1024):
        after = self.settled()
        self.assertEqual(after["fds"], before["fds"], (before, after))
        # Not one more for each cycle; arenas of threads and a sanitizer's memory come when they come.
        self.assertLessEqual(after["maps"], before["maps"] + 30, (before, after))
        self.assertLessEqual(after["shmem_kb"], before["shmem_kb"] + 64, (before, after))
        if not is_sanitized(self.d.pid):
            self.assertLessEqual(after["rss_kb"], before["rss_kb"] + rss_kb, (before, after))
        self.assertEqual(after["threads"], before["threads"])

    def cycles(self, n):
        """One process attaches n times and once more."""
        t = self.attached(self.d, self.data, job="cycles", keys=self.keys)
        reply = t.do("cycles", n - 1, seconds=60)
        self.assertEqual(reply["r"], 0, reply)
        return t

    def test_200_attaches_of_one_process_leave_daemon_and_client_as_they_were(self):
        t = self.cycles(20)
        t.do("close")
        before, client = self.settled(), footprint(t.pid)
        self.assertEqual(t.do("cycles", 200, seconds=60)["r"], 0)
        t.do("close")
        self.check(before)
        after = footprint(t.pid)
        self.assertEqual(after["fds"], 3)
        self.assertLessEqual(after["maps"], client["maps"])
        if not is_sanitized(t.pid):
            self.assertLessEqual(after["rss_kb"], client["rss_kb"] + 256)

    def test_50_processes_leave_the_daemon_as_it_was(self):
        self.cycles(20).cleanup()
        before = self.settled()
        for i in range(50):
            self.cycles(1).cleanup()
        self.check(before)

    def test_a_closed_client_keeps_only_the_mapping_of_a_batch_that_is_held(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        t.do("next")
        t.do("close")
        held = footprint(t.pid)
        self.assertEqual(held["fds"], 3)
        self.assertEqual(t.do("tensors", 0)["step"], 0)
        t.do("release", "all")
        self.assertLess(footprint(t.pid)["maps"], held["maps"])

    def test_attaches_that_fail_half_way_leave_the_daemon_as_it_was(self):
        self.cycles(5).cleanup()
        for round_ in range(3):
            self.fail_in_all_ways()
        before = self.settled()
        for round_ in range(10):
            self.fail_in_all_ways()
        self.check(before)

    def fail_in_all_ways(self):
        good = {"spec": {"data": self.data, "rows": 4}, "job": "broken"}
        bad = [
            dict(good, stream="nobody", spec={}),
            dict(good, protocol_min=7, protocol_max=9),
            dict(good, layout=99),
            dict(good, spec={"data": self.path("nowhere")}),
            dict(good, spec={"data": self.data, "rows": 4, "fields": [{"name": "no_such_field"}]}),
            dict(good, spec={"data": self.data, "rows": 4, "length": "no_such_field"}),
            dict(good, state="00" * 80),
        ]
        for parameters in bad:
            raw = Raw(self.d.socket)
            with self.assertRaises(Refused, msg=parameters):
                raw.attach(**parameters)
            raw.close()
        self.hang_up_early(good)

    def hang_up_early(self, good):
        """At every stage: unheard, while the shards open, while memory is populated, seated."""
        for delay in (0, 0.001, 0.003, 0.01):
            raw = Raw(self.d.socket)
            raw.message("io.stoker.Attach", attach_parameters(**good), more=True)
            time.sleep(delay)
            raw.close()
        raw = Raw(self.d.socket)
        wait_until(lambda: not self.d.jobs(), what="the end of the half-made job")
        raw.attach(**good)
        self.assertEqual(len(raw.fds), 5)
        raw.close()

    def test_who_begins_anew_right_after_hanging_up_finds_no_trace_of_the_first_try(self):
        for i in range(40):
            raw = Raw(self.d.socket)
            raw.message("io.stoker.Attach",
                        attach_parameters(spec={"data": self.data, "rows": 4 + i % 2}, job="again"), more=True)
            raw.close()
        raw = self.raw(self.d)
        self.assertEqual(raw.attach(spec={"data": self.data, "rows": 7}, job="again")["first"], 0)

    def test_a_rank_that_hangs_up_while_it_attaches_leaves_no_feed_behind(self):
        spec = {"data": self.data, "rows": 4096, "multiple_of": 4096, "pad_to": "edge", "prefetch": 2}
        raw = self.raw(self.d)
        raw.attach(spec=spec, job="two", world=2)
        alone = self.d.call("Status")["memory_used"]
        for _ in range(5):
            other = Raw(self.d.socket)
            other.message("io.stoker.Attach", attach_parameters(spec=spec, job="two", world=2, rank=1), more=True)
            other.close()
        wait_until(lambda: self.d.call("Status")["memory_used"] == alone, what="the end of the other feed")
        self.assertEqual([q["rank"] for q in self.d.call("Queues")["queues"]], [0])

    def test_memory_of_a_job_that_has_just_ended_is_waited_for(self):
        big = {"data": self.data, "rows": 4096, "multiple_of": 4096, "pad_to": "edge"}
        d = self.daemon("memory: 512MiB\n", name="small")
        raw = Raw(d.socket)
        slots = raw.attach(spec=dict(big, prefetch=1024), job="first")["slots_size"]
        raw.close()
        raw = self.raw(d)
        reply = raw.attach(spec=dict(big, prefetch=2), job="second")
        self.assertLess(reply["slots_size"], slots)
        self.assertNotIn("notice", reply)

    def test_a_connection_closed_while_memory_is_populated_gives_the_memory_back(self):
        spec = {"data": self.data, "rows": 4096, "multiple_of": 4096, "prefetch": 32, "pad_to": "edge"}
        self.cycles(5).cleanup()
        before = self.settled()
        raw = Raw(self.d.socket)
        raw.message("io.stoker.Attach", attach_parameters(spec=spec, job="large"), more=True)
        wait_until(lambda: self.d.call("Status")["memory_used"] > 0, what="memory in use")
        raw.close()
        self.d.wait_idle()
        self.check(before, rss_kb=8192)  # what the heap keeps is its own


if __name__ == "__main__":
    harness.main()
