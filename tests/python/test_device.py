# SPDX-License-Identifier: Apache-2.0
"""Batches on a device: their bytes, the order of streams, and where they are; with the stand-in for CUDA."""
import collections
import json
import socket
import sys
import threading
import types
import unittest.mock

import common
import reader
import stoker
from common import ids
from device_case import DeviceCase, order


class Order(DeviceCase):
    def test_an_epoch_on_the_device_holds_the_bytes_of_the_host(self):
        want = self.on_host()
        for delay, depth in ((0, 0), (300, 2), (2000, 5)):
            reader.delay(delay)
            l = self.loader(f"job-{depth}", device="cuda:0", depth=depth)
            self.assertEqual(l.device, "cuda:0")
            self.assertEqual(self.seen([self.read(b) for b in l]), want)
            l.close()
        self.assertEqual(reader.figures()["pageable"], 0)
        self.assertFalse(reader.has_context(1))

    def test_each_batch_costs_one_copy_two_records_and_one_wait(self):
        for as_ in "dlpack", "torch":
            reader.delay(0)
            if as_ == "torch":
                self.torch()
            l = self.loader(as_, as_=as_, device="cuda:0", epochs=1, fields=[{"name": "input_ids"}])
            before, steps = self.costs(), 0
            for b in l:
                if as_ == "dlpack":
                    self.read(b)
                else:
                    b["input_ids"].taken.read(self.stream)
                del b
                steps += 1
            after = {name: n - before[name] for name, n in self.costs().items()}
            lagging = int(l.stats()["copies_lagging"])
            self.assertEqual(after, {"MemcpyAsync": steps, "EventRecord": 2 * steps, "StreamWaitEvent": steps + lagging,
                                     "StreamSynchronize": 0, "DeviceSynchronize": 0, "HostRegister": 0}, as_)
            l.close()

    def test_torchs_current_stream_sees_every_batch_and_keeps_it(self):
        want = self.on_host()
        self.torch()
        reader.delay(1000)
        l = self.loader(as_="torch", device="cuda:0", fields=None, default_fields="stored")
        found = []
        for b in l:
            found.append((b.epoch, b.step, {n: t.taken.read(self.stream, 500) for n, t in b.items()}))
            self.assertEqual({t.device.type for t in b.values()}, {"cuda"})
            self.assertEqual(b.sample_ids.device.type, "cpu")
            del b
        reader.sync(self.stream)
        for n, (epoch, step, reads) in enumerate(found):
            self.assertEqual((epoch, step, {k: r.bytes for k, r in reads.items()}), (*want[n][:2], want[n][3]))

    def test_a_slot_is_kept_until_the_last_tensor_dies(self):
        l = self.loader(device="cuda:0", depth=2, timeout=0.3)
        it = iter(l)
        b = next(it)
        tensors = order(b, self.stream)
        first, = [t.read(self.stream) for n, t in tensors.items() if n == "input_ids"]
        kept = tensors.pop("input_ids")
        address = kept.about["address"]
        del b, tensors
        second = next(it)
        self.assertNotEqual(reader.take(second["input_ids"].__dlpack__(stream=self.stream)).about["address"], address)
        self.assertEqual(l.stats()["slots_held"], 2)
        with self.assertRaises(stoker.Timeout):
            next(it)
        again = kept.read(self.stream)
        reader.sync(self.stream)
        self.assertEqual(again.bytes, first.bytes)
        kept.drop()
        third = next(it)
        self.assertEqual(reader.take(third["input_ids"].__dlpack__(stream=self.stream)).about["address"], address)

    def test_a_slot_is_kept_while_a_stream_still_reads_it(self):
        want = self.on_host()
        l = self.loader(device="cuda:0", depth=2)
        found = []
        for b in l:
            late = len(found) % 7 == 3
            found.append((b.epoch, b.step, ids(b), {n: t.read(self.stream, 20000 * late) for n, t in
                                                    order(b, self.stream).items()}))
            del b
        self.assertEqual(self.seen(found), want)

    def test_numbers_of_a_batch_may_be_kept_without_its_slot(self):
        l = self.loader(device="cuda:0", depth=2, timeout=5, epochs=1)
        kept = [(b.sample_ids, b.lengths) for b in l]
        want = [samples for _, _, samples, _ in self.on_host()]
        self.assertEqual([memoryview(i).tolist() for i, _ in kept], want)
        lengths = [[len(self.samples[i]) for i in samples] for samples in want]
        self.assertEqual([memoryview(n).tolist() for _, n in kept], lengths)

    def test_packed_rows_have_their_borders_on_the_device(self):
        options = {"group": "pack", "flat": True, "tokens": 400, "rows": None, "buckets": None, "epochs": 1,
                   "fields": [{"name": "input_ids"}, {"name": "cu", "make": "cu_seqlens"}]}
        options = {k: v for k, v in options.items() if v is not None}
        self.keys = {"prefetch": 4, "seed": 3}
        for b in self.loader(device="cuda:0", **options):
            cu = reader.take(b["cu"].__dlpack__(stream=self.stream))
            self.assertEqual((cu.about["dtype"], len(cu.about["shape"])), ((0, 32), 1))
            read = cu.read(self.stream)
            reader.sync(self.stream)
            borders = memoryview(read.bytes).cast("i").tolist()
            self.assertEqual((borders[0], borders[-1]), (0, b.real_tokens))
            lengths = [e - s for s, e in zip(borders, borders[1:])]
            self.assertEqual(lengths, memoryview(b.lengths).tolist())
            self.assertEqual((b.max_seqlen, type(b.max_seqlen)), (max(lengths), int))
            self.assertEqual(len(memoryview(b.row_first)), 2)

    def test_no_batch_is_taken_into_a_graph(self):
        torch = self.torch()
        capturing = []
        torch._C._cuda_isCurrentStreamCapturing = lambda: bool(capturing)
        l = self.loader(as_="torch", device="cuda:0")
        it = iter(l)
        self.assertEqual(next(it).step, 0)
        capturing.append(1)
        with self.assertRaises(stoker.DeviceError) as caught:
            next(it)
        self.assertIn("captured", str(caught.exception))
        capturing.clear()
        self.assertEqual(next(it).step, 1)

    def test_examples_are_where_the_batches_are(self):
        self.torch()
        l = self.loader(as_="torch", device="cuda:1")
        example = unittest.mock.Mock()
        with unittest.mock.patch.object(stoker._shapes, "example", return_value=example):
            self.assertEqual(len(list(l.examples())), len(l.shapes()))
        example.to.assert_called_with("cuda:1")

    def test_record_stream_keeps_the_slot_for_work_that_is_queued_later(self):
        want = self.on_host()
        side = reader.stream()
        self.addCleanup(reader.destroy, side)
        l = self.loader(device="cuda:0", depth=2)
        handles = [lambda s: s, lambda s: types.SimpleNamespace(cuda_stream=s, device=types.SimpleNamespace(index=0)),
                   lambda s: types.SimpleNamespace(ptr=s), lambda s: types.SimpleNamespace(__cuda_stream__=(0, s)),
                   lambda s: types.SimpleNamespace(__cuda_stream__=lambda: (0, s))]
        found = []
        for b in l:
            tensors = order(b, self.stream)
            b.record_stream(handles[b.step % len(handles)](side))
            found.append((b.epoch, b.step, ids(b), {n: t.read(side, 3000) for n, t in tensors.items()}))
            del b, tensors
        reader.sync(side)
        self.assertEqual(self.seen(found), want)
        self.assertEqual(reader.calls("cudaDeviceSynchronize"), 0)

    def test_more_streams_than_are_remembered_are_waited_for(self):
        streams = [reader.stream() for _ in range(20)]
        l = self.loader(device="cuda:0", depth=1)
        b = next(iter(l))
        for s in streams:
            b.record_stream(s)
        read = order(b, self.stream)["input_ids"].read(streams[-1], 20000)
        del b
        self.assertTrue(read.done)
        self.assertEqual(reader.calls("cudaDeviceSynchronize"), 1)
        for s in streams:
            reader.destroy(s)

    def test_what_is_no_stream_is_refused(self):
        b = next(iter(self.loader(device="cuda:0")))
        for stream, error in (("s", TypeError), (None, TypeError),
                              (types.SimpleNamespace(cuda_stream=self.stream, device=types.SimpleNamespace(index=1)),
                               stoker.DeviceError)):
            with self.assertRaises(error):
                b.record_stream(stream)
        host = next(iter(self.loader("host")))
        with self.assertRaises(stoker.DeviceError) as caught:
            host.record_stream(self.stream)
        self.assertIn("Loader(pin=True)", str(caught.exception))


class Dlpack(DeviceCase):
    def tensor(self, **options):
        self.batch = next(iter(self.loader(device="cuda:0", **options)))
        return self.batch["input_ids"]

    def test_cupy_gets_arrays_of_the_device_and_numpy_what_lies_in_host_memory(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy")

        def from_dlpack(tensor):
            if tensor.__dlpack_device__()[0] != 2:
                raise TypeError("CPU arrays cannot be directly imported to CuPy.")
            return reader.take(tensor.__dlpack__(stream=1, max_version=(1, 0), copy=None))
        with unittest.mock.patch.dict(sys.modules, cupy=types.SimpleNamespace(from_dlpack=from_dlpack)):
            l = self.loader(device="cuda:0", as_="cupy")
            b = next(iter(l))
            self.assertEqual(b["input_ids"].about["device"], (2, 0))
            self.assertIsInstance(b.sample_ids, numpy.ndarray)
            self.assertEqual(len(b.sample_ids), len(b.lengths))
            reader.sync(1)
            del b

    def test_a_tensor_says_where_it_is(self):
        t = self.tensor()
        self.assertEqual(t.__dlpack_device__(), (2, 0))
        about = reader.take(t.__dlpack__()).about
        self.assertEqual((about["device"], about["shape"]), ((2, 0), list(t.shape)))
        self.assertEqual(about["dtype"], (0, 32))
        newer = reader.take(t.__dlpack__(stream=self.stream, max_version=(1, 1), dl_device=(2, 0), copy=False))
        self.assertEqual(newer.about, {**about, "read_only": 0})
        self.assertEqual(self.batch.sample_ids.__dlpack_device__(), (1, 0))
        with self.assertRaises(BufferError) as caught:
            memoryview(t)
        self.assertIn("on a device", str(caught.exception))

    def test_what_cannot_be_lent_is_refused(self):
        t = self.tensor()
        for how, says in (({"stream": 0}, "stream=0"), ({"stream": -2}, "stream=-2"), ({"copy": True}, "does not copy"),
                          ({"dl_device": (1, 0)}, "(2, 0)"), ({"dl_device": (2, 1)}, "(2, 1)")):
            with self.assertRaises(BufferError) as caught:
                t.__dlpack__(**how)
            self.assertIn(says, str(caught.exception))
        with self.assertRaises(TypeError):
            t.__dlpack__(stream="legacy")
        self.assertEqual(reader.calls("cudaStreamWaitEvent"), 0)

    def test_a_capsule_nobody_takes_gives_its_lease_back(self):
        l = self.loader(device="cuda:0")
        b = next(iter(l))
        b["input_ids"].__dlpack__(stream=self.stream)
        b["input_ids"].__dlpack__(stream=self.stream, max_version=(1, 0))
        del b
        self.assertEqual(l.stats()["slots_held"], 0)

    def test_each_stream_waits_once(self):
        t = self.tensor()
        for stream, waits in ((None, 1), (1, 1), (self.stream, 2), (self.stream, 2), (2, 3), (1, 3), (-1, 3)):
            reader.take(t.__dlpack__(stream=stream))
            self.assertEqual(reader.calls("cudaStreamWaitEvent"), waits, stream)

    def test_who_orders_his_reads_himself_is_waited_for_at_the_end(self):
        taken = reader.take(self.tensor().__dlpack__(stream=-1))
        reader.sync(self.stream)
        read = taken.read(self.stream, 20000)
        self.batch = None
        self.assertFalse(read.done)
        taken.drop()
        self.assertTrue(read.done)
        self.assertEqual(reader.calls("cudaDeviceSynchronize"), 1)

    def test_the_per_thread_stream_of_another_thread_is_waited_for(self):
        for elsewhere, waits in ((False, 0), (True, 1)):
            taken = reader.take(self.tensor(job=f"job-{elsewhere}").__dlpack__(stream=2))
            read = taken.read(2, 20000)
            self.batch = None
            taken.drop(elsewhere)
            self.assertEqual(reader.calls("cudaDeviceSynchronize"), waits)
            self.assertEqual(read.done, elsewhere)
            reader.sync(2)

    def test_tensors_may_die_on_another_thread(self):
        l = self.loader(device="cuda:0", depth=2)
        found = []
        for b in l:
            tensors = order(b, self.stream)
            found.append((b.epoch, b.step, ids(b), {n: t.read(self.stream) for n, t in tensors.items()}))
            del b
            for t in tensors.values():
                t.drop(True)
        self.assertEqual(self.seen(found), self.on_host())

    def test_booleans_come_as_bytes_where_the_importer_knows_none(self):
        fields = [{"name": "input_ids"}, {"name": "attention_mask", "make": "mask", "dtype": "bool"}]
        for version, code in (("1.13.1", 1), ("2.4.1", 6)):
            self.torch().__version__ = version
            b = next(iter(self.loader(version, as_="torch", device="cuda:0", fields=fields)))
            self.assertEqual(b["attention_mask"].taken.about["dtype"], (code, 8))

    def test_batches_of_one_slot_and_shape_have_the_same_addresses(self):
        l = self.loader(device="cuda:0", pad_to="edge", tail="pad")
        seen = collections.defaultdict(set)
        for b in l:
            addresses = tuple(t.about["address"] for t in order(b, self.stream).values())
            seen[b.slot, b.shape_class].add(addresses)
            self.assertIn(b.slot, range(3))
        self.assertTrue(all(len(a) == 1 for a in seen.values()), seen)
        self.assertLess(len(seen), 15)


class Devices(DeviceCase):
    def test_only_the_device_asked_for_gets_a_context(self):
        l = self.loader(device="cuda:1")
        t = next(iter(l))["input_ids"]
        self.assertEqual(t.__dlpack_device__(), (2, 1))
        self.assertEqual((reader.has_context(0), reader.has_context(1)), (False, True))
        reader.set_device(1)
        taken = reader.take(t.__dlpack__(stream=1))
        self.assertEqual((taken.about["device"], l.device), ((2, 1), "cuda:1"))
        reader.sync(1)

    def setUp(self):
        super().setUp()
        reader.destroy(self.stream)
        reader.reset()  # no device has a context
        self.stream = None

    def test_a_device_without_a_number_is_the_one_that_is_current_at_the_first_batch(self):
        l = self.loader(device="cuda")
        self.assertEqual((reader.has_context(0), reader.has_context(1)), (False, False))
        self.assertEqual(l.device, "cuda")
        reader.set_device(1)
        b = next(iter(l))
        self.assertEqual(b["input_ids"].__dlpack_device__(), (2, 1))
        self.assertEqual(l.device, "cuda:1")
        self.assertFalse(reader.has_context(0))

    def test_every_name_of_a_device_is_understood(self):
        for number, device in enumerate((1, "cuda:1", types.SimpleNamespace(__str__=None), "cpu", None)):
            if isinstance(device, types.SimpleNamespace):
                device = type("device", (), {"__str__": lambda self: "cuda:1"})()  # as torch.device
            l = self.loader(f"job-{number}", device=device)
            self.assertEqual(l.device, "cpu" if device in ("cpu", None) else "cuda:1")
            l.close()

    def test_the_daemon_is_told_which_device_the_batches_go_to(self):
        for options, pci in (({"device": "cuda:1"}, "0000:42:00.0"), ({"pin": "cuda:0"}, "0000:41:00.0"), ({}, None)):
            path = self.path(f"{pci}.sock")
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen()
            got = []
            def serve():
                peer, _ = server.accept()
                with peer:
                    text = b""
                    while not text.endswith(b"\0"):
                        text += peer.recv(65536)
                got.append(json.loads(text.split(b"\0")[0]))
            thread = threading.Thread(target=serve)
            thread.start()
            with self.assertRaises(stoker.Error):
                stoker.Loader(self.data, as_="dlpack", daemon="system", socket=path, rows=4, **options)
            thread.join()
            server.close()
            self.assertEqual(got[0]["method"], "io.stoker.Attach")
            want = {"pci": pci, "host_node": 0} if pci else None
            self.assertEqual(got[0]["parameters"].get("device"), want)

    def test_two_devices_are_fed_by_one_thread(self):
        want, side = self.on_host(), {}
        loaders = [self.loader(f"job-{n}", device=n) for n in range(2)]
        for n in range(2):
            reader.set_device(n)
            side[n] = reader.stream()
        reader.set_device(0)
        found = [[], []]
        for pair in zip(*loaders):
            for n, b in enumerate(pair):
                found[n].append((b.epoch, b.step, ids(b), {k: t.read(side[n]) for k, t in order(b, side[n]).items()}))
        pair = b = None
        for n in range(2):
            reader.sync(side[n])
            self.assertEqual([(*f[:3], {k: r.bytes for k, r in f[3].items()}) for f in found[n]], want)
            reader.destroy(side[n])

    def test_replicas_have_their_own_memory_on_the_device(self):
        self.stream = reader.stream()
        def attach(n):
            loaders[n] = self.loader(device="cuda:0", rank=0, world_size=1, replica=n, replicas=2)
        loaders = {}
        threads = [threading.Thread(target=attach, args=(n,)) for n in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        found = [[], []]
        for pair in zip(loaders[0], loaders[1]):
            for n in range(2):
                found[n].append(self.read(pair[n]))
        del pair
        first = self.seen(found[0])
        self.assertEqual(first, self.seen(found[1]))
        self.assertEqual(first, self.on_host())

    def test_opening_and_closing_leaves_nothing(self):
        for n in range(30):
            l = self.loader(device="cuda:0")
            b = next(iter(l))
            if n % 3:
                del b
            l.close()
            if n % 3 == 0:
                self.assertGreater(len(ids(b)), 0)
                del b
            self.assertEqual(reader.figures()["registered"], 0)

    def test_arguments_that_do_not_fit_are_refused_with_what_is_allowed(self):
        for options, says in (({"device": "gpu"}, '"cuda:1"'), ({"device": "cuda:x"}, '"cuda:1"'),
                              ({"device": -1}, '"auto"'), ({"device": True}, '"auto"'),
                              ({"device": "cuda", "as_": "numpy"}, "torch, cupy, jax"),
                              ({"as_": "cupy"}, 'device="cuda"'), ({"device": "cuda", "copy": True}, "copy of its own"),
                              ({"device": "cuda", "depth": 65}, "1 to 64"), ({"depth": -1}, "1 to 64"),
                              ({"device": "cuda", "pin": True}, "page-locked anyway"), ({"pin": "cpu"}, "pin='cpu'"),
                              ({"pin": "gpu"}, "pin='gpu'"), ({"pin": True, "copy": True}, "copies of their own")):
            with self.assertRaises(stoker.SpecError, msg=options) as caught:
                self.loader(**options)
            self.assertIn(says, str(caught.exception))


if __name__ == "__main__":
    common.main()
