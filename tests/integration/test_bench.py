#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stoker bench` as a process: its figures are there and fit each other; how fast is not asked.

Needs STOKER_BIN and STOKERD_BIN.
"""

import json
import os
import subprocess
import tempfile
import unittest

import harness

BIN = os.environ.get("STOKER_BIN", "stoker")
MAKE_DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "make_data")
STREAMS = """
streams:
  - name: triple
    data: %(data)s
    rows: 16
    buckets: 4
    fields:
      - {name: input_ids, dtype: i64}
      - {name: attention_mask, make: mask, dtype: i64}
      - {name: labels, from: input_ids, dtype: i64, pad: -100}
  - {name: made, data: %(data)s, rows: 16, fields: [{name: n, make: lengths}]}
  - {name: short, data: %(data)s, rows: 16, epochs: 1}
"""


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.dir.cleanup)
        subprocess.run([MAKE_DATA, cls.dir.name, "--sets", "M", "--scale", "0.004"], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        cls.daemon = harness.Daemon(cls.dir.name, STREAMS % {"data": os.path.join(cls.dir.name, "M")},
                                    ["--workers", "1"])
        cls.addClassCleanup(cls.daemon.stop)

    def bench(self, *args, status=0):
        done = subprocess.run([BIN, "bench", *args], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def measured(self, *args):
        return self.bench(*args, "--socket", self.daemon.socket, "--rounds", "2", "--seconds", "0.1")

    def figures(self, *args):
        report = json.loads(self.measured(*args, "--json"))
        return report, {name: f["median"] for name, f in report["figures"].items()}

    def test_the_figures_fit_each_other(self):
        report, f = self.figures("triple")
        self.assertIsNone(report["no_limit"])
        self.assertEqual((report["ranks"], report["replicas"], report["rounds"]), (1, 1, 2))
        self.assertGreater(f["real_tokens_per_s"], 0)
        # Three values of eight bytes for each padded token, and gaps of at most 255 bytes between.
        self.assertGreaterEqual(f["bytes_per_s"], 0.99 * 24 * f["padded_tokens_per_s"])
        self.assertLess(f["bytes_per_s"], 1.1 * 24 * f["padded_tokens_per_s"])
        self.assertAlmostEqual(f["padding"], 1 - f["real_tokens_per_s"] / f["padded_tokens_per_s"], 1)
        self.assertLessEqual(f["next_p50_ns"], f["next_p99_ns"])
        self.assertLessEqual(f["next_p99_ns"], f["next_p999_ns"])
        for name in ("bare_one_bytes_per_s", "assembly_one_bytes_per_s", "bare_all_bytes_per_s",
                     "assembly_all_bytes_per_s", "ratio_bare_one", "ratio_assembly_one",
                     "daemon_cpu_s_per_mtok", "futex_p50_ns", "first_batch_s", "daemon_anon_bytes"):
            self.assertGreater(f[name], 0, name)

    def test_several_ranks_and_seats_are_counted_together(self):
        report, f = self.figures("triple", "--ranks", "2", "--replicas", "2", "--no-limit")
        self.assertEqual(report["no_limit"], "--no-limit")
        self.assertGreater(f["samples_per_s"], 0)
        self.assertNotIn("bare_one_bytes_per_s", f)
        # A batch is given to both seats of a rank, and written once.
        self.assertLess(f["bytes_per_s"], 0.6 * 24 * f["padded_tokens_per_s"])

    def test_a_stream_without_a_bare_loop_says_so(self):
        self.assertIn('no bare loop for this stream: field "n" is made', self.measured("made"))

    def test_a_stream_that_ends_is_no_figure(self):
        done = self.bench("short", "--socket", self.daemon.socket, status=1)
        self.assertIn("the stream ended; epochs=0", done)

    def test_two_runs_are_compared_by_their_ratios(self):
        paths = [os.path.join(self.dir.name, name) for name in ("a.json", "b.json")]
        for path, rate in zip(paths, (1000.0, 1500.0)):
            with open(path, "w") as out:
                json.dump({"figures": {"samples_per_s": {"median": rate, "min": 1, "max": 2}}}, out)
        lines = self.bench("--compare", *paths).splitlines()
        self.assertEqual(lines[1].split(), ["samples", "1.0", "1.5", "k/s", "1.500"])
        with open(paths[0], "w") as out:
            out.write("[]")
        self.assertIn("a.json: no output of stoker bench --json",
                      self.bench("--compare", *paths, status=1))

    def test_wrong_usage_names_option_and_range(self):
        self.assertIn("--ranks 0: a number from 1 to 256", self.bench("x", "--ranks", "0", status=2))
        self.assertIn("--rounds 1.5: a whole number", self.bench("x", "--rounds", "1.5", status=2))
        self.assertIn("usage:", self.bench(status=2))
        self.assertIn("usage:", self.bench("--compare", "a", status=2))


if __name__ == "__main__":
    unittest.main()
