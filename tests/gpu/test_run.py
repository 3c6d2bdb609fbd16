# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run without a GPU: its programs on the stand-in for the CUDA runtime."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest


class Run(unittest.TestCase):
    def setUp(self):
        d = tempfile.TemporaryDirectory()
        self.addCleanup(d.cleanup)
        self.tree, self.json = os.path.join(d.name, "tree"), os.path.join(d.name, "out.json")
        for link, to in (("bin/pipeline", "GPU_PIPELINE"), ("bin/facts", "GPU_FACTS"), ("stoker/bin/stokerd", "STOKERD_BIN")):
            path = os.path.join(self.tree, link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.environ[to], path)

    def start(self, *args, **env):
        env = dict(os.environ, GPU_ANYWAY="1", GPU_QUICK="512", **env)
        env.pop("STOKERD", None)
        return subprocess.Popen([os.environ["GPU_RUN"], "--prebuilt", self.tree, "--json", self.json, *args], env=env,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, *args, status=0, **env):
        """(the table, what the file holds)"""
        with self.start(*args, **env) as p:
            out, _ = p.communicate(timeout=100)
        self.assertEqual(p.returncode, status, out)
        return out, self.read()

    def read(self):
        if not os.path.exists(self.json):
            return None
        with open(self.json) as f:
            return json.load(f)

    def parts(self):
        return [part for program in ("GPU_PIPELINE", "GPU_FACTS") for part in
                subprocess.check_output([os.environ[program], "--parts"], text=True).split()]

    def test_every_part_runs_and_is_written_down(self):
        out, told = self.finish(STANDIN_LAX="1")
        self.assertEqual(list(told["parts"]), self.parts())
        self.assertTrue(told["complete"] and told["ok"])
        for row in told["rows"]:
            self.assertIn(f"{row['row']:44}  {row['text']}\n", out)
        self.assertEqual(sorted({row["part"] for row in told["rows"]}), sorted(self.parts()))
        words = [row["text"] for row in told["rows"] if "wrong words" in row["text"]]
        self.assertEqual(len(words), 5)
        for text in words:
            self.assertIn(" 0 wrong words", text)
        self.assertGreater(next(row["figures"]["in_place_gbs"] for row in told["rows"] if row["part"] == "bandwidth"), 0)

    def test_a_part_that_hangs_costs_itself_and_nothing_else(self):
        out, told = self.finish(status=1, STANDIN_DELAY_US="60000000", GPU_LIMIT_S="1", GPU_PARTS="turnaround epoch attributes")
        self.assertTrue(told["complete"] and not told["ok"])
        self.assertEqual([(row["part"], "timed out" in row["text"]) for row in told["rows"]],
                         [("epoch", True), ("turnaround", True), ("attributes", False), ("attributes", False)], out)
        self.assertLess(told["seconds"], 60)

    def test_a_part_that_crashes_is_named_with_how_it_ended(self):
        _, told = self.finish(status=1, GPU_PARTS="early-release read-only sharing attributes")
        by_part = {row["part"]: row for row in told["rows"]}
        for part in "early-release", "read-only":  # what the strict stand-in does not bear
            self.assertEqual(by_part[part]["text"], "ended with status 134")
        self.assertTrue(by_part["sharing"]["ok"] and by_part["attributes"]["ok"])

    def test_an_error_of_the_runtime_is_named_and_the_next_part_runs(self):
        _, told = self.finish(status=1, STANDIN_FAIL="cudaHostAlloc:2:9:2", GPU_PARTS="bandwidth epoch")
        by_part = {row["part"]: row for row in told["rows"]}
        self.assertIn("cudaErrorMemoryAllocation", by_part["bandwidth"]["text"])
        self.assertTrue(by_part["epoch"]["ok"])

    def test_a_program_that_cannot_begin_costs_its_own_parts(self):
        _, told = self.finish(status=1, STANDIN_FAIL="cudaMemcpyAsync:1:9:700", GPU_PARTS="epoch turnaround attributes")
        by_part = {row["part"]: row for row in told["rows"]}
        self.assertIn("cudaMemcpyAsync", by_part["epoch"]["text"])
        _, told = self.finish(status=1, STANDIN_FAIL="cudaHostAlloc:1:9:2", GPU_PARTS="epoch attributes")
        by_part = {row["part"]: row for row in told["rows"]}
        self.assertIn("cudaErrorMemoryAllocation", by_part["start"]["text"])
        self.assertTrue(by_part["attributes"]["ok"])
        self.assertNotIn("epoch", told["parts"])

    def test_wrong_bytes_fail_the_run(self):
        path = os.path.join(self.tree, "bin", "pipeline")
        os.remove(path)
        with open(path, "w") as f:  # one word of the data is another
            f.write('#!/bin/bash\n"$GPU_PIPELINE" "$@" && [[ $1 == --write ]] || exit\n'
                    'printf "\\x7f\\x7f\\x7f" | dd of="$2" bs=1 seek=$((2 << 20)) conv=notrunc status=none\n')
        os.chmod(path, 0o755)
        _, told = self.finish(status=1, GPU_PARTS="epoch")
        self.assertIn(" 1 wrong words", told["rows"][0]["text"])
        self.assertFalse(told["ok"])

    def test_an_end_from_outside_leaves_what_was_done(self):
        with self.start(STANDIN_DELAY_US="60000000", GPU_PARTS="attributes epoch graphs", GPU_SECONDS="60") as p:
            time.sleep(1)
            p.send_signal(signal.SIGTERM)
            out, _ = p.communicate(timeout=20)
        self.assertEqual(p.returncode, 1, out)
        self.assertFalse(self.read()["complete"])

    def test_when_time_is_up_the_rest_is_named(self):
        _, told = self.finish(status=1, STANDIN_DELAY_US="60000000", GPU_SECONDS="5", GPU_PARTS="epoch graphs attributes")
        self.assertEqual([(row["part"], row["text"]) for row in told["rows"]],
                         [("epoch", "killed: out of time"), ("graphs", "not run: out of time"),
                          ("attributes", "not run: out of time")])

    def test_without_a_device_it_says_so(self):
        out, told = self.finish(status=77, STANDIN_DEVICES="0")
        self.assertIn("SKIP: no CUDA device", out)
        self.assertIsNone(told)


if __name__ == "__main__":
    unittest.main()
