# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer, accelerate and Lightning from PyPI, killed and resumed. Needs the network once."""
import os
import re
import signal
import subprocess
import sys

import common
import harness
from common import needs_torch
from test_examples import EXAMPLES, ExampleCase

# Versions that take Debian's torch 1.13; what they need, without torch itself.
PACKAGES = ["transformers==4.41.2", "accelerate==0.30.1", "pytorch-lightning==2.0.9.post0", "tokenizers<0.20",
            "huggingface-hub<0.25", "torchmetrics<1.3", "lightning-utilities", "safetensors", "regex", "pyyaml", "tqdm",
            "requests", "packaging", "filelock", "fsspec", "psutil", "typing-extensions", "certifi", "idna", "urllib3",
            "charset-normalizer"]


def interpreter():
    """A Python that has them (STOKER_FRAMEWORKS_PYTHON: with a torch of its own), or SkipTest."""
    if os.environ.get("STOKER_FRAMEWORKS_PYTHON"):
        return os.environ["STOKER_FRAMEWORKS_PYTHON"]
    folder = os.path.join(os.environ["STOKER_BUILD"], "frameworks")
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(os.path.join(folder, "complete")):
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--system-site-packages", folder], check=True,
                       capture_output=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES], capture_output=True,
                              text=True, timeout=400)
        if done.returncode:
            raise common.unittest.SkipTest("pip: " + done.stderr.strip().splitlines()[-1])
        open(os.path.join(folder, "complete"), "w").close()
    return python


@needs_torch
class Frameworks(ExampleCase):
    def start_with(self, name, *args):
        p = subprocess.Popen([interpreter(), os.path.join(EXAMPLES, name), *map(str, args)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, start_new_session=True,
                             env=dict(os.environ, **self.environ, OMP_NUM_THREADS="1"))
        self.addCleanup(self.end_group, p)
        return p

    def finish(self, p):
        out, _ = p.communicate(timeout=200)
        self.assertEqual(p.returncode, 0, out)
        return out

    def killed_and_resumed(self, name, there, pattern):
        """The lines with losses of a run in one piece, and of one that was killed once `there` was there."""
        whole = re.findall(pattern, self.finish(self.start_with(name, self.path("shards"), self.path("whole"), 40)))
        p = self.start_with(name, self.path("shards"), self.path("parts"), 40)
        harness.wait_until(lambda: os.path.exists(self.path("parts", there)), 120, there)
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        out = self.finish(self.start_with(name, self.path("shards"), self.path("parts"), 40))
        self.assertIn("trained to step 40", out)
        return whole, re.findall(pattern, out)

    def test_transformers_trainer_learns_and_goes_on_after_a_kill(self):
        whole, parts = self.killed_and_resumed("hf_trainer.py", "checkpoint-20/stoker-0.json", r"'loss': ([\d.]+)")
        self.assertEqual(len(whole), 4)
        self.assertLess(float(whole[-1]), float(whole[0]))
        self.assertEqual(parts, whole[-len(parts):], "the same losses to the last digit")

    def test_lightning_learns_and_goes_on_after_a_kill(self):
        found = subprocess.run([interpreter(), "-c", "import pytorch_lightning"], capture_output=True, text=True)
        if found.returncode:
            self.skipTest("Lightning does not start with this torch: " + found.stderr.strip().splitlines()[-1])
        whole, parts = self.killed_and_resumed("lightning.py", "last.ckpt", r"step (\d+) loss ([\d.]+) ids (.*)")
        whole = {step: rest for step, *rest in whole}
        self.assertGreaterEqual(len(parts), 1)
        for step, *rest in parts:
            if step in whole:
                self.assertEqual(rest, whole[step], "step " + step)
        self.assertTrue(any(step in whole for step, *_ in parts))

    def test_accelerate_takes_a_batch_as_it_is(self):
        code = common.PRELUDE + """
import torch
from accelerate.utils import send_to_device, find_batch_size
from accelerate import Accelerator
l = loader(as_="torch")
b = next(iter(l))
moved = send_to_device(b, torch.device("cpu"))
assert type(moved) is stoker.Batch and torch.equal(moved["labels"], b["labels"]) and moved.step == 0
assert find_batch_size(b) == b.rows
assert Accelerator(cpu=True).prepare(l) is l
print("fine")"""
        self.environ["STOKER_SOCKET"] = self.d.socket
        done = subprocess.run([interpreter(), "-c", code], capture_output=True, text=True,
                              env=dict(os.environ, **self.environ))
        self.assertEqual(done.stdout, "fine\n", done.stderr)


if __name__ == "__main__":
    common.main()
