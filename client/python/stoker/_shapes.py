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
    """One shape class: rows, and the padded widths that its batches can have."""
    edge: int
    rows: int
    width_min: int
    width_max: int
    width_multiple: int


def _zeros(as_, dtype, shape):
    if as_ == "torch":
        import torch
        return torch.zeros(shape, dtype=getattr(torch, TORCH[dtype]))
    import numpy
    array = numpy.zeros(shape, dtype=NUMPY[dtype])
    if as_ == "jax":
        import jax.numpy
        return jax.numpy.asarray(array)
    return array


def _is_mask(name, kind):
    return kind == "ragged" and name.endswith("mask")


def example(as_, fields, shape, width):
    """A batch of zeros, masks of ones: every row full."""
    tensors = {}
    for field in fields:
        # Packed rows: as if each held one sample.
        lead = {"ragged": (shape.rows, field.get("width") or width), "sums": (shape.rows + 1,),
                "batch": (1,)}.get(field["kind"], (shape.rows,))
        tensor = _zeros(as_, field["dtype"], lead + tuple(field["shape"]))
        tensors[field["name"]] = tensor + 1 if _is_mask(field["name"], field["kind"]) and field["dtype"] != "BOOL" \
            else ~tensor if _is_mask(field["name"], field["kind"]) else tensor
    return Batch(tensors)
