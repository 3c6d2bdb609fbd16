# SPDX-License-Identifier: Apache-2.0
"""How tensors are made for each framework: what the extension calls for each of them."""
import sys
from typing import NamedTuple

from ._errors import SpecError

HOST = 1  # kDLCPU
FRAMEWORKS = ("torch", "numpy", "jax", "cupy", "dlpack")


class Maker(NamedTuple):
    """from_capsule takes a DLPack capsule, else from_tensor a stoker.Tensor; None: that as it is."""
    from_capsule: object
    from_tensor: object
    as_bool: object
    read_only: bool
    copy: bool


def framework(as_):
    if as_ is None:
        return next((name for name in ("torch", "numpy") if name in sys.modules), "dlpack")
    if as_ not in FRAMEWORKS:
        raise SpecError(f"as_={as_!r}: one of {', '.join(FRAMEWORKS)}")
    return as_


def _torch(copy):
    import torch
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    # Before 2.1 torch's importer knows no booleans: they come as bytes and are viewed as what they are.
    as_bool = (lambda t: t.view(torch.bool)) if version < (2, 1) else None
    return Maker(torch._C._from_dlpack, None, as_bool, False, copy)


def _cupy(tensor):
    """It has no arrays in host memory: what lies there, as sample_ids, comes as numpy's."""
    import cupy
    import numpy
    return numpy.asarray(tensor) if tensor.__dlpack_device__()[0] == HOST else cupy.from_dlpack(tensor)


def maker(as_, replicas, copy, on_device=False):
    """copy None: only where a write could otherwise crash: with several replicas of a rank, whose memory is
    mapped read-only, for those that cannot be told so (torch, and who takes DLPack before version 1)."""
    if on_device:
        if copy:
            raise SpecError("copy=True: what comes to a device is a copy of its own")
        replicas, copy = 1, False  # each seat has its own memory there
    if as_ == "torch":
        return _torch(replicas > 1 if copy is None else bool(copy))
    if as_ == "numpy":
        import numpy
        return Maker(None, numpy.asarray, None, True, bool(copy))
    if as_ == "jax":
        import jax.dlpack
        return Maker(None, jax.dlpack.from_dlpack, None, True, bool(copy))
    if as_ == "cupy":
        return Maker(None, _cupy, None, False, False)
    return Maker(None, None, None, True, replicas > 1 if copy is None else bool(copy))
