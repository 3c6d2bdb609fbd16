# SPDX-License-Identifier: Apache-2.0
"""Batches on a device, and host batches that are copied there: with the stand-in in place of the CUDA runtime."""
import collections
import gc
import json
import os
import socket
import sys
import threading
import time
import types
import unittest.mock
import warnings

import common
import harness
import reader
import stoker
from common import LoaderCase, ids

GATED = (0, True)


def order(batch, stream):
    """{name: Taken}: every tensor of a batch, on a stream."""
    return {name: reader.take(t.__dlpack__(stream=stream)) for name, t in batch.items()}


class Tensor:
    """As much of a torch.Tensor as stoker touches."""

    def __init__(self, taken, device=None):
        self.taken = taken
        kind, number = taken.about["device"]
        self.device = device or types.SimpleNamespace(type="cuda" if kind == 2 else "cpu",
                                                      index=number if kind == 2 else None)
        self.recorded = []

    @property
    def is_cuda(self):
        return self.device.type == "cuda"

    def is_pinned(self):
        return False

    def to(self, device, non_blocking=False):
        target = Torch.device(device)
        if target.type == self.device.type:
            return self
        read = self.taken.read(Torch.streams[target.index or 0], 0, Torch.gated)
        Torch.reads.append(read)
        return Tensor(self.taken if target.type == "meta" else Copied(read), target)

    def clone(self):
        return Tensor(Copied(None), self.device)

    def view(self, dtype):
        return self

    def record_stream(self, stream):
        self.recorded.append(stream)


class Copied:
    def __init__(self, read):
        self.read = read
        self.about = {"device": (2, 0)}


class Torch(types.ModuleType):
    """As much of torch as stoker touches; its current stream is Torch.streams[device]."""
    streams = {}
    reads = []
    gated = False
    bool = "bool"
    __version__ = "2.4.1+cu124"
    version = types.SimpleNamespace(cuda="12.4")

    class Event:
        def record(self, stream):
            self.mark = reader.mark(stream.cuda_stream)

        def query(self):
            return self.mark.done

    @staticmethod
    def device(device):
        kind, _, number = str(device).partition(":")
        return types.SimpleNamespace(type=kind, index=int(number) if number else None)

    @classmethod
    def current_stream(cls, device):
        index = (cls.device(device) if isinstance(device, str) else device).index or 0
        return types.SimpleNamespace(cuda_stream=cls.streams[index], device=types.SimpleNamespace(index=index))

    def __init__(self):
        super().__init__("torch")
        self._C = types.SimpleNamespace(_from_dlpack=lambda capsule: Tensor(reader.take(capsule)),
                                        _cuda_getCurrentRawStream=lambda index: self.streams[index])
        self.cuda = types.SimpleNamespace(init=lambda: None, current_stream=self.current_stream, Event=self.Event)


class DeviceCase(LoaderCase):
    def setUp(self):
        super().setUp()
        reader.set_device(0)
        reader.reset()
        self.stream = reader.stream()
        self.loaders = []
        self.addCleanup(self.end)

    def end(self):
        self.loaders = self.loader = self.batch = None
        stoker._device._in_flight.clear()
        Torch.reads.clear()
        gc.collect()
        reader.set_device(0)
        if self.stream:
            reader.destroy(self.stream)
        reader.reset()  # ends the process when anything is left

    def loader(self, job="job", as_="dlpack", **options):
        l = super().loader(job, as_=as_, **options)
        self.loaders.append(l)
        return l

    def torch(self):
        fake = Torch()
        Torch.streams = {0: self.stream, 1: self.stream}
        Torch.gated = False
        patch = unittest.mock.patch.dict(sys.modules, torch=fake)
        patch.start()
        self.addCleanup(patch.stop)
        return fake

    def on_host(self, **options):
        """[(epoch, step, ids, {name: bytes})]"""
        l = self.loader("host", **options)
        found = [(b.epoch, b.step, ids(b), {n: bytes(memoryview(t)) for n, t in b.items()}) for b in l]
        self.assertGreater(len(found), 20)
        l.close()
        return found

    def read(self, batch, stream=None):
        """The same of a batch on the device, as a kernel on the stream sees it."""
        reads = {name: t.read(stream or self.stream) for name, t in order(batch, stream or self.stream).items()}
        return batch.epoch, batch.step, ids(batch), reads

    def seen(self, found):
        reader.sync(self.stream)
        return [(epoch, step, samples, {n: r.bytes for n, r in reads.items()}) for epoch, step, samples, reads in found]

    def costs(self):
        return {name: reader.calls("cuda" + name) for name in (
            "MemcpyAsync", "EventRecord", "StreamWaitEvent", "StreamSynchronize", "DeviceSynchronize", "HostRegister")}


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


class Flow(DeviceCase):
    def test_a_break_goes_on_with_the_next_batch_and_states_are_of_what_was_returned(self):
        want = self.on_host()
        l = self.loader(device="cuda:0")
        found = []
        for b in l:
            found.append(self.read(b))
            if b.step == 4:
                break
        state = l.state_dict()
        self.assertEqual((state["epoch"], state["step"]), (0, 5))
        self.assertEqual(l.state_dict(after=b), state)
        found += [self.read(b) for b in l]
        self.assertEqual(self.seen(found), want)
        self.assertEqual((l.epoch, l.step), (1, 0))
        other = self.loader("other", device="cuda:0", state=state)
        self.assertEqual(self.seen([self.read(b) for b in other]), want[5:])
        l.load_state_dict(state)
        self.assertEqual(self.seen([self.read(b) for b in l]), want[5:])

    def test_epochs_follow_one_another_and_the_stream_ends(self):
        l = self.loader(device="cuda:0", epochs=2)
        host = self.loader("host", epochs=2)
        for epoch in range(3):
            want = [(b.epoch, b.step, ids(b), {n: bytes(memoryview(t)) for n, t in b.items()}) for b in host]
            self.assertEqual(self.seen([self.read(b) for b in l]), want)
            self.assertEqual(bool(want), epoch < 2)

    def test_evaluation_begins_anew_each_time(self):
        l = stoker.eval_loader(self.data, rows=8, as_="dlpack", daemon="system", socket=self.d.socket, job="job",
                               device="cuda:0")
        self.loaders.append(l)
        next(iter(l))
        for _ in range(2):
            found = [self.read(b) for b in l]
            self.assertEqual(sorted(i for _, _, samples, _ in found for i in samples), list(range(200)))

    def test_a_killed_daemon_costs_no_batch_and_none_comes_twice(self):
        want = self.on_host()
        reader.delay(500)
        l = self.loader(device="cuda:0", reconnect=20)
        it, found = iter(l), []
        for _ in range(9):
            found.append(self.read(next(it)))
        held = next(it)
        self.d.kill()
        self.d.start()
        found.append(self.read(held))
        del held
        found += [self.read(b) for b in it]
        self.assertEqual(self.seen(found), want)
        self.assertEqual(l.stats()["page_locked"], 1)

    def test_a_daemon_that_stays_away_is_an_error_of_the_connection(self):
        l = self.loader(device="cuda:0", reconnect=0)
        it = iter(l)
        next(it)
        self.d.kill()
        with self.assertRaises(stoker.Disconnected):
            for _ in it:
                pass

    def test_batches_outlive_their_loader(self):
        l = self.loader(device="cuda:0")
        it = iter(l)
        b, other = next(it), next(it)
        want = self.on_host()[0]
        l.close()
        del l, it, other
        self.assertEqual(self.seen([self.read(b)]), [want])
        with self.assertRaises(stoker.Error):
            next(iter(self.loaders[0]))

    def test_who_holds_every_device_slot_is_warned_and_then_refused(self):
        l = self.loader(device="cuda:0", depth=2, timeout=1.3)
        it = iter(l)
        held = [next(it), next(it)]
        with self.assertWarns(stoker.SlotsHeldWarning) as warned, self.assertRaises(stoker.Timeout):
            next(it)
        self.assertIn("2 of 2 device slots", str(warned.warning))
        self.assertIn("depth", str(warned.warning))
        held.pop()
        next(it)

    def test_a_cycle_that_holds_the_device_slots_is_collected(self):
        l = self.loader(device="cuda:0", depth=1)
        it = iter(l)
        cycle = [next(it)]
        cycle.append(cycle)
        gc.disable()
        self.addCleanup(gc.enable)
        del cycle
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(it)

    def test_a_batch_that_comes_while_one_waits_is_taken_by_another_thread(self):
        l = self.loader(device="cuda:0", depth=8, epochs=1)
        found, lock = [], threading.Lock()
        def consume():
            stream = reader.stream()
            for b in l:
                got = b.epoch, b.step, ids(b), {n: t.read(stream) for n, t in order(b, stream).items()}
                with lock:
                    found.append(got)
                del b
            reader.destroy(stream)
        threads = [threading.Thread(target=consume) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(self.seen(sorted(found, key=lambda f: f[1])), self.on_host())


class Faults(DeviceCase):
    def test_an_error_of_cuda_is_named_and_nothing_is_lost(self):
        want = self.on_host()
        l = self.loader(device="cuda:0")
        it, found = iter(l), []
        for name in "MemcpyAsync", "EventRecord":
            for _ in range(4):
                found.append(self.read(next(it)))
            reader.sync(self.stream)
            reader.fail("cuda" + name, 1, 1000, 700)
            with self.assertRaises(stoker.DeviceError) as caught:
                for _ in range(5):
                    found.append(self.read(next(it)))
            self.assertIsInstance(caught.exception, RuntimeError)
            self.assertIn(f"cuda{name}: cudaErrorIllegalAddress", str(caught.exception))
            self.assertIn("epoch 0 step", str(caught.exception))
            reader.fail("cuda" + name, 1, 0, 0)
            self.assertEqual(reader.figures()["last_error"], 0)
        found += [self.read(b) for b in it]
        self.assertEqual(self.seen(found), want)

    def test_a_stream_that_cannot_wait_is_an_error_of_the_consumer(self):
        b = next(iter(self.loader(device="cuda:0")))
        reader.fail("cudaStreamWaitEvent", 1, 1, 400)
        with self.assertRaises(stoker.DeviceError) as caught:
            b["input_ids"].__dlpack__(stream=self.stream)
        self.assertIn("cudaStreamWaitEvent: cudaErrorInvalidResourceHandle", str(caught.exception))
        b["input_ids"].__dlpack__(stream=self.stream)

    def test_memory_that_cannot_be_page_locked_costs_one_warning_and_no_byte(self):
        want = self.on_host()
        for code, name in ((801, "cudaErrorNotSupported"), (2, "cudaErrorMemoryAllocation")):
            reader.fail("cudaHostRegister", 1, 1000, code)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                l = self.loader(f"job-{code}", device="cuda:0")
                found = [self.read(b) for b in l]
            self.assertEqual(self.seen(found), want)
            self.assertEqual([w.category for w in said], [RuntimeWarning])
            self.assertIn(name, str(said[0].message))
            self.assertEqual(l.stats()["page_locked"], 0)
            self.assertEqual(reader.figures()["last_error"], 0)
            l.close()
        reader.fail("cudaHostRegister", 1, 0, 0)

    def test_what_opening_needs_and_does_not_get_is_named(self):
        for name, code in (("cudaMalloc", 2), ("cudaStreamCreateWithFlags", 700), ("cudaEventCreateWithFlags", 700)):
            reader.fail(name, 1, 1, code)
            with self.assertRaises(stoker.DeviceError) as caught:
                self.loader(device="cuda:0")
            self.assertIn(name + ": cudaError", str(caught.exception))
            self.assertEqual(reader.figures()["registered"], 0)

    def test_a_device_that_is_not_there_is_refused_with_how_many_there_are(self):
        with self.assertRaises(stoker.DeviceError) as caught:
            self.loader(device="cuda:7")
        self.assertIn("device 7: there are 2", str(caught.exception))

    def attach(self, device, **env):
        s = self.script(f"""
import warnings
warnings.simplefilter("always")
try:
    l = loader(device={device!r}, epochs=1)
    n = sum(1 for b in l)
    print(l.device, n)
except stoker.Error as e:
    print(type(e).__name__, e)
""", env=env)
        status, out, said = s.end()
        self.assertEqual(status, 0, said)
        return out, said

    def test_without_a_device_a_trainer_that_wants_one_does_not_start(self):
        for device in "cuda", "cuda:0":
            out, said = self.attach(device, STANDIN_DEVICES="0")
            self.assertEqual(out.split(":")[0], "DeviceError CUDA")
            self.assertIn("cudaErrorNoDevice", out)

    def test_without_a_device_auto_is_the_host_and_one_warning(self):
        out, said = self.attach("auto", STANDIN_DEVICES="0")
        self.assertEqual(out.split(), ["cpu", str(len(self.on_host()))])
        self.assertEqual(said.count("RuntimeWarning"), 1, said)
        self.assertIn("cudaErrorNoDevice", said)
        self.assertEqual(self.attach("auto"), (f"cuda:0 {len(self.on_host())}\n", ""))

    def test_a_runtime_that_pip_installed_is_found(self):
        folder = self.path("site/nvidia/cuda_runtime/lib")
        os.makedirs(folder)
        os.symlink(os.path.join(os.environ["STANDIN_13"], "libcudart.so.13"), folder + "/libcudart.so.13")
        paths = [p for p in os.environ["LD_LIBRARY_PATH"].split(":") if p != os.environ["STANDIN_13"]]
        out, said = self.attach("cuda:1", LD_LIBRARY_PATH=":".join(paths),
                                PYTHONPATH=self.path("site") + ":" + os.environ["PYTHONPATH"])
        self.assertEqual(out, f"cuda:1 {len(self.on_host())}\n", said)

    def test_the_older_runtime_serves_as_well(self):
        path = os.environ["LD_LIBRARY_PATH"].replace(os.environ["STANDIN_13"], os.environ["STANDIN_12"])
        out, said = self.attach("cuda:1", LD_LIBRARY_PATH=path)
        self.assertEqual(out, f"cuda:1 {len(self.on_host())}\n", said)

    @common.needs_torch
    def test_a_torch_without_cuda_is_no_consumer_of_device_batches(self):
        if common.torch.version.cuda:
            self.skipTest("this torch has CUDA")
        for options in {"device": "cuda"}, {"pin": True}:
            with self.assertRaises(stoker.DeviceError) as caught:
                self.loader(as_="torch", **options)
            self.assertIn("built without CUDA", str(caught.exception))
        with self.assertWarns(RuntimeWarning) as warned:
            l = self.loader(as_="torch", device="auto")
        self.assertEqual((l.device, next(iter(l))["input_ids"].device.type), ("cpu", "cpu"))
        self.assertIn("built without CUDA", str(warned.warning))

    def test_without_the_library_it_is_named_and_the_host_works(self):
        os.makedirs(self.path("lib"))
        path = self.path("lib") + ":" + os.environ.get("LD_LIBRARY_PATH", "")
        with open(self.path("lib/libstoker-cuda.so.0"), "w") as f:
            f.write("no library")
        out, _ = self.attach("cuda", LD_LIBRARY_PATH=path)
        self.assertIn("DeviceError libstoker-cuda cannot be loaded: ", out)
        self.assertEqual(self.attach(None, LD_LIBRARY_PATH=path)[0].split()[0], "cpu")
        os.remove(self.path("lib/libstoker-cuda.so.0"))
        os.symlink(os.path.join(os.environ["STANDIN_13"], "libcudart.so.13"), self.path("lib/libstoker-cuda.so.0"))
        out, _ = self.attach("cuda", LD_LIBRARY_PATH=path)
        self.assertIn("libstoker-cuda.so.0 is of another release: it has no stk_cuda_", out)


class Pinned(DeviceCase):
    """Host batches in page-locked memory, copied by the trainer."""

    def test_a_batch_goes_back_when_its_stream_is_done_and_not_before(self):
        want = self.on_host()
        self.torch()
        l = self.loader(as_="torch", pin=True, prefetch=2, default_fields="stored")
        it, found = iter(l), []
        for n in range(len(want)):
            b = next(it)
            self.assertEqual(b["input_ids"].device.type, "cpu")
            # a copy that the trainer queues: it reads late, and the tensors are dropped at once
            found.append((b.epoch, b.step, want[n][2], {k: t.taken.read(self.stream, 3000) for k, t in b.items()}))
            del b
        self.assertEqual(self.seen(found), want)
        self.assertEqual(l.stats()["page_locked"], 1)
        self.assertEqual(l.device, "cpu")
        self.assertEqual(reader.calls("cudaDeviceSynchronize"), 0)
        self.assertEqual(reader.calls("cudaMalloc"), 0)

    def test_streams_that_are_named_are_waited_for(self):
        want = self.on_host()
        side = reader.stream()
        self.addCleanup(reader.destroy, side)
        l = self.loader(pin="cuda:0", prefetch=2)
        found = []
        for b in l:
            tensors = {n: reader.take(t.__dlpack__()) for n, t in b.items()}
            b.record_stream(side)
            found.append((b.epoch, b.step, ids(b), {n: t.read(side, 3000) for n, t in tensors.items()}))
            del b, tensors
        reader.sync(side)
        self.assertEqual(self.seen(found), want)

    def test_to_keeps_the_batch_until_its_copies_are_made(self):
        for pin in True, False:
            torch = self.torch()
            l = self.loader(f"job-{pin}", as_="torch", pin=pin, prefetch=2)
            b = next(iter(l))
            Torch.gated = True
            moved = b.to("cuda:0", non_blocking=True)
            self.assertEqual({t.device.type for t in moved.values()}, {"cuda"})
            self.assertEqual((moved.step, moved.rows, moved.state), (b.step, b.rows, b.state))
            del b
            self.assertEqual(len(stoker._device._in_flight), 0 if pin else 1)
            self.assertTrue(pin or l.stats()["slots_held"] == 1)
            for _ in Torch.reads:
                reader.open_gate()
            reader.sync(self.stream)
            stoker._device.reap()
            self.assertEqual(l.stats()["slots_held"], 0)
            moved.record_stream(torch.current_stream("cuda:0"))  # its memory is torch's own
            self.assertEqual(len(moved["input_ids"].recorded), 1)
            Torch.reads.clear()
            l.close()

    def test_copies_that_are_not_made_yet_do_not_stop_a_loader_for_ever(self):
        self.torch()
        l = self.loader(as_="torch", prefetch=2, timeout=5)
        it = iter(l)
        Torch.gated = True
        for _ in range(2):
            next(it).to("cuda:0", non_blocking=True)
        def release():
            time.sleep(0.3)
            for _ in Torch.reads:
                reader.open_gate()
        thread = threading.Thread(target=release)
        thread.start()
        b = next(it)
        thread.join()
        self.assertEqual(b.step, 2)
        Torch.gated = False

    def test_a_copy_to_another_device_is_waited_for_there(self):
        self.torch()
        reader.set_device(1)
        Torch.streams[1] = reader.stream()
        reader.set_device(0)
        l = self.loader(as_="torch", pin="cuda:0", prefetch=2)
        b = next(iter(l))
        b.to("cuda:1", non_blocking=True)
        del b
        self.assertEqual(len(stoker._device._in_flight), 1)
        reader.sync(Torch.streams[1])
        stoker._device.reap()
        self.assertEqual(l.stats()["slots_held"], 0)
        reader.destroy(Torch.streams[1])

    def test_batches_outlive_their_loader(self):
        want = self.on_host()[0][3]
        self.torch()
        l = self.loader(as_="torch", pin=True, default_fields="stored")
        b = next(iter(l))
        l.close()
        self.assertGreater(reader.figures()["registered"], 0)
        reads = {n: t.taken.read(self.stream, 5000) for n, t in b.items()}
        del b
        self.assertEqual({n: r.bytes for n, r in reads.items()}, want)
        self.assertEqual(reader.figures()["registered"], 0)

    def test_memory_that_cannot_be_page_locked_is_told_once(self):
        want = self.on_host()
        reader.fail("cudaHostRegister", 1, 1000, 1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            l = self.loader(pin=True)
            found = [(b.epoch, b.step, ids(b), {n: bytes(memoryview(t)) for n, t in b.items()}) for b in l]
        reader.fail("cudaHostRegister", 1, 0, 0)
        self.assertEqual(found, want)
        self.assertEqual(len(said), 1)
        self.assertIn("cudaErrorInvalidValue", str(said[0].message))
        self.assertEqual(l.stats()["page_locked"], 0)

    def test_state_and_break_are_those_of_a_host_loader(self):
        want = self.on_host()
        l = self.loader(pin=True)
        for b in l:
            if b.step == 6:
                break
        state = l.state_dict()
        self.assertEqual(ids(next(iter(l))), want[7][2])
        l.load_state_dict(state)
        self.assertEqual(ids(next(iter(l))), want[7][2])


class Processes(DeviceCase):
    EXITS = {
        "a loader and its batches at the end of the process": "keep = [b for b, _ in zip(l, range(2))]",
        "a loop that is left by an exception": "for b in l:\n    raise SystemExit(0)",
        "a cycle": "b = next(iter(l)); c = [l, b]; c.append(c); del l, b, c",
        "a tensor that outlives all": "import builtins; builtins.kept = reader.take(next(iter(l))['input_ids']"
                                      ".__dlpack__(stream=1)); del l",
        "a thread in the middle of a wait": "threading.Thread(target=lambda: [None for b in l], daemon=True).start();"
                                            " time.sleep(0.1)",
    }

    def test_a_process_may_end_at_any_time(self):
        for what, code in self.EXITS.items():
            for kind in "device='cuda:0'", "pin=True":
                if "kept" in code and "pin" in kind:
                    continue
                s = self.script(f"import reader\nl = loader({kind}, epochs=1000)\n{code}\n")
                status, out, said = s.end()
                self.assertEqual((status, out, said), (0, "", ""), f"{what}, {kind}")

    def test_a_killed_trainer_leaves_the_daemon_as_it_was(self):
        s = self.script("l = loader(device='cuda:0')\nb = next(iter(l))\nprint('ready', flush=True)\ntime.sleep(60)\n",
                        env={"STANDIN_DELAY_US": "1000"})
        self.assertEqual(s.line(), "ready")
        s.process.kill()
        s.process.wait(harness.SLOW)
        self.d.wait_idle()
        self.assertGreater(len(self.on_host()), 0)

    def test_a_forked_child_is_told_and_the_parent_goes_on(self):
        for kind in "device='cuda:0'", "pin=True":
            s = self.script(f"""
import gc
l = loader({kind}, epochs=1)
it = iter(l)
b = next(it)
t = b["input_ids"]
capsule = t.__dlpack__(stream=1) if "device" in {kind!r} else t.__dlpack__()
pid = os.fork()
if not pid:
    status = 9
    for call in (lambda: next(it), l.state_dict, lambda: l.load_state_dict(None),
                 lambda: b.record_stream(7) if "device" in {kind!r} else l.why()):
        try:
            call()
            os._exit(status)
        except stoker.ForkedError:
            pass
        status += 1
    l.close()
    del capsule, t, b, it, l, call
    gc.collect()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
del capsule, t, b
print(1 + sum(1 for b in it))
""")
            status, out, said = s.end()
            self.assertEqual((status, said), (0, ""))
            self.assertEqual(out.split(), ["0", str(len(self.on_host()))])


if __name__ == "__main__":
    common.main()
