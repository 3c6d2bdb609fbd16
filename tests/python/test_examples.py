# SPDX-License-Identifier: Apache-2.0
"""The examples: a model learns, and a run that was killed goes on with the very batches it would have had."""
import glob
import os
import random
import re
import signal
import subprocess
import sys

import common
import harness
from common import LoaderCase, needs_torch, torch

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../client/python/examples")


# torch 1.13 with Python 3.11 finds no word for "redirect nothing", which is its default.
TORCHRUN = ["-r", "1", "-t", "1"] if torch and torch.__version__ < "2" else []


def losses(text):
    return [float(loss) for loss in re.findall(r"step \d+ loss ([\d.]+)", text)]


class ExampleCase(LoaderCase):
    """Shards of made-up text, and examples as processes."""

    def setUp(self):
        super().setUp()
        self.private()
        words = "the cat sat on a mat and the dog ran to the red barn with nine blue hens".split()
        r = random.Random(1)
        with open(self.path("in.jsonl"), "w") as f:
            for _ in range(600):
                text = " ".join(r.choice(words) for _ in range(r.randint(4, 20)))
                f.write('{"question": "%s", "answer": "%s"}\n' % (text, text[::-1]))
        self.run_example("jsonl_to_shards.py", self.path("in.jsonl"), self.path("shards"))

    def start(self, name, *args, ranks=0, **popen):
        argv = [sys.executable] + (["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port",
                                    "29512", *TORCHRUN] if ranks else []) + [os.path.join(EXAMPLES, name), *map(str, args)]
        p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                             env=dict(os.environ, **self.environ, OMP_NUM_THREADS="1"), **popen)
        self.addCleanup(self.end_group, p)
        return p

    @staticmethod
    def end_group(p):
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait(harness.SLOW)
        p.stdout.close()
        if p.stderr:
            p.stderr.close()

    def run_example(self, name, *args, ranks=0, seconds=120):
        p = self.start(name, *args, ranks=ranks)
        out, err = p.communicate(timeout=seconds)
        self.assertEqual(p.returncode, 0, out + err)
        return out


@needs_torch
class Examples(ExampleCase):
    def ids(self, name):
        """{step: the line of each rank}; of a step that was run twice the later one."""
        found = {}
        for path in sorted(glob.glob(self.path(name) + ".*")):
            with open(path) as f:
                for line in f:
                    step, _, rest = line.partition(" ")
                    found.setdefault(int(step), {})[path[-1]] = rest
        return found

    def test_a_small_model_learns(self):
        out = losses(self.run_example("train_lm.py", self.path("shards"), "--steps", 30, "--tokens", 512, "--max-length", 64))
        self.assertLess(out[-1], out[0] - 1, out)

    def test_killed_and_resumed_under_torchrun_it_has_the_same_batches(self):
        args = [self.path("shards"), "--steps", 24, "--tokens", 256, "--max-length", 64, "--every", 8]
        whole = losses(self.run_example("train_lm.py", *args, "--ids", self.path("whole"), ranks=2))
        again = [*args, "--checkpoint", self.path("run.pt"), "--ids", self.path("parts")]
        p = self.start("train_lm.py", *again, ranks=2)
        harness.wait_until(lambda: len(self.ids("parts")) > 10, 60, "the first ten steps")
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        parts = losses(self.run_example("train_lm.py", *again, ranks=2))
        self.assertEqual(self.ids("parts"), self.ids("whole"))
        self.assertEqual(len(self.ids("whole")), 24)
        self.assertEqual(parts[-1], whole[-1], "the same loss to the last digit")


if __name__ == "__main__":
    common.main()
