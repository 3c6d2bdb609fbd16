# SPDX-License-Identifier: Apache-2.0
"""Devices: what Loader(device=..., pin=...) asks of libstoker-cuda, and Batch.to(), pin() and record_stream()."""
import collections
import ctypes
import glob
import importlib.util
import os
import re
import sys
import warnings
from typing import Any, NamedTuple

from . import _stoker
from ._errors import DeviceError, SpecError

NONE, DEVICE, HOST = range(3)  # kinds of Pipeline, as the extension knows them
CURRENT = -1  # the device that is current on the thread that takes the first batch


class Pipeline(NamedTuple):
    """What libstoker-cuda is to do. current_stream: called with a device's number, its handle; None: no stream."""
    kind: int
    device: int
    depth: int
    current_stream: Any


def _ordinal(name, device):
    """Number of a CUDA device, CURRENT, or None for the host; of "cuda:1", 1, torch.device(...)."""
    if device is None or str(device) == "cpu":
        return None
    text = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", text)
    if not found:
        raise SpecError(f"{name}={device!r}: \"cpu\", \"cuda\", \"cuda:1\" or the like, or \"auto\"")
    return CURRENT if found[1] is None else int(found[1])


def _load_runtime():
    """The CUDA runtime that pip installed, unless the process has one: cupy and jax may bring it, and not load it."""
    with open("/proc/self/maps") as f:
        if "/libcudart" in f.read():
            return
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(glob.glob(os.path.join(root, "*", "lib", "libcudart.so.1[23]")), reverse=True):
            ctypes.CDLL(path)
            return


def _need(ordinal, torch):
    """DeviceError unless there is such a device, and torch, where it is to take the batches, can use it."""
    if torch and getattr(sys.modules["torch"].version, "cuda", None) is None:
        raise DeviceError(f"torch {sys.modules['torch'].__version__} was built without CUDA")
    _stoker.cuda_device(ordinal)


def _any(torch):
    """The current device, or None and a warning where there is none."""
    try:
        _need(CURRENT, torch)
    except DeviceError as e:
        warnings.warn(f"device=\"auto\": batches stay in host memory: {e}", RuntimeWarning, stacklevel=4)
        return None
    return CURRENT


def _torch_stream():
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)

    def current(index):
        torch.cuda.init()
        if capturing and capturing():
            raise DeviceError("a graph is being captured on the current stream: take the batch before")
        return (raw(index) if raw else torch.cuda.current_stream(index).cuda_stream) or 1
    return current


def _choose(device, pin, torch):
    """(kind, ordinal) of a Pipeline."""
    if device is None or str(device) == "cpu":
        ordinal = None
    else:
        _load_runtime()
        ordinal = _any(torch) if str(device) == "auto" else _ordinal("device", device)
    if ordinal is not None and pin and str(device) != "auto":
        raise SpecError(f"pin={pin!r}: with device={device!r} the slots are page-locked anyway")
    if ordinal is not None or not pin:
        return (NONE, CURRENT) if ordinal is None else (DEVICE, ordinal)
    ordinal = CURRENT if pin is True else _ordinal("pin", pin)
    if ordinal is None:
        raise SpecError(f"pin={pin!r}: True, or the CUDA device that the batches are copied to")
    _load_runtime()
    return HOST, ordinal


def pipeline(as_, device, depth, pin):
    """The Pipeline for a Loader's arguments, and what as_ then is."""
    if as_ == "torch":
        import torch  # noqa: F401
    torch = as_ == "torch" or (as_ is None and "torch" in sys.modules)
    kind, ordinal = _choose(device, pin, torch)
    if not 0 <= depth <= 64:
        raise SpecError(f"depth={depth!r}: 1 to 64 device slots; 0: as libstoker-cuda thinks best")
    if kind == DEVICE and as_ is None:
        as_ = next((name for name in ("torch", "cupy", "jax") if name in sys.modules), "dlpack")
    if kind == DEVICE and as_ == "numpy":
        raise SpecError(f"as_='numpy': it has no arrays on a device; with device={device!r}: torch, cupy, jax, dlpack")
    if kind != DEVICE and as_ == "cupy":
        raise SpecError("as_='cupy': it has arrays on a device only; give device=\"cuda\"")
    if kind != NONE:
        _need(ordinal, torch)
    return Pipeline(kind, ordinal, depth, _torch_stream() if kind != NONE and torch else None), as_


# Methods of Batch.

# Host batches whose copies to a device may still run, each with the event after its copies.
_in_flight: collections.deque = collections.deque()


def _map(batch, change):
    changed = {name: change(value) if hasattr(value, "to") else value for name, value in batch.items()}
    if all(changed[name] is value for name, value in batch.items()):
        return batch
    own = (getattr(batch, name, None) for name in ("sample_ids", "lengths", "row_first", "segment_from"))
    return batch._moved(changed, *(t.clone() if hasattr(t, "clone") else t for t in own))


def reap():
    """Lets go of host batches whose copies are done."""
    for _ in range(len(_in_flight)):
        event, batch = _in_flight.popleft()
        if not event.query():
            _in_flight.append((event, batch))


def _on_device(batch):
    return next((t.device for t in batch.values() if getattr(t, "is_cuda", False)), None)


def to(batch, device, non_blocking=False):
    torch = sys.modules.get("torch")
    if torch is None:
        raise TypeError("Batch.to() is for torch tensors")
    reap()
    moved = _map(batch, lambda t: t.to(device, non_blocking=non_blocking))
    if not non_blocking or moved is batch:
        return moved
    target = torch.device(device)
    reader = target if target.type == "cuda" else _on_device(batch)
    if reader is None:
        return moved
    # The copies read the batch after this returns: it is kept until their stream is done with it.
    stream = torch.cuda.current_stream(reader)
    if not batch._use_on(_handle(stream), stream.device.index):
        event = torch.cuda.Event()
        event.record(stream)
        _in_flight.append((event, batch))
    return moved


def pin(batch):
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return batch
    return _map(batch, lambda t: t if t.is_cuda or t.is_pinned() else t.pin_memory())


def _handle(stream):
    """The cudaStream_t of a stream of torch, cupy or whoever tells it, or the number itself."""
    if hasattr(stream, "__cuda_stream__"):
        told = stream.__cuda_stream__
        value = (told() if callable(told) else told)[1]
    else:
        value = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if not isinstance(value, int):
        raise TypeError(f"record_stream: a stream of torch or cupy, or its handle, not {stream!r}")
    return value or 1  # the legacy default stream has two names


def record_stream(batch, stream):
    index = getattr(getattr(stream, "device", None), "index", None)
    if batch._use_on(_handle(stream), -1 if index is None else index):
        return
    if _on_device(batch) is None or any(getattr(t, "is_cuda", False) is False for t in batch.values()):
        raise DeviceError(f"record_stream: this batch did not come through a pipeline of the device of {stream!r}; "
                          "that is for Loader(device=...) and Loader(pin=True)")
    for t in batch.values():  # memory of torch's own
        t.record_stream(stream)
