# SPDX-License-Identifier: Apache-2.0
"""The daemon dies under its clients, and starts again."""
import errno
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import harness  # noqa: E402
from harness import Case, batches, ids_of, random_lengths, wait_until  # noqa: E402


class Killed(Case):
    def setUp(self):
        super().setUp()
        self.data, self.samples = self.dataset(random_lengths(200))
        self.d = self.daemon()

    def test_a_parked_client_gets_epipe_within_a_second(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2"])
        self.d.wait_full("job")
        self.assertEqual(t.do("hold")["held"], 2)
        t.send("next", -1)
        time.sleep(0.3)
        start = time.monotonic()
        self.d.kill()
        reply = t.receive()
        self.assertEqual(reply["r"], -errno.EPIPE, reply)
        self.assertLess(time.monotonic() - start, 1)
        self.assertEqual(t.do("next", -1)["r"], -errno.EPIPE, "and again")

    def test_leased_tensors_stay_readable_and_releasing_them_is_harmless(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=3", "multiple_of=1"])
        self.d.wait_full("job")
        self.assertEqual(t.do("hold")["held"], 3)
        before = [t.do("tensors", i) for i in range(3)]
        state = t.state()
        self.d.kill()
        self.assertEqual([t.do("tensors", i) for i in range(3)], before)
        for b in before:
            for i, sample in enumerate(b["ids"]):
                n = b["lengths"][i]
                self.assertEqual(harness.rows_of(b, "input_ids")[i][:n], self.samples[sample])
        self.assertEqual(t.do("next", 0)["r"], -errno.EPIPE)
        self.assertEqual(t.state(), state, "the state survives the daemon")
        self.assertEqual(t.do("release", 1)["r"], 0)
        self.assertEqual(t.do("tensors", 2), before[2])
        self.assertEqual(t.do("release", "all")["r"], 0)
        self.assertEqual(t.end(), 0)

    def test_batches_that_were_published_before_the_death_are_still_delivered(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=4"])
        self.d.wait_full("job")
        self.d.kill()
        self.assertEqual(t.do("hold")["r"], -errno.EPIPE)
        self.assertEqual(t.do("tensors", 3)["step"], 3)

    def test_a_new_daemon_at_the_same_place_continues_from_the_state_exactly(self):
        keys = ["rows=4", "epochs=2"]
        whole = self.attached(self.d, self.data, job="whole", keys=keys).run()
        t = self.attached(self.d, self.data, keys=keys)
        first = t.run(17)
        state = t.state()
        self.d.kill()
        self.d.start()
        rest = self.attached(self.d, self.data, keys=keys, state=state).run()
        self.assertEqual(first + rest, whole)

    def test_a_client_with_reconnect_goes_on_without_loss_or_repeat(self):
        keys = ["rows=4", "epochs=1", "prefetch=4"]
        t = self.attached(self.d, self.data, keys=keys, reconnect=15000)
        first = t.run(7)
        self.d.kill()
        self.d.start()
        rest = t.run()
        self.assertEqual(sorted(ids_of(first) + ids_of(rest)), list(range(200)))
        self.assertEqual([b["step"] for b in batches(first + rest)],
                         list(range(len(batches(first + rest)))))

    def test_replicas_at_different_batches_reconnect_and_none_of_them_misses_one(self):
        keys = ["rows=4", "epochs=1", "prefetch=4"]
        seats = [self.attached(self.d, self.data, keys=keys, reconnect=15000, replica=i, replicas=2)
                 for i in range(2)]
        first = [seats[0].run(3), seats[1].run(3)]
        first[0] += seats[0].run(3)
        self.d.kill()
        self.d.start()
        for ahead, seat in enumerate(seats):
            seat.send("run")
            wait_until(lambda: len((self.d.queue("job") or {"seats": []})["seats"]) > ahead, what="seat %d" % ahead)
        for i, seat in enumerate(seats):
            entries = first[i] + seat.receive()["entries"]
            self.assertEqual([b["step"] for b in batches(entries)], list(range(50)), "seat %d" % i)

    def test_twenty_daemons_start_one_after_the_other_where_the_last_was_killed(self):
        shm = set(os.listdir("/dev/shm"))
        old = self.attached(self.d, self.data, keys=["rows=4"])
        old.do("next")
        for i in range(20):
            self.d.kill()
            self.d.start()
            t = self.attached(self.d, self.data, job="round", keys=["rows=4", "prefetch=%d" % (2 + i % 5)])
            self.assertEqual(len(batches(t.run(3))), 3)
            t.cleanup()
        self.assertEqual(old.do("next", 0)["r"] < 1, True)
        self.assertEqual(set(os.listdir("/dev/shm")) - shm, set())
        self.assertEqual(self.d.call("Status")["pid"], self.d.pid)


if __name__ == "__main__":
    harness.main()
