"""How many bytes a tensor takes, by dtype or stored format: bits per value, values per scale, type of the matmuls.

A stored format is the `dtype` of a weight's `TensorMeta`, so everything that adds up bytes follows by itself.
A name reads from left to right:

    values [-grouping] [-options] [.T]         int4-g128-sym, fp8-block128, nf4-g64-double, int8-channel-a8

`-gN` is one scale for N neighbours along the input dimension, `-channel` one for each output, `-tensor` one for the
matrix, `-blockN` one for N x N values. Integers of at most 6 bits have a zero point next to each scale unless `-sym`,
8-bit integers only with `-asym`. `-double` quantises the scales once more, `-sN` gives a scale N bits.
`-a8`, `-afp8` and `-a16` say that activations are int8, fp8 or 16-bit whatever the family's own rule is.
`.T` marks a tensor with the input dimension as the last but one, as in a transposed view.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from llm_perf_opt.core.errors import PerfOptError, UsageError

if TYPE_CHECKING:
    from llm_perf_opt.core.callgraph.records import TensorMeta

TRANSPOSED = ".T"
FP8 = "float8_e4m3fn"
FP4 = "float4_e2m1fn_x2"
_DOUBLE_GROUP, _DOUBLE_SCALE_BITS = 256, 8  # bitsandbytes: the scales themselves in groups of 256, in 8 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """What a matrix of `rows` outputs and `columns` inputs takes, and in which type its matmuls run.

    `rows_per_scale` and `columns_per_scale` are the block of values that share a scale; None: all of them. With
    `is_flat` the columns run on over the ends of the rows, as bitsandbytes counts. `compute` is the torch dtype of the
    matmuls, None where values are turned into the activation's own type first.
    """

    value_bits: int
    rows_per_scale: int | None = 1
    columns_per_scale: int | None = None
    scale_bits: int = 16
    zero_point_bits: int = 0
    matrix_bits: int = 0  # once per matrix: a scale of the scales
    is_double: bool = False
    is_flat: bool = False
    is_transposed: bool = False
    compute: str | None = None

    def stored_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this shape, whatever precedes its last two dimensions being a stack of matrices.

        Values, scales and zero points of a matrix are each rounded up to whole bytes. Tables that have the same size
        for any matrix (the code book of nf4) and the padding of an engine are not in it.
        """
        if not math.prod(shape):
            return 0
        rows, columns = (1, *shape)[-2:]
        if self.is_transposed:
            rows, columns = columns, rows
        scales = self._scales(rows, columns)
        matrix_bytes = (
            _whole_bytes(rows * columns * self.value_bits)
            + self._scale_bytes(scales)
            + _whole_bytes(scales * self.zero_point_bits)
            + _whole_bytes(self.matrix_bits)
        )
        return math.prod(shape[:-2]) * matrix_bytes

    def bits_per_value(self) -> float:
        """Of a large matrix, scales and zero points included; scales of whole rows or matrices count as nothing."""
        if self.rows_per_scale is None or self.columns_per_scale is None:
            return float(self.value_bits)
        scale_bits = float(self.scale_bits)
        if self.is_double:
            scale_bits = _DOUBLE_SCALE_BITS + self.scale_bits / _DOUBLE_GROUP
        return self.value_bits + (scale_bits + self.zero_point_bits) / (self.rows_per_scale * self.columns_per_scale)

    def _scales(self, rows: int, columns: int) -> int:
        if self.is_flat:
            rows, columns = 1, rows * columns
        return math.ceil(rows / (self.rows_per_scale or rows)) * math.ceil(
            columns / (self.columns_per_scale or columns)
        )

    def _scale_bytes(self, scales: int) -> int:
        if not self.is_double:
            return _whole_bytes(scales * self.scale_bits)
        return _whole_bytes(scales * _DOUBLE_SCALE_BITS) + _whole_bytes(
            math.ceil(scales / _DOUBLE_GROUP) * self.scale_bits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormats:
    """What a checkpoint says of its own storage: parameter name -> format, the cache, who said so, what was not read.

    `origin` is empty where nothing is said, which is the same as storing everything in the type of the trace.
    """

    origin: str = ""
    weights: Mapping[str, str] = field(default_factory=dict)
    cache: str | None = None
    warnings: tuple[str, ...] = ()


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8)


_FAMILIES = {
    "fp8": WeightFormat(value_bits=8, rows_per_scale=None, scale_bits=32, compute=FP8),
    "int8": WeightFormat(value_bits=8),
    **{f"int{bits}": WeightFormat(value_bits=bits, zero_point_bits=bits) for bits in (2, 3, 4, 5, 6)},
    "nf4": WeightFormat(value_bits=4, scale_bits=32, is_flat=True),
    "fp4": WeightFormat(value_bits=4, scale_bits=32, is_flat=True),
    "mxfp4": WeightFormat(value_bits=4, columns_per_scale=32, scale_bits=8, compute=FP4),
    "mxfp8": WeightFormat(value_bits=8, columns_per_scale=32, scale_bits=8, compute=FP8),
    "nvfp4": WeightFormat(value_bits=4, columns_per_scale=16, scale_bits=8, matrix_bits=32, compute=FP4),
}
_COMPUTE = {"a8": "int8", "afp8": FP8, "a16": None}
# What people type, where the name alone would also be a torch dtype or leave something open.
SHORT_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "int8": "int8-channel",
    "int4": "int4-g128",
    "nf4": "nf4-g64-double",
    "fp8-tensor": "fp8",
}
WHAT_IF_NAMES = ("bf16", "fp8", "int8", "int4-g128", "nf4", "mxfp4", "nvfp4")
CACHE_NAMES = {"fp8": FP8, "int8": "int8", "bf16": "bfloat16", "fp16": "float16"}
_NAME = re.compile(
    rf"(?P<values>{'|'.join(_FAMILIES)})"
    r"(?:-(?P<grouping>tensor|channel|g(?P<group>[1-9]\d{0,5})|block(?P<rows>[1-9]\d{0,5})(?:x(?P<columns>[1-9]\d{0,5}))?))?"
    r"(?P<options>(?:-(?:sym|asym|double|s8|s16|s32|a8|afp8|a16))*)"
    r"(?P<transposed>\.T)?"
)


def stored_dtype(name: str) -> str:
    """What a person calls a format as the dtype of a weight: `bf16` is `bfloat16`, `int4` is `int4-g128`."""
    full = SHORT_NAMES.get(name, name)
    if full in SHORT_NAMES.values() or (is_weight_format(full) and not full.endswith(TRANSPOSED)):
        return full
    raise UsageError(
        f"{name!r} is not a weight format.",
        why=f"the formats are {', '.join(WHAT_IF_NAMES)}, and combined names such as int4-g64-sym or fp8-block128",
        fix="docs/reference/weight-formats.md lists them; weights for a real run are named with trace --load-weights",
    )


def cache_dtype(name: str) -> str:
    """The same for keys and values of a cache."""
    if name in CACHE_NAMES:
        return CACHE_NAMES[name]
    raise UsageError(
        f"{name!r} is not a cache format.", why=f"the formats are {', '.join(CACHE_NAMES)}", fix="choose one"
    )


@lru_cache(maxsize=1024)
def weight_format(name: str) -> WeightFormat:
    """The format of this name; a name that says no format raises."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise PerfOptError(
            f"The size of dtype {name!r} is not known.",
            why="it is neither a torch dtype nor a stored weight format, and its bytes would have to be guessed",
            fix="formats read like int4-g128, fp8-block128, mxfp4: docs/reference/weight-formats.md; "
            "a new one is a line in core/tensor_formats.py",
        )
    form = _grouped(_FAMILIES[match["values"]], match)
    for option in match["options"].split("-")[1:]:
        form = _with_option(form, option)
    return replace(form, is_transposed=match["transposed"] is not None)


def _grouped(form: WeightFormat, match: re.Match[str]) -> WeightFormat:
    match match["grouping"]:
        case None:
            return form
        case "tensor":
            return replace(form, rows_per_scale=None, columns_per_scale=None)
        case "channel":
            return replace(form, rows_per_scale=1, columns_per_scale=None)
        case _ if match["group"]:
            return replace(form, rows_per_scale=1, columns_per_scale=int(match["group"]))
    return replace(form, rows_per_scale=int(match["rows"]), columns_per_scale=int(match["columns"] or match["rows"]))


def _with_option(form: WeightFormat, option: str) -> WeightFormat:
    if option in _COMPUTE:
        return replace(form, compute=_COMPUTE[option])
    match option:
        case "sym":
            return replace(form, zero_point_bits=0)
        case "asym":
            return replace(form, zero_point_bits=form.value_bits)
        case "double":
            return replace(form, is_double=True)
    return replace(form, scale_bits=int(option.removeprefix("s")))


def is_weight_format(dtype: str) -> bool:
    """Whether a tensor's dtype is a stored format; torch's own names, `int8` and `int4` among them, are none."""
    return dtype not in _FAMILIES_THAT_ARE_DTYPES and _NAME.fullmatch(dtype) is not None


_FAMILIES_THAT_ARE_DTYPES = frozenset(f"int{bits}" for bits in range(1, 9))


def untransposed(dtype: str) -> str:
    """The format without the mark of a transposed view."""
    return dtype.removesuffix(TRANSPOSED)


def matmul_dtype(dtypes: Iterable[str]) -> str | None:
    """In which type a matmul of such operands runs; None where no operand tells.

    Weight-only formats are turned into the activation's type first: the type of the first dense operand.
    """
    dense: str | None = None
    for dtype in dtypes:
        if not is_weight_format(dtype):
            dense = dense or dtype
        elif (compute := weight_format(dtype).compute) is not None:
            return compute
    return dense


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


def value_bits(dtype: str) -> int:
    """Bits of a stored number, without its share of a scale. An unknown name raises."""
    size = _BYTES_PER_ELEMENT.get(dtype)
    return weight_format(dtype).value_bits if size is None else 8 * size
