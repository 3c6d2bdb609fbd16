# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer, accelerate, Lightning, torchdata, JAX and others from PyPI. Needs the network once."""
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
            "charset-normalizer", "jax==0.4.30", "jaxlib==0.4.30", "scipy<1.12", "ml_dtypes<0.5", "opt_einsum"]


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
        whole, parts = self.killed_and_resumed("hf_trainer.py", "checkpoint-20/stoker-0.json", r"'loss': '?([\d.]+)")
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

    def check(self, code, *needed, args=(), env=None, processes=1):
        """Runs code there that ends with "fine"; skipped without the modules that it needs."""
        for module in needed:
            found = subprocess.run([interpreter(), "-c", "import " + module], capture_output=True, text=True)
            if found.returncode:
                self.skipTest("%s: %s" % (module, found.stderr.strip().splitlines()[-1]))
        env = dict(os.environ, **self.environ, **(env or {}))
        ranks = [{"RANK": str(i)} for i in range(processes)] if processes > 1 else [{}]
        started = [subprocess.Popen([interpreter(), "-c", common.PRELUDE + code, *map(str, args)], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**env, **rank}) for rank in ranks]
        for p in started:
            out, err = p.communicate(timeout=120)
            self.assertEqual(out, "fine\n", err)

    def test_jax_arrays_lie_in_the_slot_and_keep_it(self):
        self.check("""
import gc
import jax, jax.numpy, numpy
l = loader(as_="jax", default_fields="torch", multiple_of=16)
b = next(iter(l)); host = [numpy.array(t) for t in b.values()]
assert all(isinstance(t, jax.Array) for t in b.values())
assert int(jax.numpy.sum(b["attention_mask"])) == b.real_tokens == int(b.lengths.sum())
try: b["input_ids"][0, 0] = 1
except TypeError: pass
else: raise SystemExit("written")
kept = b["input_ids"]; del b; gc.collect()
assert l.stats()["slots_held"] == 1, l.stats()
for other in iter(l): pass
del other
assert (numpy.asarray(kept) == host[0]).all()
l.close()
assert (numpy.asarray(kept) == host[0]).all()
l = loader(as_="jax", job="all", fields=[{"name": "input_ids", "dtype": "i32"}, {"name": "half", "from": "input_ids",
    "dtype": "bf16", "range": "saturate"}, {"name": "mask", "make": "mask", "dtype": "bool"}])
b = next(iter(l))
assert [str(t.dtype) for t in b.values()] == ["int32", "bfloat16", "bool"], [t.dtype for t in b.values()]
assert (b["input_ids"].astype("bfloat16") == b["half"]).all()
e = next(l.examples())
assert {k: t.dtype for k, t in e.items()} == {k: t.dtype for k, t in b.items()}
print("fine")""", "jax", env={"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"})

    def test_shards_open_with_the_safetensors_library(self):
        self.check("""
import numpy, torch, safetensors, safetensors.torch
out = sys.argv[1]
stoker.write(out, ({"ids": numpy.arange(n), "x": torch.full((2,), n, dtype=torch.bfloat16)} for n in range(1, 9)),
             fixed=["x"])
t = safetensors.torch.load_file(out + "/shard-00000.safetensors")
assert t["ids.offsets"].tolist() == [n * (n + 1) // 2 for n in range(9)]
assert t["ids.values"].tolist() == [i for n in range(1, 9) for i in range(n)]
assert torch.equal(t["x"], torch.arange(1, 9).repeat_interleave(2).reshape(8, 2).bfloat16())
print("fine")""", "safetensors.torch", args=[self.path("set")])

    def test_json_lines_become_shards_by_a_tokenizer(self):
        self.check("""
import json, tokenizers, runpy
from tokenizers import models, trainers, pre_tokenizers, Tokenizer
t = Tokenizer(models.BPE(unk_token="?")); t.pre_tokenizer = pre_tokenizers.Whitespace()
lines = [json.loads(line) for line in open(sys.argv[1])]
t.train_from_iterator([x["question"] for x in lines], trainers.BpeTrainer(vocab_size=200, special_tokens=["?"],
                                                                         show_progress=False))
t.save(sys.argv[2])
sys.argv = ["jsonl_to_shards.py", sys.argv[1], sys.argv[3], sys.argv[2]]
import io, contextlib
with contextlib.redirect_stdout(io.StringIO()) as said:
    runpy.run_path(os.environ["EXAMPLE"], run_name="__main__")
assert said.getvalue().strip() == sys.argv[2], said.getvalue()
l = loader(sys.argv[2], as_="numpy", group="fixed", order="none", buckets=None)
b = next(iter(l))
for row, n, sample in zip(b["input_ids"], b.lengths, b.sample_ids):
    x = lines[sample]
    assert row[:n].tolist() == t.encode(x["question"] + "\\n" + x["answer"]).ids
print("fine")""", "tokenizers", args=[self.path("in.jsonl"), self.path("t.json"), self.path("tokens")],
                   env={"EXAMPLE": os.path.join(EXAMPLES, "jsonl_to_shards.py")})

    def test_torchdata_saves_and_restores_it_as_a_node(self):
        self.check("""
from torchdata import nodes
def make(job): return nodes.Loader(nodes.IterableWrapper(loader(as_="torch", job=job)))
first = make("one"); it = iter(first)
for _ in range(5): next(it)
state = first.state_dict()
rest = [b.sample_ids.tolist() for b in it]
second = make("two"); second.load_state_dict(state)
assert [b.sample_ids.tolist() for b in second] == rest and len(rest) > 10
print("fine")""", "torchdata.nodes")

    def test_a_device_mesh_says_who_gets_what(self):
        self.check("""
import json, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
l = loader(as_="torch", rank=None, world_size=None, mesh=(mesh, "dp"), epochs=1)
seen = [b.sample_ids.tolist() for b in l]
everyone = [None] * 4
dist.all_gather_object(everyone, (seen, tuple(l.place)[:4]))
assert [p for _, p in everyone] == [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)], everyone
assert everyone[0][0] == everyone[1][0] and everyone[2][0] == everyone[3][0]
assert sorted(i for s in (everyone[0][0], everyone[2][0]) for ids in s for i in ids) == list(range(200))
dist.destroy_process_group()
print("fine")""", "torch.distributed.device_mesh", processes=4,
                   env={"WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29533"})

    def test_accelerate_takes_a_batch_as_it_is(self):
        self.check("""
import torch
from accelerate.utils import send_to_device, find_batch_size
from accelerate import Accelerator
l = loader(as_="torch")
b = next(iter(l))
moved = send_to_device(b, torch.device("cpu"))
assert type(moved) is stoker.Batch and torch.equal(moved["labels"], b["labels"]) and moved.step == 0
assert find_batch_size(b) == b.rows
assert Accelerator(cpu=True).prepare(l) is l
print("fine")""", "accelerate")


if __name__ == "__main__":
    common.main()
