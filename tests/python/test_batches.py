# SPDX-License-Identifier: Apache-2.0
"""Batches: what is in them, for each framework, and how long their memory lives."""
import collections.abc
import gc
import os
import pickle
import sys
import threading

import common
import harness
import stoker
from common import LoaderCase, ids, needs_torch, torch

try:
    import numpy
except ImportError:
    numpy = None


class Mapping(LoaderCase):
    def batch(self, **options):
        return next(iter(self.loader(**options)))

    @needs_torch
    def test_torch_gets_ids_labels_and_mask_in_int64_from_any_integers(self):
        self.data, self.samples = self.dataset(self.lengths, name="small", dtype="U16")
        l = self.loader(as_="torch")
        for b in l:
            self.assertEqual(list(b), ["input_ids", "labels", "attention_mask"])
            for i, sample in enumerate(ids(b)):
                want = self.samples[sample]
                n = len(want)
                self.assertEqual(b["input_ids"][i].tolist(), want + [0] * (b.width - n))
                self.assertEqual(b["labels"][i].tolist(), want + [-100] * (b.width - n))
                self.assertEqual(b["attention_mask"][i].tolist(), [1] * n + [0] * (b.width - n))
            self.assertEqual({t.dtype for t in b.values()}, {torch.int64})

    def test_it_is_a_mapping_that_cannot_be_written(self):
        b = self.batch(as_="dlpack")
        self.assertIsInstance(b, collections.abc.Mapping)
        self.assertEqual(dict(**b), dict(b))
        self.assertIn("input_ids", b)
        self.assertIsNone(b.get("nothing"))
        self.assertEqual(b.get("nothing", 3), 3)
        with self.assertRaises(KeyError):
            b["nothing"]
        with self.assertRaises(TypeError):
            b["input_ids"] = 1
        with self.assertRaises(TypeError):
            del b["input_ids"]
        self.assertIn("input_ids", repr(b))

    def test_figures_are_attributes_and_never_keys(self):
        b = self.batch(as_="dlpack")
        for name in ("step", "epoch", "micro", "last_micro", "shape_class", "rows", "sample_ids", "lengths",
                     "real_tokens", "global_tokens", "max_seqlen", "state", "slot", "ready_ns", "row_first",
                     "segment_from"):
            self.assertNotIn(name, b)
            getattr(b, name)
        lengths = memoryview(b.lengths).tolist()
        self.assertEqual(lengths, [len(self.samples[i]) for i in ids(b)])
        self.assertEqual(b.max_seqlen, max(lengths))
        self.assertEqual(b.real_tokens, sum(lengths))
        self.assertIs(type(b.max_seqlen), int)

    def test_global_tokens_are_those_of_all_ranks(self):
        l = [self.loader(as_="dlpack", rank=r, world_size=2) for r in range(2)]
        for a, b in zip(*l):
            self.assertEqual(a.global_tokens, a.real_tokens + b.real_tokens)
            self.assertEqual(a.global_tokens, b.global_tokens)

    def test_a_converter_that_rebuilds_it_gets_a_plain_batch(self):
        b = self.batch(as_="dlpack")
        plain = type(b)({k: 1 for k in b})
        self.assertEqual(dict(plain), {k: 1 for k in b})
        self.assertIsInstance(plain, stoker.Batch)
        with self.assertRaises(AttributeError) as e:
            plain.step
        self.assertIn("made from a dict", str(e.exception))

    @needs_torch
    def test_torchs_default_converters_take_it(self):
        from torch.utils.data import default_convert
        from torch.utils.data._utils.collate import default_collate
        b = self.batch(as_="torch")
        self.assertTrue(torch.equal(default_convert(b)["input_ids"], b["input_ids"]))
        self.assertEqual(default_collate([b, b])["input_ids"].shape, (2,) + b["input_ids"].shape)

    @needs_torch
    def test_a_batch_travels_to_another_process_as_a_plain_one(self):
        b = self.batch(as_="torch")
        there = pickle.loads(pickle.dumps(b))
        self.assertTrue(torch.equal(there["labels"], b["labels"]))

    @needs_torch
    def test_to_another_type_keeps_the_figures_and_gives_the_slot_back(self):
        l = self.loader(as_="torch")
        b = next(iter(l))
        self.assertIs(b.to("cpu"), b)
        self.assertIs(b.to(device="cpu", non_blocking=True), b)
        self.assertIs(b.pin(), b)  # without CUDA
        meta = b.to("meta")
        self.assertEqual(meta["input_ids"].device.type, "meta")
        self.assertEqual((meta.step, meta.rows, ids(meta)), (b.step, b.rows, ids(b)))
        self.assertEqual(meta.state, b.state)
        del b
        self.assertEqual(l.stats()["slots_held"], 0)


@common.unittest.skipUnless(numpy, "numpy is not installed")
class Packed(LoaderCase):
    """Rows of several samples, as attention kernels take them."""
    keys = {"prefetch": 4, "seed": 3, "group": "pack"}

    @needs_torch
    def test_borders_are_what_attention_kernels_take(self):
        seen = []
        for b in self.loader(as_="torch", flat=True, tokens=400, window=0, balance="cost"):
            cu = b["cu_seqlens"]
            self.assertEqual((cu.dtype, cu.dim()), (torch.int32, 1))
            starts = cu.tolist()
            self.assertEqual(starts[0], 0)
            self.assertEqual(starts[-1], b.real_tokens)
            self.assertIsInstance(b.max_seqlen, int)
            self.assertEqual(b.max_seqlen, max(e - s for s, e in zip(starts, starts[1:])))
            self.assertEqual(b["input_ids"].shape, (1, 400))
            for number, (sample, begin, end) in enumerate(zip(ids(b), starts, starts[1:])):
                self.assertEqual(b["input_ids"][0, begin:end].tolist(), self.samples[sample])
                self.assertEqual(b["position_ids"][0, begin:end].tolist(), list(range(end - begin)))
                self.assertEqual(b["segment_ids"][0, begin:end].unique().tolist(), [number + 1])
            self.assertEqual(b["segment_ids"][0, starts[-1]:].sum().item(), 0)
            seen += ids(b)
        self.assertEqual(sorted(seen), list(range(200)))

    def test_borders_positions_and_segments_are_exactly_these(self):
        self.data, self.samples = self.dataset([3, 2, 3, 1], name="four")
        for start in 0, 2:
            fields = [{"name": "input_ids", "dtype": "i64"}, {"name": "labels", "from": "input_ids", "pad": -100},
                      {"name": "position_ids", "make": "position_ids", "start": start},
                      {"name": "segment_ids", "make": "segment_ids"}, {"name": "cu_seqlens", "make": "cu_seqlens"}]
            b = next(iter(self.loader(as_="numpy", job="start-%d" % start, order="none", max_length=8, rows=2,
                                      multiple_of=1, fields=fields)))
            rows = [[self.samples[i] for i in memoryview(b.sample_ids)[b.row_first[r]:b.row_first[r + 1]].tolist()]
                    for r in range(2)]
            self.assertEqual(sorted(map(len, rows)), [1, 3], "eight tokens fill one row, one is left")
            for r, documents in enumerate(rows):
                pad = 8 - sum(map(len, documents))
                self.assertEqual(b["input_ids"][r].tolist(), sum(documents, []) + [0] * pad)
                self.assertEqual(b["labels"][r].tolist(), sum(documents, []) + [-100] * pad)
                positions = [start + i for d in documents for i in range(len(d))]
                self.assertEqual(b["position_ids"][r, :8 - pad].tolist(), positions)
                segments = [1 + n for n, d in enumerate(documents) for _ in d]
                self.assertEqual(b["segment_ids"][r].tolist(), segments + [0] * pad)
                self.assertLessEqual((b["position_ids"][r] == start).sum(), len(documents) + 1, "pads are no documents")
            ends = [0]
            for d in sum(rows, []):
                ends.append(ends[-1] + len(d))
            self.assertEqual((b["cu_seqlens"].dtype, b["cu_seqlens"].tolist()), (numpy.int32, ends))

    def test_rows_say_which_segments_they_hold_and_where_those_begin_in_their_samples(self):
        for copy in False, True:
            got = {}
            for b in self.loader(as_="numpy", job="copy-%s" % copy, max_length=32, rows=2, overlong="split", copy=copy):
                first = b.row_first.tolist()
                self.assertEqual((len(first), first[0], first[-1]), (b.rows + 1, 0, len(b.sample_ids)))
                for row in range(b.rows):
                    at = 0
                    for i in range(first[row], first[row + 1]):
                        sample, begin, n = b.sample_ids[i], b.segment_from[i], b.lengths[i]
                        self.assertEqual(b["input_ids"][row, at:at + n].tolist(), self.samples[sample][begin:begin + n])
                        got.setdefault(sample, []).extend(self.samples[sample][begin:begin + n])
                        at += n
            self.assertEqual([sorted(got[i]) for i in range(200)], [sorted(s) for s in self.samples])

    def test_rows_of_one_sample_have_no_segments(self):
        b = next(iter(self.loader(as_="numpy", group="fixed", rows=2)))
        self.assertIsNone(b.row_first)
        self.assertIsNone(b.segment_from)

    @needs_torch
    def test_moved_batches_keep_their_segments(self):
        b = next(iter(self.loader(as_="torch", max_length=128, rows=2)))
        there = b.to("meta")
        self.assertTrue(torch.equal(there.row_first, b.row_first))
        self.assertTrue(torch.equal(there.segment_from, b.segment_from))

    def test_an_epoch_ends_where_its_last_batch_says(self):
        loader = self.loader(as_="dlpack", max_length=128, rows=2, window=20)
        with self.assertRaises(TypeError):
            len(loader)
        steps = 0
        for b in loader:
            steps += 1
            state = loader.state_dict(after=b)
            self.assertEqual((state["epoch"], state["step"]), (1, 0) if b.ends_epoch else (0, steps))
        self.assertTrue(b.ends_epoch)
        self.assertEqual((loader.epoch, loader.step), (1, 0))


class Numpy(LoaderCase):
    def test_arrays_are_read_only_views_of_the_slot(self):
        l = self.loader(as_="numpy")
        b = next(iter(l))
        a = b["input_ids"]
        self.assertEqual(a.dtype, numpy.int32)
        with self.assertRaises(ValueError):
            a[0, 0] = 1
        with self.assertRaises(ValueError):
            a.flags.writeable = True
        self.assertEqual(a[0, :b.lengths[0]].tolist(), self.samples[b.sample_ids[0]])
        self.assertEqual(b["attention_mask"].dtype, numpy.bool_)
        del b
        self.assertEqual(l.stats()["slots_held"], 1)
        del a
        self.assertEqual(l.stats()["slots_held"], 0)

    def test_dlpack_and_the_buffer_protocol_give_the_same_memory(self):
        b = next(iter(self.loader(as_="dlpack")))
        t = b["input_ids"]
        x, y = numpy.from_dlpack(t), numpy.asarray(t)
        self.assertTrue((x == y).all())
        self.assertTrue(numpy.shares_memory(x, y))
        self.assertFalse(y.flags.writeable)
        self.assertEqual(t.shape, x.shape)
        self.assertEqual((t.dtype, t.nbytes, t.readonly), ("i32", x.nbytes, True))
        self.assertEqual(t.__dlpack_device__(), (1, 0))
        with self.assertRaises(BufferError):
            t.__dlpack__(copy=True)

    def test_a_capsule_nobody_takes_gives_its_lease_back(self):
        l = self.loader(as_="dlpack")
        t = next(iter(l))["input_ids"]
        for version in None, (1, 0):
            capsule = t.__dlpack__(max_version=version)
            self.assertIn("dltensor_versioned" if version else '"dltensor"', repr(capsule))
            del capsule
        self.assertEqual(l.stats()["slots_held"], 1)
        del t
        self.assertEqual(l.stats()["slots_held"], 0)

    def test_every_element_type_arrives(self):
        types = {"u8": numpy.uint8, "i8": numpy.int8, "u16": numpy.uint16, "i16": numpy.int16, "u32": numpy.uint32,
                 "i32": numpy.int32, "u64": numpy.uint64, "i64": numpy.int64, "f16": numpy.float16,
                 "f32": numpy.float32, "f64": numpy.float64, "bool": numpy.bool_}
        samples = [{"ids": numpy.arange(1, n + 1), **{k: numpy.array([n, n + 1]).astype(t) for k, t in types.items()}}
                   for n in range(1, 9)]
        stoker.write(self.path("types"), samples, fixed=list(types))
        b = next(iter(self.loader(data=self.path("types"), as_="numpy", length="ids")))
        for name, t in types.items():
            self.assertEqual(b[name].dtype, t)
            for row, sample in zip(b[name], b.sample_ids):
                self.assertEqual(row.tolist(), samples[sample][name].tolist(), name)


@needs_torch
class Lifetime(LoaderCase):
    def test_a_slot_goes_back_when_its_last_tensor_dies(self):
        l = self.loader(as_="torch")
        b = next(iter(l))
        view = b["labels"][1:, ::2].T
        del b
        self.assertEqual(l.stats()["slots_held"], 1)
        del view
        self.assertEqual(l.stats()["slots_held"], 0)

    def test_tensors_may_die_on_another_thread(self):
        l = self.loader(as_="torch")
        box = [list(b.values()) for _, b in zip(range(3), l)]
        self.assertEqual(l.stats()["slots_held"], 3)
        t = threading.Thread(target=box.clear)
        t.start()
        t.join()
        self.assertEqual(l.stats()["slots_held"], 0)

    def test_kept_tensors_never_change(self):
        l = self.loader(as_="torch", prefetch=10, timeout=0.5)
        kept, copies = [], []
        with self.assertRaises(TimeoutError):
            for b in l:
                kept.append(b["input_ids"])
                copies.append(b["input_ids"].clone())
        del b
        self.assertEqual(len(kept), 10)
        for a, b in zip(kept, copies):
            self.assertTrue(torch.equal(a, b))
        kept[:] = kept[5:]
        for _, b in zip(range(20), l):
            pass
        for a, b in zip(kept, copies[5:]):
            self.assertTrue(torch.equal(a, b))
        l.close()
        for a, b in zip(kept, copies[5:]):
            self.assertTrue(torch.equal(a, b), "closing leaves what is held")

    def test_with_several_replicas_torch_gets_copies_that_it_may_write(self):
        l = [self.loader(as_="torch", rank=0, world_size=1, replica=i, replicas=2) for i in range(2)]
        a, b = (next(iter(x)) for x in l)
        self.assertTrue(torch.equal(a["input_ids"], b["input_ids"]))
        before = b["input_ids"].clone()
        a["input_ids"].fill_(7)
        self.assertTrue(torch.equal(b["input_ids"], before))
        self.assertEqual([x.stats()["slots_held"] for x in l], [0, 0])
        self.assertEqual(ids(a), ids(b))
        self.assertEqual(len(a.state), len(b.state))

    def test_with_several_replicas_whoever_takes_dlpack_may_write_too(self):
        l = [self.loader(as_="dlpack", rank=0, world_size=1, replica=i, replicas=2) for i in range(2)]
        a, b = (next(iter(x)) for x in l)
        before = torch.from_dlpack(b["input_ids"]).clone()
        torch.from_dlpack(a["input_ids"]).fill_(7)
        self.assertTrue(torch.equal(torch.from_dlpack(b["input_ids"]), before))

    def test_a_write_stays_with_its_writer(self):
        l = self.loader(as_="torch")
        for b in l:
            b["input_ids"].fill_(-1)
        for b in l:
            for i, sample in enumerate(ids(b)):
                self.assertEqual(b["input_ids"][i, :len(self.samples[sample])].tolist(), self.samples[sample])

    def test_bool_fields_are_bools(self):
        l = self.loader(as_="torch", fields=[{"name": "input_ids", "dtype": "i32"},
                                             {"name": "mask", "make": "mask", "dtype": "bool"}])
        b = next(iter(l))
        self.assertEqual(b["mask"].dtype, torch.bool)
        self.assertEqual(b["mask"].sum(1).tolist(), b.lengths.tolist())

    def test_memory_and_references_stay_flat(self):
        l = self.loader(as_="torch")

        def run(n):
            it = iter(l)
            for _ in range(n):
                b = next(it, None)
                if b is None:
                    it = iter(l)
                    continue
                b.sample_ids, b.lengths, b.state
        run(2000)
        gc.collect()
        objects, before = len(gc.get_objects()), harness.footprint(os.getpid())
        shared = [stoker.Batch, stoker.Tensor, l, l._client, l.shapes()[0], torch.int64, torch.Tensor, bytes, None, True,
                  *b"\0\1\2", *map(sys.intern, ("input_ids", "labels", "attention_mask"))]
        references = [sys.getrefcount(x) for x in shared]
        run(int(os.environ.get("STOKER_FLAT_BATCHES", "20000")))
        gc.collect()
        for x, before_ in zip(shared, references):
            self.assertLess(abs(sys.getrefcount(x) - before_), 50, x)
        self.assertLess(abs(len(gc.get_objects()) - objects), 20)
        after = harness.footprint(os.getpid())
        self.assertEqual(after["fds"], before["fds"])
        if not harness.is_sanitized(os.getpid()):  # it keeps what was freed for a while
            self.assertLess(after["rss_kb"] - before["rss_kb"], 1024)
            self.assertEqual(after["maps"], before["maps"])
        self.assertLess(after["maps"] - before["maps"], 100)  # a mapping for each batch would be thousands


if __name__ == "__main__":
    common.main()
