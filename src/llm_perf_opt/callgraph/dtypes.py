"""How many bytes a tensor of a given shape and dtype or stored format holds, without torch."""

from __future__ import annotations

import math

from llm_perf_opt.callgraph.records import TensorMeta
from llm_perf_opt.callgraph.weight_formats import weight_format

_DTYPES_BY_BYTES = {
    1: "bool uint8 int8 quint8 qint8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 bits8 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 "
    "quint4x2 quint2x4 bits1x8 bits2x4 bits4x2",  # sub-byte types are packed: one stored element is one byte
    2: "float16 bfloat16 int16 uint16 bits16",
    4: "float32 int32 uint32 complex32 qint32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
_BYTES_PER_ELEMENT = {name: size for size, names in _DTYPES_BY_BYTES.items() for name in names.split()}


def tensor_bytes(meta: TensorMeta) -> int:
    """What the tensor would occupy by itself; a view may share a larger storage, an expanded one a smaller.

    A stored weight format (`int4-g128`) counts with its scales and zero points. An unknown name raises.
    """
    size = _BYTES_PER_ELEMENT.get(meta.dtype)
    if size is None:
        return weight_format(meta.dtype).stored_bytes(meta.shape)
    return math.prod(meta.shape) * size
