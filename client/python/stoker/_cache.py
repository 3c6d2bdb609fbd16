# SPDX-License-Identifier: Apache-2.0
"""Writing shards from Python: dicts of arrays in, the layout of `stoker write` out."""
import fcntl
import os
import re

from ._errors import DataError, SpecError
from ._stoker import Writer

SIZES = {"": 1, "B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30,
         "TB": 10**12, "TiB": 2**40}
# numpy's kind and size, and torch's names, as stream keys say it
DTYPES = {"bool": "bool", "uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "uint32": "u32",
          "int32": "i32", "uint64": "u64", "int64": "i64", "float16": "f16", "bfloat16": "bf16",
          "float32": "f32", "float64": "f64"}


def _bytes_of(size):
    if isinstance(size, int):
        return size
    m = re.fullmatch(r"(\d+)([A-Za-z]*)", size)
    if not m or m.group(2) not in SIZES:
        raise SpecError(f"shard_bytes={size!r}: bytes, or a number with {', '.join(k for k in SIZES if k)}")
    return int(m.group(1)) * SIZES[m.group(2)]


def _array(name, value):
    """A contiguous numpy array of what was given, and its element type's name."""
    import numpy
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu().contiguous()
        dtype = str(value.dtype).replace("torch.", "")
        if dtype == "bfloat16":
            import torch
            value = value.view(torch.int16)
        array = value.numpy()
    else:
        array = numpy.asarray(value)
        if array.dtype == object:
            raise SpecError(f"field {name!r}: {type(value).__name__} is neither numbers nor an array of one shape")
        dtype = array.dtype.name
    if dtype not in DTYPES:
        raise SpecError(f"field {name!r}: element type {dtype}, possible: {', '.join(DTYPES)}")
    # Shards are little-endian; ascontiguousarray would make a vector of a single number.
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array if array.flags.c_contiguous else numpy.array(array, order="C"), DTYPES[dtype]


class _Columns:
    """The fields of a set: those of its first sample. An array is ragged in its first dimension
    unless it is named as fixed."""

    def __init__(self, sample, fixed, dtypes):
        if not isinstance(sample, dict) or not sample:
            raise SpecError(f"a sample is a dict of arrays, not {type(sample).__name__}")
        self.fields, self.names, self.numpy = [], list(sample), {}
        for name in [*fixed, *dtypes]:
            if name not in sample:
                raise SpecError(f"{name!r} is no field of the first sample; it has {', '.join(sample)}")
        for name, value in sample.items():
            text = isinstance(value, (str, bytes))
            array, dtype = self._convert(name, value, dtypes.get(name))
            ragged = array.ndim > 0 and name not in fixed
            self.fields.append((name, dtype, ragged, text, array.shape[1:] if ragged else array.shape))
        self.dtypes = dtypes

    @staticmethod
    def _convert(name, value, dtype):
        import numpy
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, (bytes, bytearray)):
            return numpy.frombuffer(value, numpy.uint8), "u8"
        if not hasattr(value, "detach"):
            try:
                value = value if isinstance(value, (list, tuple)) and not len(value) else numpy.asarray(value)
            except ValueError as e:
                raise SpecError(f"field {name!r}: no array of one shape: {e}") from None
        if dtype is not None and not hasattr(value, "detach"):
            value = _cast(name, numpy.asarray(value), dtype)
        elif isinstance(value, (list, tuple)) and not len(value):
            value = numpy.zeros(0, numpy.int64)
        return _array(name, value)

    def row(self, sample, number):
        if not isinstance(sample, dict):
            raise SpecError(f"sample {number}: {type(sample).__name__} is no dict of arrays")
        if sample.keys() != set(self.names):
            raise SpecError(f"sample {number}: fields {', '.join(sample)}; the first one has {', '.join(self.names)}")
        row = []
        for name, dtype, ragged, text, shape in self.fields:
            array, found = self._convert(name, sample[name], self.dtypes.get(name))
            if found != dtype and array.size == 0:
                found = dtype
            if found != dtype:
                raise SpecError(f"sample {number}: field {name!r} is {found}, in the first sample {dtype}; "
                                f"dtypes={{{name!r}: ...}} converts")
            if (array.shape[1:] if ragged else array.shape) != shape and array.size:
                raise SpecError(f"sample {number}: field {name!r} has shape {array.shape}, in the first sample "
                                f"{'(any, ' + ', '.join(map(str, shape)) + ')' if ragged else shape}")
            row.append(array.reshape(-1).view("u1"))
        return row


def _cast(name, array, dtype):
    """To another element type, refused where a whole number would not be the same."""
    import numpy
    wanted = numpy.dtype({v: k for k, v in DTYPES.items()}.get(dtype, dtype))
    cast = array.astype(wanted)
    if wanted.kind in "iu" and not numpy.array_equal(cast, array):
        raise SpecError(f"field {name!r}: values do not fit {wanted.name}")
    return cast


def write(path, samples, *, fixed=(), dtypes=None, force=False, shard_bytes="256MiB", samples_per_shard=0):
    """Writes samples as a set of shards into the directory `path`, and returns its totals.

    samples: any iterable of dicts: field name to array (numpy, torch, list), number, str or bytes. An
    array may have another first dimension in each sample, unless its name is in `fixed`; numbers are
    fixed. dtypes: {name: "u16"} converts. Everything is streamed: memory does not grow with the data.
    Nothing is in `path` until all is written; force replaces a set that is there.
    """
    writer = columns = None
    try:
        for number, sample in enumerate(samples):
            if writer is None:
                columns = _Columns(sample, fixed, dtypes or {})
                writer = Writer(dir=os.fspath(path), fields=columns.fields, force=force,
                                samples_max=samples_per_shard, bytes_max=_bytes_of(shard_bytes))
            writer.row(columns.row(sample, number))
        if writer is None:
            raise DataError(f"{os.fspath(path)}: no samples to write")
        return writer.finish()
    finally:
        if writer is not None:
            writer.abort()


def _complete(path):
    return os.path.exists(os.path.join(path, "dataset.json"))


def cache(dataset, dir, map=None, **arguments):
    """Writes `dataset` (any iterable) to shards in `dir` once, and returns that path.

    map: called with each item; returns a sample for write(), or None to leave it out. Of the processes
    that call this with one directory one writes, the others wait for it; what a killed one left is
    written anew. Give another `dir` for other data: what is there is not compared.
    """
    dir = os.fspath(dir)
    if _complete(dir):
        return dir
    os.makedirs(os.path.dirname(os.path.abspath(dir)), exist_ok=True)
    with open(dir.rstrip("/") + ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the kernel however its holder ends
        if not _complete(dir):
            mapped = (item if map is None else map(item) for item in dataset)
            write(dir, (sample for sample in mapped if sample is not None), **arguments)
    return dir
