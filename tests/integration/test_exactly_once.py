# SPDX-License-Identifier: Apache-2.0
"""Each sample once, its bytes as stored, padding and masks where they belong, equal steps."""
import harness
from harness import Case, EPOCH_END, STREAM_END, batches, ids_of, random_lengths, rows_of

FIELDS = ("fields=[{name: input_ids, dtype: i64, pad: -7}, "
          "{name: labels, from: input_ids, dtype: i64, pad: -100}, "
          "{name: attention_mask, make: mask, dtype: u8}, "
          "{name: left, from: input_ids, dtype: i32, pad: -1, side: left}, "
          "{name: lengths, make: lengths, dtype: i64}, {name: ids, make: sample_ids}]")


class Bytes(Case):
    def check_batch(self, batch, samples):
        width = batch["width"]
        shape, lengths = harness.tensor(batch, "lengths")
        self.assertEqual(shape, [batch["rows"]])
        self.assertEqual(lengths, batch["lengths"])
        self.assertEqual(harness.tensor(batch, "ids")[1], batch["ids"])
        for i, sample in enumerate(batch["ids"]):
            real = samples[sample] if sample >= 0 else []
            n = width - len(real)
            self.assertEqual(batch["lengths"][i], len(real))
            self.assertEqual(rows_of(batch, "input_ids")[i], real + [-7] * n)
            self.assertEqual(rows_of(batch, "labels")[i], real + [-100] * n)
            self.assertEqual(rows_of(batch, "attention_mask")[i], [1] * len(real) + [0] * n)
            self.assertEqual(rows_of(batch, "left")[i], [-1] * n + real)

    def test_two_ranks_get_each_sample_once_with_its_bytes_padding_and_mask(self):
        path, samples = self.dataset(random_lengths(333), shards=3)
        d = self.daemon()
        got = []
        for t in self.ranks(d, 2, path, keys=["rows=8", "buckets=4", "epochs=1", FIELDS]):
            entries = t.run(data=True)
            self.assertEqual([e["r"] for e in entries][-1], EPOCH_END)
            self.assertEqual(t.last["r"], STREAM_END)
            for batch in batches(entries):
                self.check_batch(batch, samples)
            got += ids_of(entries)
        self.assertEqual(sorted(got), list(range(333)))

    def test_masked_rows_hold_only_padding(self):
        path, samples = self.dataset(random_lengths(21))
        d = self.daemon()
        seen = []
        for t in self.ranks(d, 2, path, keys=["rows=4", "buckets=2", "epochs=1", "tail=pad", FIELDS]):
            entries = t.run(data=True)
            for batch in batches(entries):
                self.assertEqual(batch["rows"], 4)
                self.assertEqual(batch["real"], sum(i >= 0 for i in batch["ids"]))
                self.check_batch(batch, samples)
            seen += ids_of(entries)
        self.assertEqual(sorted(seen), list(range(21)))

    def test_a_last_short_batch_has_no_row_of_an_older_one(self):
        path, samples = self.dataset([20] * 10, shards=1)
        d = self.daemon()
        t = self.attached(d, path, keys=["rows=4", "epochs=2", "order=none", "group=fixed",
                                         "prefetch=2", FIELDS])
        entries = batches(t.run(data=True))
        self.assertEqual([b["rows"] for b in entries], [4, 4, 2] * 2)
        for batch in entries:
            self.assertEqual(len(rows_of(batch, "input_ids")), batch["rows"])
            self.check_batch(batch, samples)

    def test_the_tokens_counted_are_those_of_the_samples(self):
        path, samples = self.dataset(random_lengths(100))
        d = self.daemon()
        entries = batches(self.attached(d, path, keys=["rows=8", "epochs=1"]).run())
        self.assertEqual(sum(b["tokens"] for b in entries), sum(len(s) for s in samples))
        for b in entries:
            self.assertEqual(b["padded"], b["rows"] * b["width"])
            self.assertEqual(b["tokens"], sum(b["lengths"]))
            self.assertEqual(b["global"], b["tokens"], "one rank is the whole step")


class Epochs(Case):
    def test_each_epoch_holds_every_sample_once_in_another_order(self):
        path, _ = self.dataset(random_lengths(64))
        d = self.daemon()
        entries = self.attached(d, path, keys=["rows=4", "epochs=3"]).run()
        epochs, now = [], []
        for e in entries:
            if e["r"] == EPOCH_END:
                epochs.append(now)
                now = []
            else:
                self.assertEqual(e["epoch"], len(epochs))
                now += e["ids"]
        self.assertEqual([sorted(e) for e in epochs], [list(range(64))] * 3)
        self.assertEqual(len({tuple(e) for e in epochs}), 3)
        self.assertEqual(now, [])

    def test_steps_count_from_zero_in_each_epoch(self):
        path, _ = self.dataset(random_lengths(40))
        d = self.daemon()
        t = self.attached(d, path, keys=["rows=4", "epochs=2"])
        steps = [(b["epoch"], b["step"]) for b in batches(t.run())]
        n = t.hello["steps"]
        self.assertEqual(steps, [(e, s) for e in range(2) for s in range(n)])

    def test_order_none_without_groups_is_the_stored_order(self):
        path, _ = self.dataset(random_lengths(50), shards=4)
        d = self.daemon()
        t = self.attached(d, path, keys=["rows=8", "epochs=2", "order=none", "group=fixed"])
        self.assertEqual(ids_of(t.run()), list(range(50)) * 2)

    def test_micro_batches_end_with_the_last_of_their_step(self):
        path, _ = self.dataset(random_lengths(96))
        d = self.daemon()
        got = []
        for t in self.ranks(d, 2, path, keys=["rows=4", "accumulate=3", "epochs=1"]):
            entries = batches(t.run())
            self.assertEqual([b["micro"] for b in entries], [0, 1, 2] * (len(entries) // 3))
            self.assertEqual([b["last"] for b in entries], [0, 0, 1] * (len(entries) // 3))
            got += ids_of(entries)
        self.assertEqual(sorted(got), list(range(96)))


class Tails(Case):
    def run_world(self, n, world, rows, tail, accumulate=1):
        """Returns a list of entries for each rank, or the text of the refusal."""
        path, _ = self.dataset([8] * n, name="data-%d" % n, shards=1)
        keys = ["rows=%d" % rows, "tail=" + tail, "epochs=1", "order=none", "group=fixed",
                "accumulate=%d" % accumulate]
        job = "w%d-%s-%d-%d" % (world, tail, n, rows)
        first = self.trainer(self.d, path, job=job, keys=keys, rank=0, world=world)
        if first.hello["r"] < 0:
            return first.error
        rest = [self.attached(self.d, path, job=job, keys=keys, rank=r, world=world)
                for r in range(1, world)]
        entries = [t.run() for t in [first] + rest]
        for t in [first] + rest:
            self.assertEqual(t.last["r"], STREAM_END)
            t.cleanup()
        return entries

    def check(self, n, world, rows, tail):
        ranks = self.run_world(n, world, rows, tail)
        where = (n, world, rows, tail)
        if isinstance(ranks, str):
            self.assertIn("an epoch would have no step", ranks, where)
            self.assertIn(str(n), ranks)
            whole = tail == "drop" and n < world * rows
            self.assertTrue(whole or (tail == "short" and n < world), where)
            return
        ids = [ids_of(r) for r in ranks]
        got = sorted(i for r in ids for i in r)
        self.assertEqual({len(batches(r)) for r in ranks}, {len(batches(ranks[0]))}, where)
        for b in (b for r in ranks for b in batches(r)):
            self.assertGreater(b["rows"], 0, where)
            self.assertLessEqual(b["rows"], rows, where)
            self.assertTrue(tail == "pad" or b["real"] > 0, where)
        if tail == "drop":
            self.assertEqual(len(got), n // (world * rows) * world * rows, where)
            self.assertEqual(len(set(got)), len(got), where)
        else:
            self.assertEqual(got, list(range(n)), where)

    def test_19_samples_over_4_ranks_of_2_rows_short(self):
        self.d = self.daemon()
        ranks = self.run_world(19, 4, 2, "short")
        self.assertEqual([len(batches(r)) for r in ranks], [3] * 4)
        self.assertEqual(sorted(i for r in ranks for i in ids_of(r)), list(range(19)))
        for r in ranks:
            self.assertTrue(all(0 < b["rows"] == b["real"] for b in batches(r)))

    def test_19_samples_over_4_ranks_of_2_rows_pad(self):
        self.d = self.daemon()
        ranks = self.run_world(19, 4, 2, "pad")
        self.assertEqual([[b["rows"] for b in batches(r)] for r in ranks], [[2] * 3] * 4)
        self.assertEqual(sorted(i for r in ranks for i in ids_of(r)), list(range(19)))
        masked = sum(b["ids"].count(-1) for r in ranks for b in batches(r))
        self.assertEqual(masked, 24 - 19)
        self.assertEqual(masked, sum(b["rows"] - b["real"] for r in ranks for b in batches(r)))

    def test_19_samples_over_4_ranks_of_2_rows_drop(self):
        self.d = self.daemon()
        ranks = self.run_world(19, 4, 2, "drop")
        self.assertEqual([[b["real"] for b in batches(r)] for r in ranks], [[2, 2]] * 4)
        got = [i for r in ranks for i in ids_of(r)]
        self.assertEqual(sorted(got), list(range(16)))

    def test_what_the_tail_drops_and_masks_is_counted(self):
        self.d = self.daemon()
        path, _ = self.dataset([8] * 19, shards=1)
        for tail, dropped, masked in (("short", 0, 0), ("drop", 3, 0), ("pad", 0, 5)):
            t = self.attached(self.d, path, job=tail, world=4,
                              keys=["rows=2", "tail=" + tail, "order=none", "group=fixed"])
            self.assertEqual((t.hello["tail_dropped"], t.hello["masked"]), (dropped, masked), tail)

    def test_worlds_of_1_2_3_and_8_hold_with_few_samples(self):
        self.d = self.daemon()
        for n in (3, 7, 10):
            for world in (1, 2, 3, 8):
                for tail in ("short", "pad", "drop"):
                    self.check(n, world, 2, tail)

    def test_one_sample_for_four_ranks_needs_masked_rows(self):
        self.d = self.daemon()
        self.check(1, 4, 3, "short")
        self.check(1, 4, 3, "drop")
        self.check(1, 4, 3, "pad")


class Tokens(Case):
    def test_no_batch_is_larger_than_its_budget_of_padded_tokens(self):
        path, _ = self.dataset([73 + i * 7 % 42 for i in range(35)])
        d = self.daemon()
        entries = self.attached(d, path, keys=["tokens=3000", "multiple_of=1", "epochs=1"]).run()
        self.assertEqual(sorted(ids_of(entries)), list(range(35)))
        for b in batches(entries):
            self.assertLessEqual(b["rows"] * b["width"], 3000)

    def test_the_budget_counts_the_padding(self):
        path, _ = self.dataset([9, 9, 9], shards=1)
        d = self.daemon()
        entries = self.attached(d, path, keys=["tokens=32", "edges=[8, 16]", "multiple_of=8",
                                               "pad_to=edge", "epochs=1"]).run()
        self.assertEqual([b["rows"] for b in batches(entries)], [2, 1])


if __name__ == "__main__":
    harness.main()
