#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stoker plan` as a process: its table, its recipes, and what it refuses.

Needs STOKER_BIN, the built `stoker`.
"""

import json
import os
import random
import struct
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

BIN = os.environ.get("STOKER_BIN", "stoker")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLES = os.environ.get("STOKER_SAMPLES", os.path.join(ROOT, "..", "shared", "samples"))
OPENCHAT = os.path.join(SAMPLES, "lengths", "openchat_v1.json")
GSM8K = os.path.join(SAMPLES, "text", "gsm8k_train.jsonl")

HASH = "92c11112392c5980adfc651fc58b4312"


def stoker(*args, **kwargs):
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60, **kwargs)


class Plan(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        draw = random.Random(7)
        self.lengths = [draw.randrange(1, draw.randrange(2, 400)) for _ in range(1000)]
        self.file = self.write("lengths.json", json.dumps(self.lengths))

    def write(self, name, text):
        path = os.path.join(self.dir.name, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def plan(self, *args, **kwargs):
        done = stoker("plan", "--lengths", self.file, *args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, status, text, *args):
        done = stoker("plan", *args)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_the_table_adds_up(self):
        report = json.loads(self.plan("buckets=4", "multiple_of=8", "rows=8", "--world", "2", "--json"))
        self.assertEqual(report["samples"], 1000)
        self.assertEqual(report["tokens"], sum(self.lengths))
        self.assertEqual(report["lengths"]["longest"], max(self.lengths))
        self.assertEqual(report["lengths"]["p50"], sorted(self.lengths)[499])
        names = [p["name"] for p in report["policies"]]
        self.assertEqual(names, ["one size", "powers of two", "uniform", "quantile", "kmeans", "optimal", "packed"])
        for policy in report["policies"][:6]:
            edges = policy["edges"]
            padded = sum(min(e for e in edges if e >= n) for n in self.lengths)
            self.assertEqual(policy["padded_tokens"], padded)
            self.assertAlmostEqual(policy["padding"], 1 - sum(self.lengths) / padded, places=5)
            self.assertEqual(policy["classes"], len(edges))
        optimal = report["policies"][5]
        self.assertEqual(min(p["padded_tokens"] for p in report["policies"][2:6]), optimal["padded_tokens"])
        self.assertEqual([c["edge"] for c in report["classes"]], optimal["edges"])
        self.assertEqual(report["epoch"]["steps"], optimal["steps"])

    def test_edges_that_were_written_are_read_back(self):
        out = os.path.join(self.dir.name, "edges.json")
        first = json.loads(self.plan("buckets=5", "bucket_method=kmeans", "--edges-out", out, "--json"))
        again = json.loads(self.plan("edges=" + out, "--json"))
        self.assertEqual(first["classes"], again["classes"])
        self.assertEqual(first["epoch"], again["epoch"])

    def test_a_spec_may_be_a_file_with_words_over_it(self):
        self.write("edges.json", "[100, 400]")
        spec = self.write("spec.yaml", "rows: 4\nedges: edges.json\norder: block\n")
        done = stoker("plan", spec, "--lengths", self.file, "rows=8", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([(c["edge"], c["rows"]) for c in report["classes"]], [(100, 8), (400, 8)])
        self.assertEqual(report["spec"]["order"], "block")
        self.refused(2, "data is missing", spec)

    def npy(self, descr, shape, data, name="x.npy"):
        header = ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, shape)).encode()
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
        path = os.path.join(self.dir.name, name)
        with open(path, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)
        return path

    def test_lengths_that_are_all_equal_are_remarked_upon(self):
        same = self.write("same.json", "[7, 7, 7]")
        self.assertIn("all samples have length 7", stoker("plan", "--lengths", same).stderr)
        self.assertNotIn("all samples", stoker("plan", "--lengths", same, "buckets=1").stderr)

    def test_samples_left_out_are_counted(self):
        text = self.plan("keep={min_length: 10}")
        self.assertIn("%d samples left out by keep" % sum(n < 10 for n in self.lengths), text)

    def test_lengths_come_from_numpy_files(self):
        want = json.loads(self.plan("--json"))
        for descr, form in (("<i8", "q"), ("<u2", "H"), ("<i4", "i")):
            data = struct.pack("<%d%s" % (len(self.lengths), form), *self.lengths)
            done = stoker("plan", "--lengths", self.npy(descr, "(%d,)" % len(self.lengths), data), "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["policies"], want["policies"])

    def test_bad_numpy_files_are_refused(self):
        for text, path in (("whole numbers", self.npy("<f4", "(1,)", bytes(4), "a.npy")),
                           ("one dimension", self.npy("<i4", "(1, 1)", bytes(4), "b.npy")),
                           ("ends before", self.npy("<i4", "(99999999999,)", bytes(4), "c.npy")),
                           ("element 1 is not", self.npy("<i4", "(2,)", struct.pack("<ii", 3, -1), "d.npy"))):
            self.refused(1, text, "--lengths", path)
        with open(path, "wb") as f:
            f.write(b"\x93NUM")
        self.refused(1, "not a NumPy file", "--lengths", path)

    def test_the_plot_is_a_picture_with_every_policy_and_edge(self):
        out = os.path.join(self.dir.name, "out.svg")
        self.plan("buckets=4", "--plot", out)
        with open(out) as file:
            svg = file.read()
        xml.etree.ElementTree.fromstring(svg)
        for name in ("uniform", "quantile", "kmeans", "optimal", "packed"):
            self.assertIn(name, svg)
        self.assertEqual(svg.count('class="edge"'), 4)
        self.refused(1, "--plot: /nowhere/x.svg", "--lengths", self.file, "--plot", "/nowhere/x.svg")

    def test_text_and_json_tell_the_same(self):
        args = ["edges=[100, 200]", "overlong=drop", "tokens=2000"]
        report = json.loads(self.plan(*args, "--json"))
        text = self.plan(*args)
        self.assertIn("%d steps an epoch" % report["epoch"]["steps"], text)
        self.assertIn("%.1f %%" % (100 * report["epoch"]["padding"]), text)
        self.assertIn("%d samples longer than 200 dropped" % report["epoch"]["overlong_dropped"], text)
        self.assertEqual(report["epoch"]["overlong_dropped"], sum(n > 200 for n in self.lengths))
        self.assertIn("as given", text)

    def test_one_hash_stands_for_the_recipes_of_an_epoch(self):
        keys = ["global_rows=16", "buckets=4", "multiple_of=8", "seed=5"]
        whole = self.plan("--hash", *keys).strip()
        self.assertEqual(whole, HASH, "sequences are the same on every machine and release")
        for world in 2, 4, 8:
            self.assertEqual(self.plan("--hash", "--world", str(world), *keys).strip(), whole)
        others = [self.plan("--hash", *args).strip() for args in (
            [*keys, "--epoch", "1"], [*keys[:3], "seed=6"], [*keys, "tail=pad"], [*keys, "pad_to=edge"],
            ["group=pack", "max_length=400"], ["group=pack", "max_length=400", "--world", "2"])]
        self.assertEqual(len({whole, *others}), 7, "whatever differs has another one")
        self.assertEqual(json.loads(self.plan("--json", *keys))["epoch"]["hash"], whole)
        self.assertIn("recipes of epoch 0: hash " + whole, self.plan(*keys))
        elsewhere = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8"}
        self.assertEqual(self.plan("--hash", *keys, env=elsewhere).strip(), whole)
        self.refused(2, "--hash does not go with --json", "--lengths", self.file, "--hash", "--json")

    def test_recipes_of_all_ranks_are_the_epoch(self):
        args = ["tokens=1500", "accumulate=2", "--world", "3"]
        steps = json.loads(self.plan(*args, "--json"))["epoch"]["steps"]
        whole = [json.loads(line) for line in
                 self.plan(*args, "--steps", "0:%d" % steps, "--show").splitlines()]
        self.assertEqual(len(whole), steps)
        self.assertEqual(sorted(i for s in whole for i in s["ids"]), list(range(1000)))
        parts = [self.plan(*args, "--steps", "0:%d" % steps, "--rank", str(r), "--show").splitlines()
                 for r in range(3)]
        for s in whole:
            mine = [json.loads(lines[2 * s["step"] + m]) for lines in parts for m in range(2)]
            self.assertEqual([i for p in mine for i in p["ids"]], s["ids"])
            self.assertEqual([(p["rank"], p["micro"]) for p in mine],
                             [(r, m) for r in range(3) for m in range(2)])
            for p in mine:
                self.assertEqual(p["width"], s["width"])
                self.assertEqual(p["rows_real"], len(p["ids"]))
                self.assertLessEqual(p["rows"] * p["width"], 1500)

    def test_steps_go_on_into_the_next_epoch(self):
        args = ["rows=100"]
        lines = [json.loads(line) for line in self.plan(*args, "--steps", "8:12").splitlines()]
        self.assertEqual([(s["epoch"], s["step"]) for s in lines], [(0, 8), (0, 9), (1, 0), (1, 1)])
        again = self.plan(*args, "--epoch", "1", "--steps", "0:2").splitlines()
        self.assertEqual([json.loads(line) for line in again], lines[2:])

    def test_lengths_may_stand_in_an_object_or_on_standard_input(self):
        text = json.dumps({"lengths": self.lengths})
        done = stoker("plan", "--lengths", "-", "--steps", "0:3", "--show", input=text)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.plan("--steps", "0:3", "--show"))

    def test_packed_rows_hold_every_token_once(self):
        for args in [["group=pack", "max_length=128", "overlong=split", "window=100"],
                     ["group=concat", "max_length=128"],
                     ["group=pack", "flat=true", "tokens=1024", "balance=cost"]]:
            args += ["rows=4"] if "flat=true" not in args else []
            args += ["--world", "3"]
            report = json.loads(self.plan(*args, "--json"))
            packing = report["packing"]
            steps = report["epoch"]["steps"]
            lines = [json.loads(line) for line in
                     self.plan(*args, "--steps", "0:%d" % steps, "--show").splitlines()]
            rows = [row for line in lines for row in line["segments"]]
            seen = {}
            for row in rows:
                self.assertLessEqual(sum(s[2] for s in row), packing["row_length"])
                for sample, begin, length in row:
                    seen.setdefault(sample, set()).update(range(begin, begin + length))
            self.assertEqual(sum(len(s) for s in seen.values()), sum(self.lengths))
            self.assertEqual(sum(s[2] for row in rows for s in row), sum(self.lengths))
            self.assertEqual(packing["rows"], len(rows) + packing["masked"])
            self.assertLessEqual(packing["rows_least"], packing["rows"])
            self.assertAlmostEqual(packing["efficiency"],
                                   sum(self.lengths) / (packing["rows"] * packing["row_length"]), places=5)
            text = self.plan(*args)
            self.assertIn("%d rows of %d" % (packing["rows"], packing["row_length"]), text)
            # The ranks' parts are the step.
            for rank in range(3):
                part = json.loads(self.plan(*args, "--steps", "0:1", "--rank", str(rank), "--show"))
                for row in part["segments"]:
                    self.assertIn(row, lines[0]["segments"])

    @unittest.skipUnless(os.path.exists(OPENCHAT), "no lengths of real samples at " + OPENCHAT)
    def test_real_samples_pack_as_they_should(self):
        def packing(*args):
            done = stoker("plan", "--lengths", OPENCHAT, "group=pack", *args, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        whole = packing("max_length=2048", "window=0")["packing"]
        self.assertEqual(whole["rows_least"], 4650)
        self.assertLessEqual(whole["rows"], 4673)
        self.assertEqual("%.2f" % (100 * whole["efficiency"]), "99.49")
        self.assertGreaterEqual(packing("max_length=2048", "window=1024")["packing"]["efficiency"], 0.992)
        flat = packing("flat=true", "tokens=32768", "window=0", "balance=cost", "--world", "8")
        self.assertEqual(flat["epoch"]["steps"], 37)
        self.assertEqual("%.2f" % (100 * flat["packing"]["efficiency"]), "98.16")
        self.assertLess(flat["packing"]["cost_lag"]["mean"], 400)

    def test_wrong_usage_ends_with_2(self):
        self.refused(2, "no PATH")
        self.refused(2, 'did you mean "buckets"', "--lengths", self.file, "bucket=3")
        self.refused(2, "rows", "--lengths", self.file, "rows=0")
        self.refused(2, "--world", "--lengths", self.file, "--world", "0")
        self.refused(2, "--rank: 2 must be below --world 2", "--lengths", self.file, "--world", "2",
                     "--rank", "2", "--steps", "0:1")
        self.refused(2, "--steps", "--lengths", self.file, "--steps", "5:5")
        self.refused(2, "not both", "--lengths", self.file, self.dir.name)
        self.refused(2, "unknown option", "--lengths", self.file, "--frobnicate")

    def test_bad_data_and_refused_plans_end_with_1(self):
        for text, said in [("[]", "no samples"), ("[1, -2]", "element 1 is -2"),
                           ("[1, 2.5]", "element 1 is 2.5"), ("[4294967296]", "element 0"),
                           ("[1,", "bad.json:1"), ("7", "bad.json:1"),
                           ('{"x": [1]}', "neither an array")]:
            self.refused(1, said, "--lengths", self.write("bad.json", text))
        self.refused(1, "nowhere", "--lengths", os.path.join(self.dir.name, "nowhere"))
        self.refused(1, "nowhere", os.path.join(self.dir.name, "nowhere"))
        self.refused(1, "tokens: budget 20 is smaller", "--lengths", self.file, "tokens=20")
        self.refused(1, "an epoch would have no step", "--lengths", self.file, "--world", "2000")
        self.refused(1, "overlong: sample", "--lengths", self.file, "overlong=error", "max_length=100")
        self.refused(1, "an epoch has", "--lengths", self.file, "--steps", "99999:100000")

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN, "plan", "--lengths", self.file], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)

    @unittest.skipUnless(os.path.exists(GSM8K), "no gsm8k sample at " + GSM8K)
    def test_real_text_costs_what_it_should(self):
        shards = os.path.join(self.dir.name, "gsm8k")
        done = stoker("write", "--text", "question,answer", GSM8K, "-o", shards)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = stoker("plan", shards, "buckets=8", "multiple_of=8", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        padding = {p["name"]: "%.1f" % (100 * p["padding"]) for p in report["policies"]}
        self.assertEqual(report["samples"], 7473)
        self.assertEqual(padding["one size"], "69.1")
        self.assertEqual(padding["optimal"], "10.7")


if __name__ == "__main__":
    unittest.main()
