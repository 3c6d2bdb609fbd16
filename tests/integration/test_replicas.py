# SPDX-License-Identifier: Apache-2.0
"""Several seats at one feed: the same batches for all, and what happens when one of them goes."""
import errno
import time

import harness
from harness import Case, STREAM_END, TIMEOUT, batches, ids_of, random_lengths, wait_until


class Replicas(Case):
    keys = ["rows=4", "prefetch=4", "epochs=1"]
    conf = "attach_timeout: 20s\nseat_grace: 20s\n"

    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(80))

    def seat(self, replica, keys=None, **options):
        return self.trainer(self.d, self.data, replica=replica, replicas=2, keys=keys or self.keys,
                            **options)

    def pair(self):
        a, b = self.seat(0), self.seat(1)
        self.assertEqual((a.hello["r"], b.hello["r"]), (0, 0), (a.hello, b.hello))
        return a, b

    def test_two_seats_see_the_same_batches(self):
        self.d = self.daemon(self.conf)
        a, b = self.pair()
        a.send("run 0 data")
        b.send("run 0 data")
        first, second = a.receive(), b.receive()
        self.assertEqual(first, second)
        self.assertEqual(sorted(ids_of(first["entries"])), list(range(80)))
        self.assertEqual(first["r"], STREAM_END)

    def test_nothing_is_published_before_all_seats_are_taken(self):
        self.d = self.daemon(self.conf)
        a = self.seat(0)
        self.assertEqual(a.do("next", 300)["r"], TIMEOUT)
        queue = self.d.queue("job")
        self.assertEqual((queue["state"], queue["steps_published"]), ("waiting", 0))
        b = self.seat(1)
        self.assertEqual(b.do("next")["r"], 0)
        self.assertEqual(a.do("next")["r"], 0)

    def test_a_slot_is_used_again_only_when_both_have_released_it(self):
        self.d = self.daemon(self.conf)
        a, b = self.pair()
        self.d.wait_full("job")
        self.assertEqual(a.do("hold")["held"], 4)
        a.do("release", "all")
        self.assertEqual(a.do("next", 200)["r"], TIMEOUT, "the other one still holds everything")
        self.assertEqual(self.d.queue("job")["steps_published"], 4)
        for i in range(4):
            self.assertEqual(b.do("next")["step"], i)
        data = [b.do("tensors", i) for i in range(4)]
        b.do("release", 2)
        self.assertEqual(a.do("next")["step"], 4)
        self.assertEqual([b.do("tensors", i) for i in (0, 1, 3)], [data[i] for i in (0, 1, 3)])
        self.assertEqual(a.do("next", 100)["r"], TIMEOUT)

    def test_a_dead_seat_is_vacant_and_goes_on_when_it_comes_back(self):
        self.d = self.daemon(self.conf)
        a, b = self.pair()
        for t in (a, b):
            t.send("run", 5)
        for t in (a, b):
            self.assertEqual(len(t.receive()["entries"]), 5)
        b.kill()
        wait_until(lambda: len(self.d.queue("job")["seats"]) == 1, what="the vacant seat")
        self.assertEqual(len(batches(a.run(4))), 4, "what was published is there")
        self.assertEqual(a.do("next", 200)["r"], TIMEOUT, "and no more, until the seat is back")
        self.assertEqual(self.d.queue("job")["state"], "running")
        b = self.seat(1)
        self.assertEqual(b.hello["r"], 0, b.hello)
        b.send("run")
        rest = a.run()
        self.assertEqual([e["step"] for e in batches(rest)], list(range(9, 20)))
        self.assertEqual([e["step"] for e in batches(b.receive()["entries"])], list(range(5, 20)))

    def test_a_seat_that_died_with_leases_finds_them_again(self):
        self.d = self.daemon(self.conf)
        a, b = self.pair()
        self.d.wait_full("job")
        b.do("next")
        b.do("next")
        b.kill()
        b = self.seat(1)
        self.assertEqual(b.hello["r"], 0, b.hello)
        self.assertEqual([e["step"] for e in batches(b.run(4))], [0, 1, 2, 3])

    def test_a_seat_that_stays_away_ends_the_others_with_replica_lost(self):
        self.d = self.daemon("attach_timeout: 20s\nseat_grace: 500ms\n")
        a, b = self.pair()
        self.d.wait_full("job")
        b.kill()
        start = time.monotonic()
        a.send("run")
        reply = a.receive()
        self.assertLess(time.monotonic() - start, 3)
        self.assertEqual(len(batches(reply["entries"])), 4, "good batches arrive before the error")
        self.assertLess(reply["r"], 0)
        self.assertIn("replica_lost", reply["error"])
        self.assertIn("replica 1 of rank 0", reply["error"])
        self.assertEqual(self.d.queue("job")["state"], "failed")
        self.assertEqual(a.end(), 0)
        self.d.wait_idle()

    def test_a_seek_that_the_lost_seat_did_not_join_is_refused_with_the_reason(self):
        self.d = self.daemon("attach_timeout: 20s\nseat_grace: 500ms\n")
        a, b = self.pair()
        self.assertEqual(len(a.run(2)), 2)
        a.send("seek", a.state())
        b.kill()
        reply = a.receive()
        self.assertLess(reply["r"], 0)
        self.assertIn("replica_lost", reply["error"])

    def test_a_seat_that_never_comes_ends_the_wait_with_both_numbers(self):
        self.d = self.daemon("attach_timeout: 1s\n")
        a = self.seat(0)
        reply = a.do("next")
        self.assertLess(reply["r"], 0)
        self.assertIn("1 of 2 replicas", reply["error"])
        a.end()
        self.d.wait_idle()

    def test_a_job_with_both_seats_gone_ends(self):
        self.d = self.daemon(self.conf)
        a, b = self.pair()
        a.kill()
        b.kill()
        self.d.wait_idle()

    def test_seats_that_declare_another_number_of_replicas_are_refused(self):
        self.d = self.daemon(self.conf)
        self.seat(0)
        error = self.refused(self.d, self.data, replica=1, replicas=3, keys=self.keys)
        self.assertIn("replicas 3", error)
        self.assertIn("2", error)

    def test_a_replica_out_of_range_is_refused(self):
        self.d = self.daemon(self.conf)
        t = self.trainer(self.d, self.data, replica=2, replicas=2, keys=self.keys)
        self.assertEqual(t.hello["r"], -errno.EINVAL)
        self.assertIn("replica 2", t.error)


if __name__ == "__main__":
    harness.main()
