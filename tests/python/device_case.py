# SPDX-License-Identifier: Apache-2.0
"""What tests of the device side share: the stand-in for CUDA, and as much of torch as stoker touches."""
import gc
import sys
import types
import unittest.mock

import reader
import stoker
from common import LoaderCase, ids


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
