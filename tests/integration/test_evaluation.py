# SPDX-License-Identifier: Apache-2.0
"""Evaluation: the stored order, once, the last step padded; the same bytes in every pass."""
import harness
from harness import Case, EPOCH_END, STREAM_END, batches, ids_of, random_lengths, rows_of

EVALUATE = ["order=none", "epochs=1", "tail=pad", "rows=4",
            "fields=[{name: input_ids, dtype: i64, pad: 0}, {name: attention_mask, make: mask, dtype: u8}, "
            "{name: labels, from: input_ids, dtype: i64, pad: -100}, {name: ids, make: sample_ids}]"]
SAMPLES = 101  # neither 2 x 4 nor 3 x 4 divides it


class Evaluation(Case):
    def setUp(self):
        super().setUp()
        self.data, self.samples = self.dataset(random_lengths(SAMPLES, seed=8), shards=3)
        self.d = self.daemon(args=["--workers", "2"])

    def one_pass(self, world, *keys):
        """Entries of each rank; jobs of one name follow one another."""
        ranks = self.ranks(self.d, world, self.data, keys=EVALUATE + list(keys), job="evaluate")
        entries = []
        for t in ranks:
            entries.append(t.run(data=True))
            self.assertEqual([entries[-1][-1]["r"], t.last["r"]], [EPOCH_END, STREAM_END])
        for t in ranks:
            self.assertEqual(t.end(), 0)
        harness.wait_until(lambda: all(j["job"] != "evaluate" for j in self.d.jobs()), what="the end of the pass")
        return entries

    def check(self, entries):
        """Each sample once over the ranks; a masked row holds padding and counts for nothing."""
        masked = 0
        for batch in batches(sum(entries, [])):
            self.assertEqual(batch["rows"], 4, "every batch is full")
            for i, sample in enumerate(batch["ids"]):
                masked += sample < 0
                real = self.samples[sample] if sample >= 0 else []
                n = batch["width"] - len(real)
                self.assertEqual(rows_of(batch, "input_ids")[i], real + [0] * n)
                self.assertEqual(rows_of(batch, "attention_mask")[i], [1] * len(real) + [0] * n)
                self.assertEqual(rows_of(batch, "labels")[i], real + [-100] * n)
        seen = ids_of(sum(entries, []))
        self.assertEqual(sorted(seen), list(range(SAMPLES)))
        self.assertEqual(len({len(e) for e in entries}), 1, "equal steps on every rank")
        return masked

    def test_every_sample_comes_once_over_all_ranks_and_what_is_padded_is_masked(self):
        for world in (1, 2, 3):
            for group in ("group=fixed", "buckets=4"):
                masked = self.check(self.one_pass(world, group))
                self.assertEqual((SAMPLES + masked) % (4 * world), 0)
                self.assertLess(masked, 4 * world)

    def test_without_groups_the_stored_order_is_dealt_out_step_by_step(self):
        a, b = (batches(e) for e in self.one_pass(2, "group=fixed"))
        steps = [x["ids"] + y["ids"] for x, y in zip(a, b)]
        self.assertEqual([i for ids in steps for i in ids if i >= 0], list(range(SAMPLES)))
        self.assertNotIn(-1, sum(steps[:-1], []), "only the last step is padded")

    def test_three_passes_are_alike_to_the_byte_and_so_beside_a_train_job(self):
        alone = self.one_pass(2, "buckets=4")
        self.assertEqual([self.one_pass(2, "buckets=4") for _ in range(2)], [alone] * 2)
        train = self.attached(self.d, self.data, job="train", keys=["rows=8", "buckets=3", "epochs=0"])
        for _ in range(3):
            train.send("run", 300)  # meanwhile
            self.assertEqual(self.one_pass(2, "buckets=4"), alone)
            trained = train.receive(60)["entries"]
            self.assertEqual(len(trained), 300)


if __name__ == "__main__":
    harness.main()
