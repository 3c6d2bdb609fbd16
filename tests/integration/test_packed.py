#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packed rows from plan to client: every token once and as stored, borders named, and resumed exactly."""
import json
import os
import subprocess
import unittest

import harness
from harness import Case, random_lengths

FIELDS = ("fields=[{name: input_ids, pad: -7}, {name: labels, from: input_ids, pad: -100, shift: true}, "
          "{name: mask, make: mask, dtype: u8}, {name: segment_ids, make: segment_ids}, "
          "{name: position_ids, make: position_ids, start: 2}, {name: cu, make: cu_seqlens}, "
          "{name: cu_padded, make: cu_seqlens_padded}, {name: longest, make: max_seqlen}, "
          "{name: lengths, make: lengths}, {name: ids, make: sample_ids}]")


class Packed(Case):
    def cat(self, d, path, *args, world=1, job="packed"):
        """What each rank prints: lists of batches."""
        ranks = [subprocess.Popen(
            [harness.need("stoker"), "cat", path, "--socket", d.socket, "--job", job, "--rank", str(rank),
             "--world", str(world), "--timeout", "60", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(world)]
        printed = []
        for p in ranks:
            out, err = p.communicate(timeout=120)
            self.assertEqual(p.returncode, 0, err)
            lines = [json.loads(line) for line in out.splitlines()]
            printed.append([line for line in lines if line["kind"] == "batch"])
        return printed

    def check_row(self, row, segments, data, samples, width, align):
        """The tensors of one row, a token at a time."""
        at = 0
        for number, (sample, begin, length) in enumerate(segments):
            at += -at % align
            end = at + length
            after = width if number + 1 == len(segments) else end + -end % align
            tokens = samples[sample][begin:begin + length]
            self.assertEqual(data["input_ids"][row][at:after], tokens + [-7] * (after - end))
            following = samples[sample][begin + 1:begin + length + 1]
            self.assertEqual(data["labels"][row][at:after], following + [-100] * (after - at - len(following)))
            self.assertEqual(data["mask"][row][at:after], [1] * length + [0] * (after - end))
            self.assertEqual(data["segment_ids"][row][at:after], [number + 1] * length + [0] * (after - end))
            self.assertEqual(data["position_ids"][row][at:after], list(range(2, 2 + after - at)))
            self.assertEqual(data["cu_padded"][self.segment], row * width + at)
            self.segment += 1
            at = end

    def check_batch(self, batch, samples, align=1):
        data, segments = batch["data"], batch["segments"]
        flat = [s for row in segments for s in row]
        self.segment = 0
        for row in range(batch["rows"]):
            self.check_row(row, segments[row], data, samples, batch["width"], align)
            if not segments[row]:
                self.assertEqual(data["input_ids"][row], [-7] * batch["width"])
                self.assertEqual(data["segment_ids"][row], [0] * batch["width"])
        sums = [sum(s[2] for s in flat[:i]) for i in range(len(flat) + 1)]
        self.assertEqual(data["cu"], sums)
        self.assertEqual(data["cu_padded"][-1], batch["rows"] * batch["width"] if flat else 0)
        self.assertEqual(data["longest"], [max((s[2] for s in flat), default=0)])
        self.assertEqual(data["lengths"], [s[2] for s in flat])
        self.assertEqual(data["ids"], [s[0] for s in flat])
        self.assertEqual(batch["sample_ids"], [s[0] for s in flat])
        self.assertEqual(batch["real_tokens"], sums[-1])
        return flat

    def check_epoch(self, ranks, samples, align=1):
        """Each token once over all ranks, and as many batches for each."""
        seen = {}
        self.assertEqual(len({len(rank) for rank in ranks}), 1)
        for rank in ranks:
            for batch in rank:
                for sample, begin, length in self.check_batch(batch, samples, align):
                    for token in range(begin, begin + length):
                        self.assertNotIn((sample, token), seen)
                        seen[sample, token] = True
        self.assertEqual(len(seen), sum(len(s) for s in samples))

    def test_rows_hold_every_token_once_with_its_borders(self):
        path, samples = self.dataset(random_lengths(300, high=150), shards=3)
        d = self.daemon()
        for number, keys in enumerate([
                ["group=pack", "max_length=128", "overlong=split", "rows=3", "window=50", "balance=cost"],
                ["group=pack", "max_length=160", "align=8", "rows=2", "segments_max=3", "accumulate=2"],
                ["group=pack", "flat=true", "tokens=512", "balance=cost", "window=100"],
                ["group=concat", "max_length=64", "rows=4"],
                ["group=concat", "max_length=64", "rows=4", "tail=pad"]]):
            align = 8 if "align=8" in keys else 1
            ranks = self.cat(d, path, "--data", FIELDS, *keys, world=3, job="job%d" % number)
            self.check_epoch(ranks, samples, align)

    def test_a_run_that_stops_after_every_step_gets_what_one_without_stops_gets(self):
        path, _ = self.dataset(random_lengths(60, high=120), shards=2)
        d = self.daemon()
        for number, keys in enumerate([
                ["group=pack", "max_length=128", "rows=2", "window=9", "balance=tokens"],
                ["group=pack", "flat=true", "tokens=300", "window=25", "balance=cost"],
                ["group=concat", "max_length=100", "rows=3", "overlap=1", "separator=true"]]):
            whole = self.cat(d, path, "--epochs", "2", *keys, job="whole%d" % number)[0]
            state = self.path("state%d" % number)
            pieces = []
            for step in range(len(whole)):
                pieces += self.cat(d, path, "--state", state, "--steps", "1", *keys,
                                   job="piece%d.%d" % (number, step))[0]
                self.assertLess(os.path.getsize(state), 200)
            self.assertEqual(pieces, whole)

    def test_what_cannot_be_packed_is_refused_with_the_reason(self):
        path, _ = self.dataset(random_lengths(20, low=50), shards=1)
        d = self.daemon()
        for keys, said in [
                (["group=concat"], "max_length is needed"),
                (["group=pack", "flat=true"], "flat needs tokens"),
                (["group=pack", "max_length=12", "align=8"], "align must divide"),
                (["group=pack", "max_length=40", "overlong=drop"], "no samples left"),
                (["group=pack", "max_length=128", "fields=[{name: input_ids, side: left}]"], "side: left"),
                (["fields=[{name: s, make: segment_ids}]"], "packed rows")]:
            self.assertIn(said, self.refused(d, path, keys=keys, job="refused"))


if __name__ == "__main__":
    unittest.main()
