# SPDX-License-Identifier: Apache-2.0
"""What costs nothing: a ready batch for the trainer, a full ring for the daemon; and whose clock it is."""
import os
import re
import signal
import subprocess
import time

import harness
from harness import Case, SLOW, TIMEOUT, STREAM_END, random_lengths, wait_until

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


class SystemCalls(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(240))
        self.d = self.daemon()

    def trace(self, t):
        """strace of a trainer: a function that ends it and gives the calls of a burst."""
        path = self.path("trace")
        try:
            p = subprocess.Popen(["strace", "-f", "-o", path, "-p", str(t.pid)], stderr=subprocess.PIPE,
                                 text=True)
        except FileNotFoundError:
            self.skipTest("strace is not installed")
        self.addCleanup(p.stderr.close)
        said = p.stderr.readline()
        if "attached" not in said:
            p.wait(SLOW)
            self.skipTest("strace cannot attach here: " + said.strip())
        self.addCleanup(lambda: p.poll() is None and p.kill())

        def burst():
            p.send_signal(signal.SIGINT)
            p.wait(SLOW)
            with open(path) as f:
                calls = re.findall(r"^\d+ +(\w+)\(", f.read(), re.M)
            first, last = [i for i, name in enumerate(calls) if name == "getppid"]
            return calls[first + 1:last]
        return burst

    def test_a_ready_batch_costs_next_and_release_no_system_call(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=64", "epochs=1"])
        wait_until(lambda: self.d.queue("job")["ready"] == 60, what="60 ready batches")
        burst = self.trace(t)
        reply = t.do("burst", 60)
        self.assertEqual(reply["n"], 60)
        self.assertEqual(burst(), [])
        self.assertEqual(t.run()[-1]["r"], harness.EPOCH_END)
        self.assertEqual(t.last["r"], STREAM_END)

    def test_a_full_ring_costs_a_few_kicks_for_many_batches_and_no_wait(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=32"])
        self.d.wait_full("job")
        burst = self.trace(t)
        self.assertEqual(t.do("burst", 32)["n"], 32)
        calls = burst()
        self.assertLessEqual(set(calls), {"write"}, "the daemon is told that it may go on")
        self.assertLessEqual(len(calls), 4)

    def test_next_without_a_batch_looks_and_returns(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2"])
        self.d.wait_full("job")
        t.do("hold")
        start = time.monotonic()
        self.assertEqual(t.do("next", 0)["r"], TIMEOUT)
        self.assertLess(time.monotonic() - start, 1)

    def test_next_waits_as_long_as_it_was_told(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2"])
        self.d.wait_full("job")
        t.do("hold")
        for ms in (50, 600):
            start = time.monotonic()
            self.assertEqual(t.do("next", ms)["r"], TIMEOUT)
            took = time.monotonic() - start
            self.assertGreaterEqual(took, ms / 1000)
            self.assertLess(took, ms / 1000 + 1)

    def test_a_release_wakes_the_daemon_and_the_next_batch_wakes_the_trainer(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2"])
        self.d.wait_full("job")
        t.do("hold")
        start = time.monotonic()
        for i in range(50):
            t.do("release", i)
            self.assertEqual(t.do("next")["step"], i + 2)
        self.assertLess(time.monotonic() - start, 5, "none of them waited for a timer")

    def test_the_descriptor_polls_readable_when_next_will_not_wait(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2"])
        self.d.wait_full("job")
        self.assertEqual(t.do("poll", 2000)["r"], 1)
        self.assertEqual(t.do("hold")["held"], 2)
        self.assertEqual(t.do("poll", 200)["r"], 0)
        t.send("poll", 5000)
        time.sleep(0.1)
        # Another process frees nothing here: the daemon ends, and that is readable too.
        start = time.monotonic()
        self.d.kill()
        self.assertEqual(t.receive()["r"], 1)
        self.assertLess(time.monotonic() - start, 1)
        self.assertEqual(t.do("next", 0)["r"], -32)

    def test_a_poll_for_the_next_batch_ends_when_it_is_there(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2"])
        self.d.wait_full("job")
        self.assertEqual(t.do("poll", 0)["r"], 1, "before the first look")
        for i in range(20):
            while t.do("next", 0)["r"] != TIMEOUT:
                pass
            self.assertEqual(t.do("poll", 0)["r"], 0)
            t.do("release", "all")
            self.assertEqual(t.do("poll", 5000)["r"], 1)


class Idle(Case):
    def test_a_daemon_with_full_rings_uses_no_processor(self):
        data, _ = self.dataset(random_lengths(400))
        d = self.daemon(args=["--workers", "4"])
        ts = [self.attached(d, data, job="j%d" % i, keys=["rows=4", "prefetch=8"]) for i in range(3)]
        ts += [self.attached(d, data, job="pair", keys=["rows=4"], replica=0, replicas=2)]
        for i in range(3):
            ts[i].do("next")
            d.wait_full("j%d" % i)
        parked = self.attached(d, data, job="parked", keys=["rows=4", "prefetch=2"])
        d.wait_full("parked")
        parked.do("hold")
        parked.send("next", -1)
        time.sleep(0.5)
        seconds = 5
        before = harness.cpu_ticks(d.pid)
        time.sleep(seconds)
        used = harness.cpu_ticks(d.pid) - before
        self.assertLessEqual(used, seconds * os.sysconf("SC_CLK_TCK") / 1000 + 1)

    def test_a_parked_trainer_uses_no_processor(self):
        data, _ = self.dataset(random_lengths(400))
        d = self.daemon()
        t = self.attached(d, data, keys=["rows=4", "prefetch=2"])
        d.wait_full("job")
        t.do("hold")
        t.send("next", 2500)
        time.sleep(0.2)
        before = harness.cpu_ticks(t.pid)
        self.assertEqual(t.receive()["r"], TIMEOUT)
        self.assertLessEqual(harness.cpu_ticks(t.pid) - before, 2)


class Clock(Case):
    def test_nothing_but_the_log_asks_for_the_time_of_day(self):
        # A step of the wall clock cannot matter to whom never looks at it.
        wall = re.compile(r"\b(CLOCK_REALTIME\w*|gettimeofday|time\s*\(\s*(NULL|0|&\w+)\s*\)|timespec_get|"
                          r"localtime\w*|gmtime\w*|clock\s*\(\s*\)|pthread_cond_timedwait)")
        found = []
        for room in ("daemon", "client", "proto"):
            for folder, _, names in os.walk(os.path.join(ROOT, room)):
                for name in names:
                    path = os.path.join(folder, name)
                    if name.rsplit(".", 1)[-1] not in ("c", "h", "cc", "cpp", "cu"):
                        continue
                    if os.path.relpath(path, ROOT) in ("daemon/log.c", "daemon/log.h"):
                        continue
                    with open(path) as f:
                        for number, line in enumerate(f, 1):
                            if wall.search(line):
                                found.append("%s:%d: %s" % (os.path.relpath(path, ROOT), number, line.strip()))
        self.assertEqual(found, [])


if __name__ == "__main__":
    harness.main()
