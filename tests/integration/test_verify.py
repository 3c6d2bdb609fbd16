#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stoker verify` and `stoker inspect` as processes, on sets that `stoker write` made and that were then
damaged.

Needs STOKER_BIN, the built `stoker`.
"""

import json
import os
import pty
import resource
import shutil
import struct
import subprocess
import tempfile
import unittest

BIN = os.environ["STOKER_BIN"]
TEXTS = ["first sample", "", "third, longer: é中\n", "x" * 300, "fifth"]


def run(*args):
    return subprocess.run([BIN, *args], capture_output=True, timeout=60)


def shard_bytes(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


class Shards(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="stoker-verify-")
        self.addCleanup(shutil.rmtree, self.dir)
        source = self.path("in.jsonl")
        with open(source, "w") as f:
            for i, text in enumerate(TEXTS):
                f.write(json.dumps({"t": text, "w": i / 2, "m": [i] * i}) + "\n")
        self.set = self.path("set")
        made = run("write", "--text", "t", "--field", "w=w:f32", "--ragged", "m=m:i16",
                   "--samples-per-shard", "2", "-o", self.set, source)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.shards = [os.path.join(self.set, "shard-%05d.safetensors" % i) for i in range(3)]

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    def verdict(self, *paths):
        """Exit status, and path -> reason of the bad files."""
        done = run("verify", "--json", *paths)
        self.assertEqual(done.stderr, b"")
        result = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if result["bad"] else 0)
        self.assertEqual(result["bad"], len(result["bad_files"]))
        self.result = result
        return {bad["path"]: bad["reason"] for bad in result["bad_files"]}


class Verify(Shards):
    def test_a_fresh_set_is_good(self):
        self.assertEqual(self.verdict(self.set), {})
        self.assertEqual((self.result["files"], self.result["samples"]), (4, 5))
        done = run("verify", self.set)
        self.assertEqual((done.returncode, done.stdout), (0, b"4 files, 0 bad; 5 samples\n"))

    def test_all_bad_files_are_listed_in_one_run(self):
        with open(self.shards[0], "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        os.truncate(self.shards[1], os.path.getsize(self.shards[1]) - 1)
        os.unlink(self.shards[2])
        extra = self.write("set/more.safetensors", shard_bytes({}))
        bad = self.verdict(self.set)
        self.assertEqual(set(bad), set(self.shards) | {extra})
        self.assertIn("dataset.json says", bad[self.shards[0]])
        self.assertIn("xxh3_128 is", bad[self.shards[0]])
        self.assertIn("expected %d bytes, file has %d" % (os.path.getsize(self.shards[1]) + 1,
                                                          os.path.getsize(self.shards[1])),
                      bad[self.shards[1]])
        self.assertIn("No such file", bad[self.shards[2]])
        self.assertIn("not listed", bad[extra])
        done = run("verify", self.set)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stdout.splitlines()), 5)
        self.assertIn(b"5 files, 4 bad", done.stdout)

    def test_two_shards_that_changed_places_are_seen(self):
        os.rename(self.shards[0], self.path("x"))
        os.rename(self.shards[1], self.shards[0])
        os.rename(self.path("x"), self.shards[1])
        self.assertEqual(set(self.verdict(self.set)), set(self.shards[:2]))

    def test_the_same_bytes_under_another_dataset_json_are_seen(self):
        path = os.path.join(self.set, "dataset.json")
        with open(path) as f:
            manifest = json.load(f)
        manifest["fields"][0]["dtype"] = "U64"
        with open(path, "w") as f:
            json.dump(manifest, f)
        self.assertEqual(set(self.verdict(self.set)), {path})
        with open(path, "w") as f:
            f.write('{"format": "stoker-dataset"')
        done = run("verify", self.set)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"dataset.json: line 1", done.stdout)

    def test_files_of_other_types_are_named_and_the_rest_is_still_checked(self):
        lfs = self.write("a.safetensors", b"version https://git-lfs.github.com/spec/v1\nsize 12\n")
        page = self.write("b.safetensors", b"<!DOCTYPE html><html></html>")
        empty = self.write("c.safetensors", b"")
        good = self.write("d.safetensors", shard_bytes({}))
        bad = self.verdict(lfs, page, empty, good, self.path("none"))
        self.assertEqual(set(bad), {lfs, page, empty, self.path("none")})
        self.assertIn("git-lfs pointer", bad[lfs])
        self.assertIn("HTML", bad[page])
        self.assertIn("empty file", bad[empty])
        self.assertEqual(self.result["shards_without_samples"], 1)

    def test_shards_of_one_directory_must_have_the_same_fields(self):
        os.mkdir(self.path("mixed"))
        for name, dtype in ("a", "U8"), ("b", "I8"):
            self.write("mixed/%s.safetensors" % name, shard_bytes(
                {"x": {"dtype": dtype, "shape": [2], "data_offsets": [0, 2]}}, b"12"))
        bad = self.verdict(self.path("mixed"))
        self.assertEqual(set(bad), {self.path("mixed/b.safetensors")})
        self.assertIn("fields disagree", bad[self.path("mixed/b.safetensors")])

    def test_a_header_over_the_cap_loads_when_the_cap_is_raised(self):
        path = self.write("h.safetensors", shard_bytes(b"{}" + b" " * 1000))
        done = run("verify", "--header-max", "1001", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"header of 1002 bytes, allowed are 1001; the setting header_max", done.stdout)
        self.assertEqual(run("verify", "--header-max", "1002", path).returncode, 0)

    def test_a_name_from_a_file_cannot_reach_the_terminal(self):
        name = self.write("\x1b[2J\n.safetensors", shard_bytes(b'{"\\u001b[31m\\n":1}'))
        done = run("verify", name)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stdout.splitlines()), 2)
        self.assertNotIn(b"\x1b", done.stdout)

    def test_memory_does_not_grow_with_the_data(self):
        path = self.write("big.safetensors", b"")
        size = 300 << 20
        header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(path, "wb") as f:
            f.write(shard_bytes(header))
            f.truncate(8 + len(header) + size)
        with open(BIN, "rb") as f:
            sanitized = b"__asan" in f.read()  # needs address space of its own
        limit = None if sanitized else lambda: resource.setrlimit(resource.RLIMIT_DATA, (64 << 20, 64 << 20))
        done = subprocess.run([BIN, "verify", path], capture_output=True, timeout=60, preexec_fn=limit)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_terminal_on_standard_error_leaves_standard_output_clean(self):
        master, slave = pty.openpty()
        done = subprocess.run([BIN, "verify", self.set], stdout=subprocess.PIPE, stderr=slave, timeout=60)
        os.close(slave)
        os.close(master)
        self.assertEqual((done.returncode, done.stdout), (0, b"4 files, 0 bad; 5 samples\n"))

    def test_wrong_usage_is_status_2(self):
        for args in [], ["--nope", "x"], ["--header-max", "1k", "x"], ["--header-max"], ["--sample", "1", "x"]:
            done = run("verify", *args)
            self.assertEqual((done.returncode, done.stdout), (2, b""), args)
            self.assertIn(b"stoker verify: ", done.stderr)
        self.assertEqual(run("verify", "--help").returncode, 0)


class Inspect(Shards):
    def json(self, *args):
        done = run("inspect", "--json", *args)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return json.loads(done.stdout)

    def test_a_set_is_described_with_its_lengths(self):
        seen = self.json(self.set)
        lengths = sorted(len(t.encode()) for t in TEXTS)
        self.assertEqual(seen["samples"], 5)
        self.assertEqual([s["samples"] for s in seen["shards"]], [2, 2, 1])
        self.assertEqual([(f["name"], f["dtype"], f["ragged"], f["text"]) for f in seen["fields"]],
                         [("input_ids", "U8", True, True), ("m", "I16", True, False),
                          ("w", "F32", False, False)])
        shown = seen["lengths"]
        self.assertEqual((shown["min"], shown["p50"], shown["max"], shown["sum"]),
                         (lengths[0], lengths[2], lengths[-1], sum(lengths)))
        self.assertEqual(seen["bytes"], sum(map(os.path.getsize, self.shards)))
        text = run("inspect", self.set)
        self.assertEqual(text.returncode, 0)
        self.assertIn(b"3 shards, 5 samples", text.stdout)
        self.assertIn(seen["fingerprint"].encode(), text.stdout)

    def test_percentiles_are_those_of_the_sorted_lengths(self):
        lengths = [(i * 7919) % 1000 for i in range(1000)] + [70000]
        offsets = [0]
        for n in lengths:
            offsets.append(offsets[-1] + n)
        header = {"x.offsets": {"dtype": "I64", "shape": [len(offsets)], "data_offsets": [0, 8 * len(offsets)]},
                  "x.values": {"dtype": "U8", "shape": [offsets[-1]],
                               "data_offsets": [8 * len(offsets), 8 * len(offsets) + offsets[-1]]}}
        path = self.write("l.safetensors", shard_bytes(header, struct.pack("<%dq" % len(offsets), *offsets) +
                                                       bytes(offsets[-1])))
        shown = self.json(path)["lengths"]
        lengths.sort()
        for p in 50, 90, 99:
            rank = -(-p * len(lengths) // 100)
            self.assertEqual(shown["p%d" % p], lengths[rank - 1], p)
        self.assertEqual((shown["min"], shown["max"]), (0, 70000))

    def test_each_sample_is_shown_with_its_place_and_values(self):
        for i, text in enumerate(TEXTS):
            seen = self.json("--sample", str(i), self.set)
            self.assertEqual((seen["sample"], seen["shard"], seen["row"]), (i, self.shards[i // 2], i % 2))
            fields = {f["name"]: f for f in seen["fields"]}
            self.assertEqual(fields["input_ids"]["text"], text)
            self.assertEqual(bytes(fields["input_ids"]["values"]), text.encode())
            self.assertEqual(fields["m"]["values"], [i] * i)
            self.assertEqual(fields["w"]["values"], [i / 2])
            with open(seen["shard"], "rb") as f:
                f.seek(fields["input_ids"]["offset"])
                self.assertEqual(f.read(fields["input_ids"]["bytes"]), text.encode())
        done = run("inspect", "--sample", "3", self.set)
        self.assertIn(b'"' + b"x" * 300 + b'"', done.stdout)
        self.assertIn("é中\\n".encode(), run("inspect", "--sample", "2", self.set).stdout)

    def test_equal_lengths_bring_a_warning(self):
        header = {"x.offsets": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
                  "x.values": {"dtype": "U8", "shape": [8], "data_offsets": [24, 32]}}
        path = self.write("e.safetensors", shard_bytes(header, struct.pack("<3q", 0, 4, 8) + bytes(8)))
        self.assertTrue(self.json(path)["lengths"]["all_equal"])
        self.assertIn(b"warning: all lengths are 4", run("inspect", path).stdout)
        self.assertNotIn(b"warning", run("inspect", self.set).stdout)

    def test_what_is_wrong_is_said_once_on_standard_error(self):
        for args, status in ((["--sample", "5", self.set], 1), ([self.path("none")], 1), ([], 2),
                             (["--sample", "-1", self.set], 2), (["--sample", "1", self.set, self.set], 2),
                             (["--length", "w", self.set], 1)):
            done = run("inspect", *args)
            self.assertEqual((done.returncode, done.stdout), (status, b""), args)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
