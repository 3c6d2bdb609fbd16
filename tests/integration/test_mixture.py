# SPDX-License-Identifier: Apache-2.0
"""Mixtures served end to end, states that go to another world, and states of something else."""
import collections
import json
import os

import harness
from harness import EPOCH_END, Case, batches, ids_of, random_lengths


def keys_over(base, more):
    """Later words win."""
    names = {word.split("=")[0] for word in more}
    return [word for word in base if word.split("=")[0] not in names] + list(more)


class Mixtures(Case):
    sizes = [60, 20, 7]
    keys = ["rows=2", "prefetch=4", "epochs=1", "buckets=3", "order=full"]

    def setUp(self):
        super().setUp()
        self.paths = [self.dataset(random_lengths(n, seed=n), "data-%d" % n)[0] for n in self.sizes]
        self.d = self.daemon()

    def data(self, weights):
        return json.dumps({"data": [{"path": p, "weight": w} for p, w in zip(self.paths, weights)]})

    def mixed(self, weights, *keys, **options):
        return self.attached(self.d, spec=self.data(weights), keys=keys_over(self.keys, keys), **options)

    def counts(self, entries):
        """Draws of each dataset."""
        seen = collections.Counter(ids_of(entries))
        ends = [sum(self.sizes[:i + 1]) for i in range(len(self.sizes))]
        per = [0] * len(self.sizes)
        for sample, n in seen.items():
            per[next(i for i, end in enumerate(ends) if sample < end)] += n
        return per, seen

    def test_an_epoch_ends_with_the_first_dataset_and_nothing_comes_twice(self):
        per, seen = self.counts(self.mixed([4, 2, 1]).run())
        self.assertEqual(max(seen.values()), 1)
        self.assertEqual(per[2], 7)
        self.assertTrue(26 <= per[0] <= 28 and 13 <= per[1] <= 14, per)

    def test_an_epoch_ends_with_the_last_dataset_and_the_others_repeat(self):
        per, seen = self.counts(self.mixed([1, 1, 1], "stop=all_exhausted").run())
        self.assertEqual(len(seen), sum(self.sizes))
        self.assertEqual(per[0], 60)
        self.assertTrue(all(59 <= n <= 61 for n in per), per)

    def test_weight_0_is_not_read(self):
        per, seen = self.counts(self.mixed([1, 1, 0]).run())
        self.assertEqual(per, [20, 20, 0])

    def test_never_goes_on_and_its_states_continue(self):
        t = self.mixed([3, 1, 1], "stop=never", "epochs=0")
        whole = t.run(150)
        self.assertEqual({e["r"] for e in whole}, {0})
        for cut in (1, 60, 149):
            t = self.mixed([3, 1, 1], "stop=never", "epochs=0", job="first-%d" % cut)
            first = t.run(cut)
            t2 = self.mixed([3, 1, 1], "stop=never", "epochs=0", job="rest-%d" % cut, state=t.state())
            self.assertEqual(first + t2.run(150 - cut), whole)

    def test_two_ranks_share_the_mixture(self):
        a, b = self.ranks(self.d, 2, spec=self.data([4, 2, 1]), keys=self.keys)
        one = ids_of(a.run() + b.run())
        self.assertEqual(len(one), len(set(one)))
        self.assertEqual(len([i for i in one if i >= 80]), 7)


class Worlds(Case):
    def setUp(self):
        super().setUp()
        self.shards, _ = self.dataset(random_lengths(97, seed=4))
        self.d = self.daemon()

    def world(self, world, keys, state=None):
        options = {"state": state} if state else {}
        trainers = self.ranks(self.d, world, self.shards, keys=keys, job="w%d" % world, **options)
        return trainers

    def finish(self, trainers):
        entries = [t.run() for t in trainers]
        for t in trainers:
            t.cleanup()
        self.d.wait_idle()
        return entries

    def first(self, world, keys, n):
        trainers = self.world(world, keys)
        entries = [t.run(n) for t in trainers]
        state = trainers[0].state()
        for t in trainers:
            t.cleanup()
        self.d.wait_idle()
        return entries, state

    def test_a_global_batch_goes_on_exactly_in_another_world(self):
        keys = ["global_rows=8", "prefetch=4", "epochs=1", "buckets=3"]
        whole = self.finish(self.world(2, keys))
        first, state = self.first(2, keys, 5)
        for world in (1, 4, 8):
            rest = self.finish(self.world(world, keys, state))
            for step in range(5, len(batches(whole[0]))):
                want = [i for rank in whole for i in batches(rank)[step]["ids"] if i >= 0]
                got = [i for rank in rest for i in batches(rank)[step - 5]["ids"] if i >= 0]
                self.assertEqual(sorted(got), sorted(want), "world %d step %d" % (world, step))

    def test_rows_of_each_rank_go_on_with_every_sample_once_and_that_is_said_once(self):
        keys = ["rows=2", "prefetch=4", "epochs=1", "buckets=3"]
        first, state = self.first(2, keys, 6)
        rest = self.finish(self.world(3, keys, state))
        self.assertEqual(sorted(ids_of(sum(first, []) + sum(rest, []))), list(range(97)))
        self.assertEqual({batches(r)[0]["step"] for r in rest}, {6})
        self.assertEqual(self.d.log().count("state of world 2 continued in world 3"), 1)


class Changed(Case):
    keys = ["rows=4", "prefetch=4", "epochs=2", "buckets=3"]

    def setUp(self):
        super().setUp()
        self.shards, _ = self.dataset(random_lengths(61))
        self.d = self.daemon()
        t = self.attached(self.d, self.shards, keys=self.keys)
        self.whole = t.run(9)
        self.state = t.state()
        t.cleanup()
        self.d.wait_idle()

    def refusal(self, path=None, keys=(), state=None):
        return self.refused(self.d, path or self.shards, keys=keys_over(self.keys, keys),
                            state=state or self.state)

    def test_a_state_before_the_first_batch_and_one_behind_an_epoch_name_the_key_too(self):
        said = "the first key that differs is tail, now \"drop\", in the state \"short\""
        t = self.attached(self.d, self.shards, job="whole", keys=self.keys)
        start = t.state()
        whole = t.run()
        ends = [i for i, e in enumerate(whole) if e["r"] == EPOCH_END]
        t.do("seek", start)
        again = t.run(ends[0])
        self.assertEqual([e["ids"] for e in again], [e["ids"] for e in whole[:ends[0]]])
        self.assertIn(said, self.refusal(keys=["tail=drop"], state=start))
        self.assertIn(said, self.refusal(keys=["tail=drop"], state=t.state()))

    def test_a_state_of_an_older_release_before_the_first_batch_is_the_beginning(self):
        t = self.attached(self.d, self.shards, job="whole", keys=self.keys)
        start = t.state()
        old = harness.without_cursor(start)
        first = t.run(3)
        t = self.attached(self.d, self.shards, job="old", keys=self.keys, state=old)
        self.assertEqual(t.state(), start, "it is saved anew with the cursor")
        self.assertEqual(t.run(3), first)
        t.do("seek", old)
        self.assertEqual([e["ids"] for e in t.run(3)], [e["ids"] for e in first])
        said = self.refusal(keys=["tail=drop"], state=old)
        self.assertIn("the digest of the spec is", said)
        self.assertNotIn("the first key", said)

    def test_the_first_key_that_differs_is_named(self):
        self.assertIn("the first key that differs is tail, now \"drop\"", self.refusal(keys=["tail=drop"]))
        self.assertIn("the first key that differs is order, now \"none\"",
                      self.refusal(keys=["tail=drop", "order=none"]))
        self.assertIn("the first key that differs is keep", self.refusal(keys=["keep={min_length: 2}"]))
        self.assertIn("the first key that differs is rows, now 2", self.refusal(keys=["rows=2"]))

    def test_other_data_is_named_with_both_counts(self):
        fewer, _ = self.dataset(random_lengths(60), "fewer")
        self.assertIn("it had 61 samples and has 60", self.refusal(fewer))
        other, _ = self.dataset(random_lengths(61, seed=2), "other")
        self.assertIn("it has as many samples (61) of other lengths or contents", self.refusal(other))

    def test_allow_changed_goes_on_where_it_fits_and_else_begins_the_epoch_again(self):
        t = self.attached(self.d, self.shards, job="fits", state=self.state,
                          keys=[*self.keys, "pad_to=edge", "allow_changed=true"])
        entry = t.do("next")
        self.assertEqual((entry["epoch"], entry["step"]), (0, 9))
        fewer, _ = self.dataset(random_lengths(20), "few")
        t = self.attached(self.d, fewer, job="again", state=self.state,
                          keys=[*self.keys, "allow_changed=true"])
        entry = t.do("next")
        self.assertEqual((entry["epoch"], entry["step"]), (0, 0))
        self.assertIn("epoch 0 begins again", self.d.log())

    def test_edges_come_from_a_file(self):
        name = os.path.join(self.folder, "edges.json")
        with open(name, "w") as file:
            file.write('{"edges": [32, 96]}')
        t = self.attached(self.d, self.shards, job="edges", keys=["rows=4", "pad_to=edge", "edges=" + name])
        self.assertEqual({e["width"] for e in batches(t.run(8))} - {32, 96}, set())
        self.assertIn("neither a list nor a map", self.refused_with(name, "{}"))

    def refused_with(self, name, text):
        with open(name, "w") as file:
            file.write(text)
        return self.refused(self.d, self.shards, job="bad", keys=["edges=" + name])


if __name__ == "__main__":
    harness.main()
