# SPDX-License-Identifier: Apache-2.0
"""The closed set of shapes, and example batches of each for compilers, graphs and memory tests."""
from typing import NamedTuple

from ._stoker import Batch

TORCH = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
         "U16": "uint16", "U32": "uint32", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
         "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
         "C64": "complex64"}
# Types without a name in numpy come as the bytes they are.
NUMPY = dict(TORCH, BF16="uint16", F8_E4M3="uint8", F8_E5M2="uint8")


class Shape(NamedTuple):
    """One shape class: rows, and the padded widths that its batches can have.

    edge2, width2_min and width2_max are those of the second length, and 0 where there is one.
    """
    edge: int
    rows: int
    width_min: int
    width_max: int
    width_multiple: int
    edge2: int = 0
    width2_min: int = 0
    width2_max: int = 0


def _convert(as_, dtype, array):
    """A numpy array of whole numbers as a tensor of the framework."""
    if as_ == "torch":
        import torch
        return torch.from_numpy(array).to(getattr(torch, TORCH[dtype]))
    if as_ == "jax":
        import jax.numpy
        return jax.numpy.asarray(array).astype(TORCH[dtype])
    array = array.astype(NUMPY[dtype])
    if as_ == "cupy":
        import cupy
        return cupy.asarray(array)
    return array


def _is_mask(name, kind):
    return kind == "ragged" and name.endswith("mask")


def _fill(lead, shape, make, start, size):
    """What a field holds when each row is one sample that fills it."""
    import numpy
    array = numpy.zeros(lead + shape, numpy.int64)
    if make in ("mask", "segment_ids"):
        array += 1
    elif make == "position_ids":
        array += numpy.arange(start, start + lead[1])
    elif make == "sums":
        array += numpy.arange(lead[0]) * size
    elif make in ("lengths", "max_seqlen"):
        array += size
    return array


def _made(schema):
    """{field: (make, start)}: as the spec says, else what its name says."""
    given = {f.get("name"): f for f in schema["spec"].get("fields") or ()}
    made = {}
    for field in schema["fields"]:
        name, kind = field["name"], field["kind"]
        default = "sums" if kind == "sums" else "mask" if _is_mask(name, kind) else name if not given else "copy"
        key = given.get(name, {})
        made[name] = "sums" if kind == "sums" else key.get("make") or default, key.get("start") or 0
    return made


def example(as_, schema, number, shape, ranks):
    """A batch of a shape class at its largest: every row is one sample of zeros that fills it.

    ranks: how many batches make an optimiser step.
    """
    import numpy
    tensors, made, rows, width = {}, _made(schema), shape.rows, shape.width_max
    for field in schema["fields"]:
        name = field["name"]
        size = field.get("width") or width
        lead = {"ragged": (rows, size), "sums": (rows + 1,), "batch": (1,)}.get(field["kind"], (rows,))
        tensors[name] = _convert(as_, field["dtype"], _fill(lead, tuple(field["shape"]), *made[name], size))
    figures = {"shape_class": number, "edge": shape.edge, "rows": rows, "rows_real": rows, "width": width,
               "max_seqlen": width, "real_tokens": rows * width, "padded_tokens": rows * width,
               "global_tokens": rows * width * ranks}
    packed = schema["counts"]["row_segments"] > 0
    numbers = [numpy.full(rows, -1, numpy.int64), numpy.full(rows, width, numpy.int32)]
    numbers += [numpy.arange(rows + 1, dtype=numpy.int32), numpy.zeros(rows, numpy.int32)] if packed else [None, None]
    dtypes = "I64", "I32", "I32", "I32"
    return Batch._example(tensors, figures, *(n if n is None else _convert(as_, d, n) for n, d in zip(numbers, dtypes)))
