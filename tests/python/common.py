# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: a daemon of their own, loaders on it, and scripts as processes.

Run by /usr/bin/python3 with the build's package and tests/integration on PYTHONPATH.
"""
import os
import subprocess
import sys
import unittest

import harness
from harness import SLOW, Case, random_lengths  # noqa: F401

try:
    import torch
    torch.set_num_threads(1)
except ImportError:
    torch = None

import stoker

needs_torch = unittest.skipUnless(torch, "torch is not installed")


class Script:
    """Python code in a process of its own; stderr apart."""

    def __init__(self, code, *args, env=None, **popen):
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=dict(os.environ, **(env or {})), bufsize=0, **popen)

    @property
    def pid(self):
        return self.process.pid

    def line(self, seconds=SLOW):
        return harness.read_line(self.process.stdout, seconds, "the script").strip()

    def end(self, seconds=SLOW):
        """(exit status, stdout, stderr)"""
        out, err = self.process.communicate(timeout=seconds)
        out = getattr(self.process.stdout, "rest", b"") + out
        return self.process.returncode, out.decode(), err.decode()

    def cleanup(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SLOW)
        self.process.stdout.close()
        self.process.stderr.close()


class LoaderCase(Case):
    """self.data: 200 samples of 1 to 90 tokens; self.loader(): on a daemon of this test."""

    lengths = random_lengths(200)
    keys = {"rows": 4, "buckets": 4, "prefetch": 4, "seed": 3}

    def setUp(self):
        super().setUp()
        self.data, self.samples = self.dataset(self.lengths)
        self.d = self.daemon()
        self.environ = {"STOKER_SOCKET": self.d.socket, "STOKER_DATA": self.data}

    def loader(self, job="job", **options):
        options = {**self.keys, **options}
        l = stoker.Loader(options.pop("data", self.data), daemon="system", socket=self.d.socket, job=job, **options)
        self.addCleanup(l.close)
        return l

    def script(self, code, *args, env=None, **popen):
        s = Script(PRELUDE + code, *args, env=dict(self.environ, **(env or {})), **popen)
        self.addCleanup(s.cleanup)
        return s

    def private(self):
        """From now on private daemons live in this test's folder, and end with it."""
        run = self.path("run")
        os.makedirs(run, exist_ok=True)
        os.chmod(run, 0o700)
        self.environ.update(XDG_RUNTIME_DIR=run, STOKERD=harness.need("stokerd"))
        return run


PRELUDE = """
import os, signal, sys, threading, time
import stoker
def loader(data=os.environ["STOKER_DATA"], **options):
    options = {"rows": 4, "buckets": 4, "prefetch": 4, "seed": 3, "job": "job", "as_": "dlpack", **options}
    if not options.pop("private", False):
        options.update(daemon="system", socket=os.environ["STOKER_SOCKET"])
    return stoker.Loader(data, **options)
"""


def ids(batch):
    """Sample ids of a batch of any framework, as a list."""
    return memoryview(batch.sample_ids).tolist() if isinstance(batch.sample_ids, stoker.Tensor) \
        else batch.sample_ids.tolist()


def main():
    harness.main()
