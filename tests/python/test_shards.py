# SPDX-License-Identifier: Apache-2.0
"""stoker.write and stoker.cache: what lies on the disk, what is refused, and who writes."""
import json
import os
import struct
import subprocess
import time

import common
import harness
import stoker
from common import LoaderCase, needs_torch, torch

try:
    import numpy
except ImportError:
    numpy = None


def read(path):
    """{tensor: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}


@common.unittest.skipUnless(numpy, "numpy is not installed")
class Write(LoaderCase):
    def test_a_set_is_what_the_command_line_writes(self):
        out = self.path("set")
        totals = stoker.write(out, ({"input_ids": numpy.array(s, numpy.int32)} for s in self.samples))
        self.assertEqual((totals["samples"], totals["elements"]), (200, sum(map(len, self.samples))))
        with open(self.path("in.jsonl"), "w") as f:
            for s in self.samples:
                f.write(json.dumps({"ids": s}) + "\n")
        stoker_ = harness.need("stoker")
        subprocess.run([stoker_, "write", "--ids", "ids", self.path("in.jsonl"), "-o", self.path("same")], check=True,
                       capture_output=True)
        for name in os.listdir(out):
            with open(os.path.join(out, name), "rb") as a, open(self.path("same", name), "rb") as b:
                self.assertEqual(a.read(), b.read(), name)
        subprocess.run([stoker_, "verify", out], check=True, capture_output=True)

    def test_fixed_ragged_and_single_values_of_any_source(self):
        samples = [{"ids": list(range(n)), "image": numpy.full((2, 3), n, numpy.uint8), "score": n / 2,
                    "frames": numpy.ones((n, 4), numpy.float32), "text": "x" * n} for n in range(1, 6)]
        stoker.write(self.path("set"), samples, fixed=["image"])
        t = read(self.path("set", "shard-00000.safetensors"))
        self.assertEqual({k: v[:2] for k, v in t.items()}, {
            "ids.values": ("I64", [15]), "ids.offsets": ("I64", [6]), "image": ("U8", [5, 2, 3]),
            "score": ("F64", [5]), "frames.values": ("F32", [15, 4]), "frames.offsets": ("I64", [6]),
            "text.values": ("U8", [15]), "text.offsets": ("I64", [6])})
        self.assertEqual(numpy.frombuffer(t["ids.values"][2], "<i8").tolist(), [i for n in range(1, 6) for i in range(n)])

    @needs_torch
    def test_torch_tensors_are_written_as_they_are(self):
        samples = [{"ids": torch.arange(n), "half": torch.full((3,), n, dtype=torch.bfloat16)} for n in range(1, 4)]
        stoker.write(self.path("set"), samples, fixed=["half"])
        t = read(self.path("set", "shard-00000.safetensors"))
        self.assertEqual(t["half"][:2], ("BF16", [3, 3]))
        self.assertEqual(t["ids.values"][:2], ("I64", [6]))

    def test_types_are_converted_where_the_values_fit(self):
        stoker.write(self.path("set"), [{"ids": [1, 65535]}], dtypes={"ids": "u16"})
        self.assertEqual(read(self.path("set", "shard-00000.safetensors"))["ids.values"][0], "U16")
        with self.assertRaises(stoker.SpecError) as e:
            stoker.write(self.path("bad"), [{"ids": [1, 65536]}], dtypes={"ids": "u16"})
        self.assertIn("ids", str(e.exception))

    def test_what_does_not_fit_is_named_and_leaves_nothing(self):
        good = {"ids": numpy.arange(3), "x": numpy.zeros(2, numpy.float32)}
        for bad, word in (({"ids": numpy.arange(3)}, "ids, x"), ({**good, "x": numpy.zeros(3, numpy.float32)}, "shape"),
                          ({**good, "ids": numpy.arange(3.0)}, "f64"), ({**good, "ids": [[1], [2, 3]]}, "ids"),
                          (17, "int")):
            with self.assertRaises(stoker.SpecError, msg=bad) as e:
                stoker.write(self.path("set"), [good, bad], fixed=["x"])
            self.assertIn(word, str(e.exception))
            self.assertFalse(os.path.exists(self.path("set")), "nothing half-made")

    def test_an_error_of_the_source_leaves_nothing(self):
        def source():
            yield {"ids": [1]}
            raise RuntimeError("mine")
        with self.assertRaisesRegex(RuntimeError, "mine"):
            stoker.write(self.path("set"), source())
        self.assertFalse(os.path.exists(self.path("set")))
        with self.assertRaisesRegex(stoker.DataError, "no samples"):
            stoker.write(self.path("set"), [])

    def test_an_older_set_is_replaced_only_by_force(self):
        stoker.write(self.path("set"), [{"ids": [1]}])
        with self.assertRaises(stoker.Error) as e:
            stoker.write(self.path("set"), [{"ids": [2]}])
        self.assertIn(self.path("set"), str(e.exception))
        stoker.write(self.path("set"), [{"ids": [2, 3]}], force=True)
        self.assertEqual(read(self.path("set", "shard-00000.safetensors"))["ids.values"][1], [2])

    def test_shards_are_cut_and_memory_does_not_grow(self):
        def source(n):
            for _ in range(n):
                yield {"ids": row}
        row = numpy.arange(4096)
        stoker.write(self.path("warm"), source(100))
        before = harness.footprint(os.getpid())["rss_kb"]
        totals = stoker.write(self.path("set"), source(2000), shard_bytes="8MiB")
        self.assertEqual(totals["shards"], 8)
        if not harness.is_sanitized(os.getpid()):
            self.assertLess(harness.footprint(os.getpid())["rss_kb"] - before, 12 << 10, "64 MiB were written")
        stoker.write(self.path("rows"), source(10), samples_per_shard=3)
        self.assertEqual(len([f for f in os.listdir(self.path("rows")) if f.startswith("shard-")]), 4)


@common.unittest.skipUnless(numpy, "numpy is not installed")
class Cache(LoaderCase):
    CODE = """
import numpy
def source():
    with open(sys.argv[1] + ".began", "a") as f:
        f.write("x")
    for n in range(1, 400):
        time.sleep(float(sys.argv[2]))
        yield n
print(stoker.cache(source(), sys.argv[1], map=lambda n: {"ids": numpy.arange(n)} if n % 2 else None))"""

    def test_it_is_written_once_and_the_path_comes_back(self):
        def source():
            calls.append(1)
            yield from range(1, 4)
        calls = []
        for _ in range(2):
            self.assertEqual(stoker.cache(source(), self.path("c"), map=lambda n: {"ids": [n]}), self.path("c"))
        self.assertEqual(calls, [1])
        self.assertEqual(sum(b.rows for b in self.loader(data=self.path("c"), as_="numpy")), 3)

    def test_of_several_ranks_one_writes_and_all_get_it(self):
        scripts = [self.script(self.CODE, self.path("c"), 0.001) for _ in range(4)]
        for s in scripts:
            self.assertEqual(s.end(), (0, self.path("c") + "\n", ""))
        with open(self.path("c.began")) as f:
            self.assertEqual(f.read(), "x")

    def test_what_a_killed_writer_left_is_written_anew(self):
        s = self.script(self.CODE, self.path("c"), 0.05)
        harness.wait_until(lambda: os.path.exists(self.path("c")), what="a writer at work")
        time.sleep(0.2)
        s.process.kill()
        s.process.wait()
        self.assertFalse(os.path.exists(self.path("c", "dataset.json")))
        again = self.script(self.CODE, self.path("c"), 0)
        self.assertEqual(again.end()[0], 0)
        subprocess.run([harness.need("stoker"), "verify", self.path("c")], check=True, capture_output=True)
        self.assertEqual([f for f in os.listdir(self.path("c")) if "tmp" in f], [])


if __name__ == "__main__":
    common.main()
