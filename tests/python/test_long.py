# SPDX-License-Identifier: Apache-2.0
"""What takes its time: 100 kills, 10^5 batches with flat memory, thousands of attaches, a model on real text."""
import os

os.environ["STOKER_KILLS"] = "100"
os.environ["STOKER_FLAT_BATCHES"] = "100000"
os.environ["STOKER_ATTACHES"] = "5000"

import logging

import common
import harness
import stoker
from test_batches import Lifetime
from test_examples import ExampleCase, losses
from test_processes import Kills, Threads

SAMPLES = os.environ.get("STOKER_SAMPLES", os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                        "../../../shared/samples"))


class Waits(common.LoaderCase):
    def test_who_is_waited_for_is_logged_after_ten_seconds(self):
        l = self.loader(as_="dlpack", rank=0, world_size=1, replica=0, replicas=2, timeout=11)
        with self.assertLogs("stoker", logging.WARNING) as logged, self.assertRaises(TimeoutError):
            next(iter(l))
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ring: 1 of 2 seats", logged.output[0])


@common.needs_torch
class RealText(ExampleCase):
    def test_a_small_model_learns_from_grade_school_mathematics(self):
        path = os.path.join(SAMPLES, "text/gsm8k_test.jsonl")
        if not os.path.exists(path):
            self.skipTest("%s is not there" % path)
        if harness.is_sanitized(os.getpid()):
            self.skipTest("too slow under a sanitizer")
        self.run_example("jsonl_to_shards.py", path, self.path("text"))
        out = losses(self.run_example("train_lm.py", self.path("text"), "--steps", 200, "--tokens", 1024,
                                      "--max-length", 128, seconds=400))
        self.assertLess(sum(out[-3:]) / 3, 3.0, out)
        self.assertGreater(out[0], 5)


def load_tests(loader, tests, pattern):
    return common.unittest.TestSuite([
        loader.loadTestsFromTestCase(Waits), loader.loadTestsFromTestCase(Kills),
        loader.loadTestsFromTestCase(RealText), Lifetime("test_memory_and_references_stay_flat"),
        Threads("test_attaching_again_and_again_leaves_nothing")])


if __name__ == "__main__":
    common.main()
