# SPDX-License-Identifier: Apache-2.0
"""States: taken from the client, given at attach or by seek, refused when they belong elsewhere."""
import harness
from harness import Case, EPOCH_END, STREAM_END, batches, random_lengths


class States(Case):
    keys = ["rows=4", "prefetch=4", "epochs=2", "buckets=3"]

    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(61))
        self.d = self.daemon()

    def attach(self, job="job", **options):
        return self.attached(self.d, self.data, job=job, keys=self.keys, **options)

    def test_continuing_after_any_step_is_the_uninterrupted_run(self):
        whole = self.attach("whole").run()
        ends = [i for i, e in enumerate(whole) if e["r"] == EPOCH_END]
        self.assertEqual(len(ends), 2)
        # The start, the first step, around an epoch's end, and the last ones.
        for cut in sorted({0, 1, 5, ends[0] - 1, ends[0], ends[0] + 1, ends[0] + 2, ends[1] - 1, ends[1]}):
            t = self.attach("cut")
            first = t.run(cut) if cut else []
            state = t.state()
            t.cleanup()
            t = self.attach("rest-%d" % cut, state=state)
            rest = t.run()
            self.assertEqual(t.last["r"], STREAM_END)
            t.cleanup()
            # A state says after which batch, not whether its end of epoch was read.
            if cut and whole[cut - 1]["r"] == 0 and whole[cut]["r"] == EPOCH_END:
                rest = [whole[cut]] + rest
            self.assertEqual(first + rest, whole, "cut after %d" % cut)

    def test_a_batch_that_is_held_knows_its_own_state(self):
        t = self.attach()
        for _ in range(4):
            t.do("next")
        middle, last = t.do("state", 1)["state"], t.state()
        self.assertEqual(t.do("state", 3)["state"], last)
        self.assertEqual(self.attach("middle", state=middle).do("next")["step"], 2)
        self.assertEqual(self.attach("last", state=last).do("next")["step"], 4)

    def test_the_state_before_the_first_batch_is_the_start(self):
        t = self.attach()
        state = t.state()
        first = t.run(3)
        self.assertEqual(self.attach("again", state=state).run(3), first)

    def test_a_state_in_the_middle_of_a_step_goes_back_to_its_beginning(self):
        keys = self.keys + ["accumulate=2"]
        t = self.attached(self.d, self.data, keys=keys)
        taken = [t.do("next") for _ in range(3)]
        self.assertEqual([(b["step"], b["micro"]) for b in taken], [(0, 0), (0, 1), (1, 0)])
        b = self.attached(self.d, self.data, job="b", keys=keys, state=t.state()).do("next")
        self.assertEqual((b["step"], b["micro"], b["ids"]), (1, 0, taken[2]["ids"]))

    def test_a_state_of_one_rank_serves_all_ranks(self):
        a, b = self.ranks(self.d, 2, self.data, keys=self.keys)
        whole = [t.run() for t in (a, b)]
        a.cleanup()
        b.cleanup()
        self.d.wait_idle()
        a, b = self.ranks(self.d, 2, self.data, keys=self.keys)
        first = a.run(4)
        state = a.state()
        a.cleanup()
        b.cleanup()
        self.d.wait_idle()
        rest = [t.run() for t in self.ranks(self.d, 2, self.data, keys=self.keys, state=state)]
        self.assertEqual(first + rest[0], whole[0])
        self.assertEqual(rest[1], whole[1][4:])


class Seeks(Case):
    keys = ["rows=4", "prefetch=4"]

    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(200))
        self.d = self.daemon()

    def test_seek_rewinds(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        t.run(3)
        state = t.state()
        following = t.run(10)
        t.run(7)
        self.assertEqual(t.do("seek", state)["r"], 0)
        again = t.run(10)
        self.assertEqual([b["era"] for b in again], [1] * 10)
        self.assertEqual([dict(b, era=0) for b in again], following)

    def test_seek_to_nothing_is_the_beginning(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        first = t.run(5)
        self.assertEqual(t.do("seek")["r"], 0)
        self.assertEqual([dict(b, era=0) for b in t.run(5)], first)

    def test_batches_held_over_a_seek_stay_valid(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        for _ in range(3):
            t.do("next")
        held = [t.do("tensors", i) for i in range(3)]
        self.d.wait_full("job")
        self.assertEqual(t.do("seek")["r"], 0)
        self.assertEqual(t.do("next")["era"], 1)
        self.assertEqual([t.do("tensors", i) for i in range(3)], held)
        t.do("release", "all")
        steps = [b["step"] for b in batches(t.run(30))]
        self.assertEqual(steps, list(range(1, 31)), "the released slots are used again")

    def test_entries_of_the_old_era_are_skipped_and_their_slots_come_back(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        for round_ in range(10):
            self.d.wait_full("job")
            self.assertEqual(t.do("seek")["r"], 0)
            b = t.run(1)[0]
            self.assertEqual((b["step"], b["era"]), (0, round_ + 1))
        self.assertEqual(len(batches(t.run(49))), 49)

    def test_a_finished_stream_can_be_rewound(self):
        t = self.attached(self.d, self.data, keys=self.keys + ["epochs=1"])
        whole = t.run()
        self.assertEqual(t.last["r"], STREAM_END)
        self.assertEqual(t.do("seek")["r"], 0)
        again = t.run()
        self.assertEqual(t.last["r"], STREAM_END)
        self.assertEqual([b["ids"] for b in batches(again)], [b["ids"] for b in batches(whole)])

    def test_a_state_after_a_seek_continues_there(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        t.run(20)
        t.do("seek")
        t.run(2)
        other = self.attached(self.d, self.data, job="other", keys=self.keys, state=t.state())
        self.assertEqual(other.do("next")["step"], 2)

    def test_many_seeks_without_a_look_at_the_batches_lose_nothing(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "prefetch=2", "epochs=1"])
        whole = t.run()
        self.assertEqual(t.last["r"], STREAM_END)
        end = t.state()
        for _ in range(30):
            self.assertEqual(t.do("seek", end)["r"], 0)
        self.assertEqual(t.do("seek")["r"], 0)
        again = t.run()
        self.assertEqual({e.pop("era") for e in batches(again)}, {31})
        for entry in batches(whole):
            entry.pop("era")
        self.assertEqual(again, whole)

    def test_seats_that_come_back_at_different_batches_begin_at_the_earliest(self):
        t = self.attached(self.d, self.data, job="other", keys=["rows=4"])
        t.run(3)
        early = t.state()
        t.run(3)
        late = t.state()
        raws = []
        for replica, state in enumerate((late, early)):
            raws.append(self.raw(self.d))
            raws[-1].attach(spec={"data": self.data, "rows": 4}, replica=replica, replicas=2, state=state, rejoin=True)
        seat = harness.SeatFile(raws[1])
        self.addCleanup(seat.close)
        harness.wait_until(seat.published, what="the first batch")
        self.assertEqual(seat.step(0), 3)

    def test_all_seats_of_a_feed_seek_together(self):
        seats = [self.attached(self.d, self.data, keys=self.keys, replica=r, replicas=2)
                 for r in range(2)]
        states = []
        for t in seats:
            t.run(3)
            states.append(t.state())
        self.assertEqual(states[0], states[1])
        for t in seats:
            t.run(3)
        seats[0].send("seek", states[0])
        with self.assertRaises(AssertionError):
            seats[0].receive(seconds=0.3)
        self.assertEqual(seats[1].do("seek", states[1])["r"], 0)
        self.assertEqual(seats[0].receive()["r"], 0)
        for t in seats:
            t.send("next")
        self.assertEqual([t.receive()["step"] for t in seats], [3, 3])

    def test_a_state_of_another_spec_is_refused_with_both_digests(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        other = self.attached(self.d, self.data, job="other", keys=["rows=8"])
        digests = {j["job"]: j["digest"] for j in self.d.jobs()}
        reply = t.do("seek", other.state())
        self.assertEqual(reply["r"], -22, reply)
        self.assertIn(digests["job"], reply["error"])
        self.assertIn(digests["other"], reply["error"])
        self.assertEqual(t.do("next")["step"], 0, "nothing changed")

    def test_a_state_of_other_data_is_refused_with_both_fingerprints(self):
        more, _ = self.dataset(random_lengths(201), name="more")
        a = self.attached(self.d, self.data, keys=self.keys)
        b = self.attached(self.d, more, job="more", keys=self.keys)
        prints = {j["job"]: j["fingerprint"] for j in self.d.jobs()}
        self.assertNotEqual(prints["job"], prints["more"])
        error = self.refused(self.d, self.data, job="third", keys=self.keys, state=b.state())
        self.assertIn(prints["job"], error)
        self.assertIn(prints["more"], error)
        self.assertLess(a.do("seek", b.state())["r"], 0)

    def test_a_state_of_another_seed_is_refused_with_both_numbers(self):
        t = self.attached(self.d, self.data, job="w3", world=3, keys=self.keys + ["seed=5"])
        state = t.state()
        error = self.refused(self.d, self.data, job="s6", world=3, keys=self.keys + ["seed=6"], state=state)
        self.assertRegex(error, "seed 5 .* 6")

    def test_bytes_that_are_no_state_are_refused(self):
        t = self.attached(self.d, self.data, keys=self.keys)
        t.run(2)
        good = bytes.fromhex(t.state())
        bad = [good[:-1], good[:40], b"x" * len(good), good + b"x", good[:-3] + b"\x00\x01\x02"]
        for state in bad:
            self.assertEqual(t.do("seek", state.hex())["r"], -22, state)
        self.assertEqual(t.do("next")["step"], 2)


if __name__ == "__main__":
    harness.main()
