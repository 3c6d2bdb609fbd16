#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stoker write` as a process: what comes out of a file of JSON Lines, and what stays after an error.

Needs STOKER_BIN, the built `stoker`. Reads the shards back with a reader of its own.
"""

import gzip
import json
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

BIN = os.environ.get("STOKER_BIN", "stoker")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLES = os.environ.get("STOKER_SAMPLES", os.path.join(ROOT, "..", "shared", "samples"))
SIZES = {"BOOL": "?", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i", "U64": "Q",
         "I64": "q", "F16": "e", "F32": "f", "F64": "d"}


def read_shard(path):
    """Name -> (dtype, shape, values), and the metadata. Checks what every reader relies on."""
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    assert size % 8 == 0
    header = json.loads(data[8:8 + size].decode("utf-8"))
    metadata = header.pop("__metadata__")
    body, end, tensors = data[8 + size:], 0, {}
    for name, t in sorted(header.items(), key=lambda i: i[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        code = SIZES[t["dtype"]]
        width = struct.calcsize("<" + code)
        assert begin == end and begin % width == 0, (name, begin, end)
        count = 1
        for n in t["shape"]:
            count *= n
        assert stop - begin == count * width
        tensors[name] = t["dtype"], t["shape"], struct.unpack_from("<%d%s" % (count, code), body, begin)
        end = stop
    assert end == len(body)
    return tensors, metadata


def read_set(path):
    """The manifest, and all samples of the field input_ids as lists, checked against each other."""
    with open(os.path.join(path, "dataset.json")) as f:
        manifest = json.load(f)
    rows = []
    for shard in manifest["shards"]:
        file = os.path.join(path, shard["file"])
        assert os.path.getsize(file) == shard["bytes"]
        assert len(shard["xxh3_128"]) == 32
        tensors, _ = read_shard(file)
        offsets, values = tensors["input_ids.offsets"][2], tensors["input_ids.values"][2]
        assert offsets[0] == 0 and offsets[-1] == len(values)
        assert len(offsets) == shard["samples"] + 1
        rows += [list(values[a:b]) for a, b in zip(offsets, offsets[1:])]
    assert len(rows) == manifest["samples"]
    return manifest, rows


def lines(*objects):
    return "".join(json.dumps(o) + "\n" for o in objects).encode()


def zstd_frame(data):
    """A frame of one raw block: no compressor is needed to make one."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + struct.pack("<I", len(data) << 3 | 1)[:3] + data


class Write(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="stoker-write-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.out = os.path.join(self.dir, "out")

    def file(self, data, name="in.jsonl"):
        path = os.path.join(self.dir, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def run_write(self, *args, stdin=b"", **kwargs):
        return subprocess.run([BIN, "write", *args, "-o", self.out], input=stdin, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)

    def write(self, *args, **kwargs):
        done = self.run_write(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(done.stderr, b"")  # no progress bar without a terminal
        return done.stdout.decode()

    def refused(self, *args, status=1, **kwargs):
        done = self.run_write(*args, **kwargs)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        self.assertFalse(os.path.exists(self.out), "the directory was left behind")
        return done.stderr.decode()

    def test_texts_arrive_byte_for_byte(self):
        texts = ["plain", "", "\u00e9\u4e2d\U0001f600", "a\0b", "\"\\\n"]
        out = self.write("--text", "t", self.file(lines(*({"t": t} for t in texts))))
        manifest, rows = read_set(self.out)
        self.assertEqual([bytes(r) for r in rows], [t.encode() for t in texts])
        self.assertEqual(manifest["fields"], [{"name": "input_ids", "dtype": "U8", "ragged": True,
                                               "shape": []}])
        self.assertEqual((manifest["format"], manifest["version"]), ("stoker-dataset", 1))
        _, metadata = read_shard(os.path.join(self.out, "shard-00000.safetensors"))
        self.assertEqual(metadata, {"stoker": "ragged=values+offsets;version=1",
                                    "stoker.text": "input_ids"})
        self.assertIn("5 samples, %d tokens, 1 shard," % sum(len(t.encode()) for t in texts), out)

    def test_real_text_arrives_byte_for_byte_in_several_shards(self):
        path = os.path.join(SAMPLES, "text", "gsm8k_train.jsonl")
        if not os.path.exists(path):
            self.skipTest("no " + path)
        start = time.monotonic()
        self.write("--text", "question,answer", "--shard-bytes", "1MiB", path)
        self.assertLess(time.monotonic() - start, 5)
        manifest, rows = read_set(self.out)
        with open(path) as f:
            expected = [json.loads(line) for line in f]
        self.assertEqual(manifest["samples"], 7473)
        self.assertGreater(len(manifest["shards"]), 3)
        self.assertTrue(all(s["bytes"] <= 1 << 20 for s in manifest["shards"]))
        for row, line in zip(rows, expected):
            self.assertEqual(bytes(row).decode(), line["question"] + "\n" + line["answer"])

    def test_ids_and_fields_arrive_with_their_types_and_shapes(self):
        self.write("--ids", "ids", "--dtype", "u16", "--field", "score=s:f16", "--field", "ok=ok:bool",
                   "--field", "emb=e:f32:2x3", "--ragged", "w=w:f64", "--ragged", "box=box:i8:2",
                   self.file(lines(
                       {"ids": [1, 65535], "s": 0.5, "ok": True, "e": [[1, 2, 3], [4, 5, 6]],
                        "w": [0.1], "box": [[1, -1]]},
                       {"ids": [], "s": 2, "ok": False, "e": [[7, 8, 9], [0, 0, 0.5]], "w": [],
                        "box": [[2, -2], [3, -3]]})))
        manifest, rows = read_set(self.out)
        tensors, metadata = read_shard(os.path.join(self.out, "shard-00000.safetensors"))
        self.assertEqual(rows, [[1, 65535], []])
        self.assertEqual(tensors["score"], ("F16", [2], (0.5, 2.0)))
        self.assertEqual(tensors["ok"], ("BOOL", [2], (True, False)))
        self.assertEqual(tensors["emb"], ("F32", [2, 2, 3], (1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0.5)))
        self.assertEqual(tensors["w.values"], ("F64", [1], (0.1,)))
        self.assertEqual(tensors["box.values"], ("I8", [3, 2], (1, -1, 2, -2, 3, -3)))
        self.assertEqual(tensors["box.offsets"], ("I64", [3], (0, 1, 3)))
        self.assertNotIn("stoker.text", metadata)
        self.assertIn({"name": "emb", "dtype": "F32", "ragged": False, "shape": [2, 3]},
                      manifest["fields"])

    def test_the_ids_are_i32_and_can_have_another_name(self):
        self.write("--ids", "x", "--name", "codes", self.file(lines({"x": [-5]})))
        tensors, _ = read_shard(os.path.join(self.out, "shard-00000.safetensors"))
        self.assertEqual(tensors["codes.values"], ("I32", [1], (-5,)))

    def test_plain_gzip_zstd_and_standard_input_give_the_same_samples(self):
        a, b = lines({"t": "one"}, {"t": "two"}), lines({"t": "three"})
        expected = [list(b"one"), list(b"two"), list(b"three")]
        inputs = {
            "plain": a + b,
            "crlf": (a + b).replace(b"\n", b"\r\n"),
            "blank": b"\n  \n" + a + b"\r\n" + b.rstrip(b"\n"),
            "gzip": gzip.compress(a) + gzip.compress(b),
            "zstd": zstd_frame(a[:7]) + b"\x50\x2a\x4d\x18\x02\0\0\0xx" + zstd_frame(a[7:] + b),
        }
        for name, data in inputs.items():
            with self.subTest(name):
                self.write("--text", "t", "--force", self.file(data, "wrong-suffix.txt"))
                self.assertEqual(read_set(self.out)[1], expected)
                self.write("--text", "t", "--force", "-", stdin=data)
                self.assertEqual(read_set(self.out)[1], expected)

    def test_several_inputs_follow_one_another(self):
        self.write("--text", "t", self.file(lines({"t": "b"}), "1"),
                   self.file(gzip.compress(lines({"t": "a"})), "2"))
        self.assertEqual(read_set(self.out)[1], [[98], [97]])

    def test_shards_are_cut_by_samples(self):
        self.write("--text", "t", "--samples-per-shard", "3", self.file(lines({"t": "x"}) * 7))
        manifest, _ = read_set(self.out)
        self.assertEqual([s["samples"] for s in manifest["shards"]], [3, 3, 1])
        self.assertEqual(sorted(os.listdir(self.out)), ["dataset.json"] + [
            "shard-0000%d.safetensors" % i for i in range(3)])

    def test_the_summary_as_json_counts_everything(self):
        out = json.loads(self.write("--json", "--text", "t", self.file(lines({"t": "abc"}) + b"\n")))
        size = os.path.getsize(os.path.join(self.out, "shard-00000.safetensors"))
        seconds = out.pop("seconds")
        self.assertTrue(0 <= seconds < 60)
        self.assertEqual(out, {"directory": self.out, "samples": 1, "tokens": 3, "shards": 1,
                               "bytes": size, "blank_lines": 1})

    def test_limit_takes_the_first_samples_and_looks_at_nothing_else(self):
        self.write("--limit", "2", "--text", "t", self.file(lines({"t": "a"}, {"t": "b"}) + b"broken"))
        self.assertEqual(read_set(self.out)[1], [[97], [98]])

    def test_an_id_that_does_not_fit_names_file_line_index_value_and_range(self):
        path = self.file(b"\n" + lines({"ids": [1]}, {"ids": [1, 70000]}))
        error = self.refused("--ids", "ids", "--dtype", "u16", path)
        self.assertEqual(error, "stoker write: %s:3: \"ids\"[1]: 70000 is not an integer from 0 to "
                                "65535 (U16)\n" % path)

    def test_bad_lines_name_file_line_and_column_and_leave_nothing(self):
        good = lines({"t": "x"}) * 3
        for bad, text in [(b'{"t": "x"', ":4: "), (b'{"t": "\xff"}', ":4: "), (b'{"t": "x"} y', "column "),
                          (b"17", ":4: "), (b'{"t": 1}', ':4: "t": a number, not a string'),
                          (b'{"u": 1}', ':4: no key "t"; the line has "u"')]:
            with self.subTest(bad):
                path = self.file(good + bad + b"\n")
                error = self.refused("--text", "t", "--samples-per-shard", "1", path)
                self.assertIn(path + ":4: ", error)
                self.assertIn(text, error)

    def test_control_characters_of_the_input_do_not_reach_the_terminal(self):
        error = self.refused("--text", "t", self.file(b'{"\x1b[31m": 1}\n{"\\u001b[2J": 1}\n'))
        self.assertNotIn("\x1b", error)

    def test_truncated_and_damaged_compressed_input_is_an_error(self):
        data = lines(*({"t": "sample %d" % i} for i in range(1000)))
        packed = gzip.compress(data)
        self.assertIn("truncated", self.refused("--text", "t", self.file(packed[:-9])))
        self.assertIn("damaged", self.refused("--text", "t", self.file(packed[:-8] + b"\0" * 8)))
        self.assertIn("truncated", self.refused("--text", "t", self.file(zstd_frame(data)[:-5])))
        self.assertIn("damaged", self.refused("--text", "t", self.file(zstd_frame(data) + b"rest")))

    def test_a_line_over_the_limit_is_an_error(self):
        path = self.file(lines({"t": "x"}, {"t": "x" * 2000}))
        self.assertIn(path + ":2: longer than 1024 bytes",
                      self.refused("--line-limit", "1KiB", "--text", "t", path))

    def test_no_samples_is_an_error(self):
        for data in (b"", b"\n\n", gzip.compress(b"")):
            path = self.file(data)
            self.assertIn("no samples in " + path, self.refused("--text", "t", path))

    def test_wrong_usage_ends_with_2_and_names_the_option(self):
        path = self.file(lines({"t": "x"}))
        for args, text in [
                ((path,), "give one of --text KEY and --ids KEY"),
                (("--text", "t", "--ids", "t", path), "give only one of"),
                (("--text", "t"), "no input"),
                (("--text", "t", "-", "-"), "only once"),
                (("--tex", "t", "--txet", path), "did you mean --text?"),
                (("--samples-pershard=1", "--text", "t", path), "did you mean --samples-per-shard?"),
                (("--force=1", "--text", "t", path), "--force takes no value"),
                (("-x", path), "unknown option -x"),
                (("--text", "t", path, "--limit"), "needs a value"),
                (("--text", "t", "--dtype", "i31", path), "allowed: bool, u8"),
                (("--text", "t", "--dtype", "f32", path), "no integer type"),
                (("--text", "t", "--shard-bytes", "1Gb", path), "is not a size"),
                (("--text", "t", "--shard-bytes", "99999999TiB", path), "is not a size"),
                (("--text", "t", "--limit", "-1", path), "is not a number"),
                (("--text", "t", "--samples-per-shard", "0", path), "is not a number"),
                (("--text", "t", "--field", "a=b", path), "NAME=KEY:DTYPE"),
                (("--text", "t", "--field", "input_ids=b:u8", path), "two fields are called"),
                (("--text", "t", "--name", "a.values", path), "cannot be a field name")]:
            with self.subTest(args):
                done = subprocess.run([BIN, "write", "-o", self.out, *args], timeout=60,
                                      stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 2)
                self.assertIn(text, done.stderr.decode())
                self.assertFalse(os.path.exists(self.out))
        done = subprocess.run([BIN, "write", "--text", "t", path], stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, b"-o DIR" in done.stderr), (2, True))

    def test_help_lists_every_option(self):
        done = subprocess.run([BIN, "write", "--help"], stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0)
        for option in (b"--text", b"--ids", b"--shard-bytes", b"--force", b"--limit"):
            self.assertIn(option, done.stdout)

    def test_another_set_is_kept_unless_force_and_then_replaced_whole(self):
        path = self.file(lines({"t": "x"}) * 4)
        self.write("--text", "t", "--samples-per-shard", "1", path)
        before = sorted(os.listdir(self.out))
        done = self.run_write("--text", "t", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"--force", done.stderr)
        done = self.run_write("--force", "--text", "nokey", path)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(sorted(os.listdir(self.out)), before)
        read_set(self.out)
        self.write("--force", "--text", "t", path)
        self.assertEqual(sorted(os.listdir(self.out)), ["dataset.json", "shard-00000.safetensors"])

    def test_a_directory_that_cannot_be_made_and_an_input_that_is_none_are_named(self):
        self.out = os.path.join(self.dir, "none", "out")
        path = self.file(lines({"t": "x"}))
        self.assertIn(self.out, self.refused("--text", "t", path))
        self.out = os.path.join(self.dir, "out")
        self.assertIn("No such file", self.refused("--text", "t", os.path.join(self.dir, "missing")))
        self.assertIn("is a directory", self.refused("--text", "t", self.dir))

    def test_a_write_that_fails_names_the_file_and_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

        small = self.file(lines({"t": "x" * 60000}) * 3)  # the shard exceeds the limit
        large = self.file(lines({"t": "x" * 60000}) * 30, "large")  # a temporary file does
        self.assertIn(self.out + "/.shard-00000.safetensors", self.refused("--text", "t", small,
                                                                         preexec_fn=limit))
        error = self.refused("--text", "t", large, preexec_fn=limit)
        self.assertIn("temporary file in " + self.out, error)
        self.assertIn("File too large", error)

    def start(self, *args, **kwargs):
        return subprocess.Popen([BIN, "write", *args, "-o", self.out], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)

    def wait_for(self, what):
        end = time.monotonic() + 20
        while not what():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.01)

    def start_and_fill(self):
        """A process that has written two shards and waits for more."""
        p = self.start("--samples-per-shard", "1", "--text", "t", "-")
        p.stdin.write(lines({"t": "x"}) * 3)
        p.stdin.flush()
        self.wait_for(lambda: os.path.isdir(self.out) and len(os.listdir(self.out)) == 2)
        return p

    def test_a_signal_ends_it_with_1_and_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            p = self.start_and_fill()
            p.send_signal(number)
            error = p.communicate(timeout=20)[1]
            self.assertEqual(p.returncode, 1)
            self.assertIn(b"interrupted", error)
            self.assertFalse(os.path.exists(self.out))

    def test_a_kill_leaves_nothing_that_looks_like_a_set_and_the_next_run_tidies_up(self):
        p = self.start_and_fill()
        p.kill()
        p.communicate()
        self.assertTrue(all(name.startswith(".") for name in os.listdir(self.out)))
        self.write("--text", "t", self.file(lines({"t": "x"})))
        self.assertEqual(sorted(os.listdir(self.out)), ["dataset.json", "shard-00000.safetensors"])

    def test_two_runs_do_not_share_a_directory(self):
        p = self.start_and_fill()
        done = self.run_write("--text", "t", self.file(lines({"t": "x"})))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"another stoker write", done.stderr)
        out, _ = p.communicate(lines({"t": "y"}), timeout=20)
        self.assertEqual(p.returncode, 0)
        self.assertEqual(read_set(self.out)[0]["samples"], 4)

    def test_memory_does_not_grow_with_the_input(self):
        with open(shutil.which(BIN), "rb") as f:
            if b"__asan_init" in f.read() or os.environ.get("TSAN_OPTIONS"):
                self.skipTest("a sanitizer keeps freed memory")
        path = self.file(lines({"t": "x" * 1000}) * 60000)
        peak = []
        for limit in ("100", "60000"):
            p = self.start("--force", "--limit", limit, "--text", "t", path)
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = os.waitstatus_to_exitcode(status)
            for f in (p.stdin, p.stdout, p.stderr):
                f.close()
            self.assertEqual(p.returncode, 0)
            peak.append(usage.ru_maxrss)
        self.assertLess(peak[1] - peak[0], 12 << 10)  # KiB, for 60 MB

    def test_a_terminal_shows_progress_and_loses_the_line_at_the_end(self):
        master, slave = pty.openpty()
        p = subprocess.Popen([BIN, "write", "--text", "t", "-", "-o", self.out], stderr=slave,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.close(slave)
        for _ in range(4):
            p.stdin.write(lines({"t": "x"}))
            p.stdin.flush()
            time.sleep(0.12)
        p.communicate(timeout=20)
        shown = b""
        try:
            while True:
                piece = os.read(master, 4096)
                if not piece:
                    break
                shown += piece
        except OSError:
            pass  # the other side is closed
        os.close(master)
        self.assertIn(b" samples  ", shown)
        self.assertLess(shown.count(b"samples"), 8)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)


if __name__ == "__main__":
    unittest.main()
