#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transforms from the shard to a client: labels, casts, keys; what is refused at attach, and quarantine.

Needs STOKER_BIN, STOKERD_BIN, STOKERCTL_BIN and TRAINER_BIN.
"""

import errno
import json
import os
import struct
import subprocess
import tempfile
import unittest

import harness

BIN = os.environ.get("STOKER_BIN", "stoker")
IDS = [[10, 11, 12, 13], [20, 21], [30, 31, 32], [40]]
MASK = [[0, 0, 1, 1], [1, 1], [0, 1, 0], [1]]
SCORE = [1.5, 300.0, -2.5, 65.0]
HEAD = "{name: %s, data: %s, group: fixed, order: none, rows: 4, multiple_of: 4, fields: [%s]"
STREAMS = {
    "labels": "{name: labels, from: ids, dtype: i64, pad: -100, shift: true, where: loss_mask}",
    "folded": "{name: ids, modulo: 7, dtype: u8}, {name: score, dtype: i8, range: saturate, scale: 2, bias: 1}",
    "keys": "{name: key, make: random_key}",
    "strict": "{name: score, dtype: u8, range: error}",
    "hidden": "{name: labels, from: ids, dtype: u8, range: error, bias: -11, pad: 200, where: loss_mask}",
    "lossy": "{name: ids, dtype: i8}",
    "uneven": "{name: score, scale: [1, 2]}",
    "masked": "{name: score, dtype: u8, range: error, pad: 9}, {name: who, make: sample_ids}",
}


class Transforms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.dir.cleanup)
        cls.shard = shard = os.path.join(cls.dir.name, "a.safetensors")
        tensors = dict(harness.ragged("ids", IDS, "I32"))
        tensors.update(harness.ragged("loss_mask", MASK, "U8"))
        tensors["score"] = ("F32", [4], struct.pack("<4f", *SCORE))
        harness.write_shard(shard, tensors)
        lines = ["streams:"]
        for name, fields in STREAMS.items():
            more = ", on_bad_sample: quarantine}" if name == "masked" else "}"
            lines.append("  - " + HEAD % (name, shard, fields) + ", length: ids" + more)
        cls.daemon = harness.Daemon(cls.dir.name, "\n".join(lines) + "\n")
        cls.addClassCleanup(cls.daemon.stop)

    def cat(self, stream, status=0):
        done = subprocess.run([BIN, "cat", stream, "--socket", self.daemon.socket, "--data", "--epochs", "1"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stderr if status else json.loads(done.stdout.splitlines()[0])

    def test_labels_are_the_next_tokens_that_the_mask_lets_through(self):
        self.assertEqual(self.values("labels", "labels"),
                         [-100, 12, 13, -100, 21, -100, -100, -100, 31, -100, -100, -100, -100, -100, -100, -100])

    def test_ids_fold_and_scores_saturate(self):
        self.assertEqual(self.values("folded", "ids"), [i % 7 for i in IDS[0]] + [6, 0, 0, 0, 2, 3, 4, 0, 5, 0, 0, 0])
        self.assertEqual(self.values("folded", "score"), [4, 127, -4, 127])

    def test_keys_are_the_same_in_each_job(self):
        first = self.values("keys", "key")
        self.assertEqual(first, self.values("keys", "key"))
        self.assertEqual(len(set(first)), 4)

    def test_a_value_that_the_mask_hides_may_be_out_of_range(self):
        self.assertEqual(self.values("hidden", "labels"),
                         [200, 200, 1, 2, 9, 10, 200, 200, 200, 20, 200, 200, 29, 200, 200, 200])

    def test_what_cannot_be_done_is_refused_at_attach(self):
        self.assertIn('field "ids": stored I32 may lose range as I8', self.cat("lossy", 1))
        self.assertIn('field "score": scale is a list of 2, and its elements have no channels', self.cat("uneven", 1))

    def test_what_is_wrong_with_an_op_is_said_at_attach_with_the_field(self):
        for field, says in (
                ("{name: ids, rotate: 3}", ["unknown field key", "rotate"]),
                ("{name: score, modulo: 7}", ['field "score"', "modulo is for whole numbers"]),
                ("{name: ids, shift: 1, where: score}", ["shift"]),
                ("{name: ids, where: score}", ['field "ids": where: "score"', 'the length field "ids"']),
                ("{name: score, scale: .inf}", ["scale", "a finite number"]),
                ("{name: score, bias: [1, .nan]}", ["bias", "a finite number"]),
                ("{name: loss_mask, dtype: f16, scale: 1e39}", ['field "loss_mask": scale or bias is beyond', "F32"]),
                ("{name: ids, scale: [1, 2, 3], dtype: f32}", ['field "ids": scale is a list of 3']),
                ("{name: ids, dtype: u8}", ['field "ids": stored I32 may lose range as U8', "range: error"]),
                ("{name: score, dtype: i64}", ['field "score": stored F32 may lose range as I64']),
                ("{name: score, dtype: f16, range: wrap}", ['field "score": range: wrap is for whole numbers']),
                ("{name: ids, crop: [1, 1]}", ['field "ids": crop', "samples of one shape"]),
                ("{name: score, flip: random}", ['field "score": crop, flip', 'a sample has 0 dimensions']),
                ("{name: ids, dtype: c64}", ['field "ids": stored I32 cannot become C64'])):
            t = harness.Trainer(["--socket", self.daemon.socket, "--job", "bad", "--path", self.shard,
                                 "rows=4", "length=ids", "fields=[%s]" % field])
            self.addCleanup(t.cleanup)
            self.assertEqual(t.hello["r"], -errno.EINVAL, (field, t.hello))
            for words in says:
                self.assertIn(words, t.error, field)

    def test_a_value_out_of_range_ends_the_stream_with_its_place(self):
        self.assertIn('sample 1 (row 1): field "score": a value of stored F32 does not fit U8', self.cat("strict", 1))

    def test_a_bad_sample_in_quarantine_is_a_masked_row_each_time(self):
        for _ in range(2):
            self.assertEqual(self.values("masked", "score"), [2, 9, 9, 65])
            self.assertEqual(self.values("masked", "who"), [0, -1, -1, 3])

    def test_masked_samples_are_listed_the_same_for_each_job_and_pass(self):
        lists = []
        for job, batches in (("one", 1), ("three", 3)):
            t = harness.Trainer(["--socket", self.daemon.socket, "--job", job, "--stream", "masked"])
            self.addCleanup(t.cleanup)
            self.assertEqual(t.hello["r"], 0, t.hello)
            self.daemon.wait_full(job)
            for _ in range(batches):
                t.do("next")
            reply = self.daemon.call("Quarantine", stream="masked", job=job)["jobs"]
            self.assertEqual([j["job"] for j in reply], [job])
            self.assertGreaterEqual(reply[0]["rows"], 2)
            self.assertFalse(reply[0]["more"])
            lists.append(reply[0]["samples"])
        self.assertEqual(lists[0], lists[1])
        self.assertEqual([(b["sample"], b["row"], b["field"], b["reason"]) for b in lists[0]],
                         [(s, s, "score", "a value of stored F32 does not fit U8") for s in (1, 2)])
        with open(lists[0][0]["shard"], "rb") as shard:
            for bad in lists[0]:
                shard.seek(bad["offset"])
                self.assertEqual(struct.unpack("<f", shard.read(4))[0], SCORE[bad["sample"]])
        ctl = [harness.need("stokerctl"), "--socket", self.daemon.socket, "quarantine", "masked", "one"]
        shown = subprocess.run(ctl, capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"masked +one +1 .*a\.safetensors +1 +\d+ +score +a value of stored F32")
        self.assertNotIn("three", shown.stdout)
        self.assertEqual(self.daemon.call("Quarantine", job="nobody"), {"jobs": []})
        for wrong in ({"stream": 5}, {"job": ["one"]}, {"stream": {}, "job": "one"}):
            with self.assertRaises(harness.Refused):
                self.daemon.call("Quarantine", **wrong)

    def test_the_log_names_masked_samples_when_their_job_ends(self):
        self.values("masked", "score")
        self.daemon.wait_log("field score: a value of stored F32 does not fit U8")
        self.daemon.wait_log("rows of these samples were masked")

    def values(self, stream, name):
        flat = self.cat(stream)["data"][name]
        while flat and isinstance(flat[0], list):
            flat = [x for row in flat for x in row]
        return flat


if __name__ == "__main__":
    unittest.main()
