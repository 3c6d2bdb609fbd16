# SPDX-License-Identifier: Apache-2.0
"""The extension under LeakSanitizer where the build has it, else under valgrind: no leak, no bad access."""
import os
import shutil
import subprocess
import sys

import common
import harness
from common import LoaderCase

CODE = common.PRELUDE + """
import gc
for i in range(3):
    l = loader(job="leak%d" % i, seed=i, lookahead=i, prefetch=8)
    start, it = l.state_dict(), iter(l)
    for b in it:
        b.sample_ids, b.lengths, b.state, b.row_first, dict(b), repr(b), type(b)(dict(b)), b.get("x"), list(b.items())
        memoryview(b["input_ids"]).release()
        t = b["input_ids"]; t.__dlpack__(), t.__dlpack__(max_version=(1, 0)), t.shape, t.dtype
    kept = next(iter(l)); l.load_state_dict(start); l.stats(); l.why(); l.info; l.shapes(); next(iter(l))
    for call in (lambda: loader(rows=-4), lambda: l.load_state_dict({"version": 1, "epoch": 0, "step": 0, "state": "00"}),
                 lambda: loader("/nonexistent/x"), lambda: l.state_dict(after={}), lambda: b["nothing"], lambda: b[[]]):
        try: call()
        except (stoker.Error, TypeError, KeyError): pass
        else: raise SystemExit("no error")
    l.close(); memoryview(kept["input_ids"]).tolist()
    del l, it, b, t, kept
from stoker._stoker import Writer
w = Writer(dir=sys.argv[1], fields=[("x", "i32", True, False, ())], force=True, samples_max=3, bytes_max=1000)
for n in range(9): w.row([bytes(4 * n)])
w.finish(); w.abort()
w = Writer(dir=sys.argv[1], fields=[("x", "i32", True, False, ())], force=True, samples_max=3, bytes_max=1000)
try: w.row([b"abc"])
except ValueError: pass
w.abort()
del w
gc.collect()
print("done", flush=True)
"""
# Of Python itself and its loader; what is ours has a frame in our files.
OURS = "client/python/ext", "client/", "_stoker.abi3"


class Leaks(LoaderCase):
    def run_under(self, argv, env):
        done = subprocess.run([*argv, sys.executable, "-c", CODE, self.path("written")], capture_output=True, text=True,
                              env=dict(os.environ, **self.environ, PYTHONMALLOC="malloc", **env), timeout=400)
        self.assertIn("done\n", done.stdout, done.stderr)
        return done

    def test_leak_sanitizer_finds_nothing(self):
        if not harness.is_sanitized(os.getpid()):
            self.skipTest("this build has no LeakSanitizer")
        options = {"ASAN_OPTIONS": "detect_leaks=1:fast_unwind_on_malloc=0"}
        done = self.run_under([], options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        leaks = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL(None).malloc(1000)"],
                               capture_output=True, text=True, env=dict(os.environ, PYTHONMALLOC="malloc", **options))
        self.assertIn("1000 byte(s)", leaks.stderr, "and it would")

    def test_valgrind_finds_nothing(self):
        if harness.is_sanitized(os.getpid()) or not shutil.which("valgrind"):
            self.skipTest("a sanitized build, or no valgrind")
        done = self.run_under(["valgrind", "--quiet", "--leak-check=full", "--show-leak-kinds=definite",
                               "--num-callers=30", "--fullpath-after="], {})
        blocks = done.stderr.split("== \n")
        self.assertEqual([b for b in blocks if any(o in b for o in OURS)], [])
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    common.main()
