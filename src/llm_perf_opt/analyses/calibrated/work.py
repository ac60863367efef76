"""Which measured family of work an op belongs to, and at which size: the bridge from a trace to a calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.analyses.calibrated.inner_loops import inner_length
from llm_perf_opt.analyses.calibrated.layouts import Scattered
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.analyses.pricing.op_cost import elements, operand
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.callgraph.tensor_formats import tensor_bytes

_NARROWEST_WEIGHT = 256  # columns; below, a weight is small and stays in a cache
_WIDEST_WEIGHT = 5120  # columns; above, the result no longer fits one either
_HEAD_DIM = 64  # of the attention that was measured
_WHOLE = 4096  # an inner loop this long is as good as one over everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Some work of a measured family: `sizes` along the axes of its table, and how many times over it is done."""

    family: str
    dtype: str
    sizes: Mapping[str, float]
    times: float = 1.0


Reading = Callable[[OpKind], Iterator[Work]]


def work_of(kind: OpKind, scattered: Scattered = frozenset()) -> tuple[Work, ...] | None:
    """What one run of `kind` does when these of its inputs lie scattered, or None: no family of work describes it."""
    works = _plain_work(kind)
    return works if works is None or not scattered else tuple(_against_the_grain(kind, works, scattered))


def _against_the_grain(kind: OpKind, works: tuple[Work, ...], scattered: Scattered) -> Iterator[Work]:
    """Mixed layouts slow a sum down; what wants rows together copies a scattered input first."""
    full = {place for place, meta in enumerate(kind.inputs) if meta.shape == kind.outputs[0].shape}
    is_mixed = bool(full & scattered) and not full <= scattered
    for work in works:
        if work.family == "arithmetic" and is_mixed:
            yield replace(work, family="scattered_arithmetic")
        elif work.family == "regrouping":
            yield replace(work, family="scattered_copy")
        elif work.family == "resampling":
            yield replace(work, family="scattered_resampling")
        else:
            yield work
    if 0 in scattered and packet_of(kind.name) in _WANTS_ROWS:
        yield _sized("scattered_copy", kind.inputs[0])


_WANTS_ROWS = frozenset({"aten.layer_norm", "aten.native_layer_norm", "aten.linear"})


def _plain_work(kind: OpKind) -> tuple[Work, ...] | None:
    if kind.output_aliases and not kind.mutates and min(kind.output_aliases) >= 0:
        return (_VIEW,)
    reading = _READINGS.get(packet_of(kind.name))
    if reading is not None:
        return _read(reading, kind)
    if kind.parts:
        return _work_of_parts(kind)
    cost = price(kind)
    if cost is None:
        return None
    if not cost.bytes_moved:
        return (_VIEW,)
    return (_by_bytes("copy", cost.bytes_moved / 2),)


def _read(reading: Reading, kind: OpKind) -> tuple[Work, ...] | None:
    """None where the record holds less than the reading needs: some tracers see no shapes."""
    try:
        return tuple(reading(kind))
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        return None


VIEWS_TOGETHER = 4  # a calibration times views four at a time, and module calls two
CALLS_TOGETHER = 2
_VIEW = Work(family="view", dtype="any", sizes={"calls": VIEWS_TOGETHER}, times=1 / VIEWS_TOGETHER)
MODULE_CALL = Work(family="module_call", dtype="any", sizes={"calls": CALLS_TOGETHER}, times=1 / CALLS_TOGETHER)


def _work_of_parts(kind: OpKind) -> tuple[Work, ...] | None:
    found: list[Work] = []
    for part in kind.parts:
        work = _plain_work(part)
        if work is None:
            return None
        found += work
    return tuple(found)


def _by_bytes(family: str, size_bytes: float) -> Work:
    return Work(family=family, dtype="float32", sizes={"elements": size_bytes / 4})


def _sized(family: str, meta: TensorMeta, **shape: float) -> Work:
    """Work on every value of a tensor; dtypes without tables of their own are taken by their bytes."""
    if meta.dtype in _MEASURED_DTYPES:
        return Work(family=family, dtype=meta.dtype, sizes={"elements": elements(meta), **shape})
    return Work(family=family, dtype="float32", sizes={"elements": tensor_bytes(meta) / 4, **shape})


_MEASURED_DTYPES = frozenset({"bfloat16", "float16", "float32"})


def _linear(kind: OpKind) -> Iterator[Work]:
    inputs, weight = operand(kind, 0, "input", "self"), operand(kind, 1, "weight")
    columns, depth = weight.shape
    yield _product(inputs.dtype, elements(inputs) / depth, columns, depth)
    if len(kind.inputs) > 2:
        yield _sized("fill", kind.outputs[0])


def _product(dtype: str, rows: float, columns: int, depth: int) -> Work:
    sizes = {"rows": rows, "columns": columns, "depth": depth}
    if columns <= _NARROWEST_WEIGHT:
        return Work(family="narrow_product", dtype=dtype, sizes=sizes)
    family = "product" if columns <= _WIDEST_WEIGHT else "wide_product"
    return Work(family=family, dtype=dtype, sizes=sizes)


def _addmm(kind: OpKind) -> Iterator[Work]:
    left, right = kind.inputs[1], kind.inputs[2]
    yield _product(left.dtype, left.shape[0], right.shape[1], left.shape[1])
    yield _sized("fill", kind.outputs[0])


def _matmul(kind: OpKind) -> Iterator[Work]:
    left, right, result = kind.inputs[0], kind.inputs[1], kind.outputs[0]
    depth = left.shape[-1]
    if len(right.shape) < 3:
        columns = right.shape[-1] if len(right.shape) == 2 else 1
        yield _product(left.dtype, elements(left) / depth, columns, depth)
        return
    rows, columns = (result.shape[-2], result.shape[-1]) if len(left.shape) > 1 else (1, result.shape[-1])
    batch = elements(result) / max(1, rows * columns)
    sizes = {"batch": batch, "rows": rows, "columns": columns, "depth": depth}
    yield Work(family="batched_product", dtype=left.dtype, sizes=sizes)


def _attention(kind: OpKind) -> Iterator[Work]:
    query, key = kind.inputs[0], kind.inputs[1]
    masked = "attn_mask" in kind.input_names or len(kind.inputs) > 3
    tokens = math.sqrt(query.shape[-2] * key.shape[-2])
    sizes = {"heads": math.prod(query.shape[:-2]), "tokens": tokens}
    is_odd = key.shape[-2] % 2 == 1 and query.shape[-2] > 1
    family = "masked_attention" if masked else "odd_attention" if is_odd else "attention"
    yield Work(family=family, dtype=query.dtype, sizes=sizes, times=query.shape[-1] / _HEAD_DIM)


def _convolution(kind: OpKind) -> Iterator[Work]:
    weight, result = operand(kind, 1, "weight"), kind.outputs[0]
    taps, stride = math.prod(weight.shape[2:]), kind.arguments.get("stride", [1])
    is_patch = list(weight.shape[2:]) == list(stride)
    family = "pointwise_convolution" if taps == 1 else "patch_convolution" if is_patch else "convolution"
    sizes = {
        "positions": elements(result) / weight.shape[0],
        "columns": weight.shape[0],
        "depth": math.prod(weight.shape[1:]),
    }
    yield Work(family=family, dtype=weight.dtype, sizes=sizes)


def _unary(family: str) -> Reading:
    def read(kind: OpKind) -> Iterator[Work]:
        yield _sized(family, kind.inputs[0])

    return read


def _arithmetic(kind: OpKind) -> Iterator[Work]:
    result = kind.outputs[0]
    if len(kind.inputs) == 1:
        yield _sized("scaling", result)
        return
    inner = inner_length(result.shape, [meta.shape for meta in kind.inputs])
    if inner >= min(_WHOLE, elements(result)):
        yield _sized("arithmetic", result)
        return
    is_outer = all(elements(meta) < elements(result) for meta in kind.inputs)
    yield _sized("outer_broadcast" if is_outer else "broadcast", result, inner=inner)


def _cast(kind: OpKind) -> Iterator[Work]:
    source, result = kind.inputs[0], kind.outputs[0]
    if {source.dtype, result.dtype} <= _MEASURED_DTYPES and source.dtype != result.dtype:
        yield _sized(f"cast_to_{result.dtype}", source)
    else:
        yield _sized("copy", result)


def _regrouping(kind: OpKind) -> Iterator[Work]:
    yield _sized("regrouping", kind.outputs[0])


def _written(family: str) -> Reading:
    def read(kind: OpKind) -> Iterator[Work]:
        yield _sized(family, kind.outputs[0])

    return read


def _pad(kind: OpKind) -> Iterator[Work]:
    yield _sized("fill", kind.outputs[0])
    yield _sized("copy", kind.inputs[0])


def _along_rows(family: str) -> Reading:
    def read(kind: OpKind) -> Iterator[Work]:
        meta = kind.inputs[0]
        yield _sized(family, meta, width=meta.shape[-1] if meta.shape else 1)

    return read


def _reduction(kind: OpKind) -> Iterator[Work]:
    meta = kind.inputs[0]
    dims = kind.arguments.get("dim")
    named = [dims] if isinstance(dims, int) else dims
    along_last = not named or any(dim % max(1, len(meta.shape)) == len(meta.shape) - 1 for dim in named)
    width = meta.shape[-1] if meta.shape else 1
    yield _sized("reduction" if along_last else "column_reduction", meta, width=width)


def _rows_by_index(family: str, place: int | None) -> Reading:
    """`place` of the input whose values are moved, or None for the output."""

    def read(kind: OpKind) -> Iterator[Work]:
        meta = kind.outputs[0] if place is None or place >= len(kind.inputs) else kind.inputs[place]
        yield _sized(family, meta, width=meta.shape[-1] if meta.shape else 1)

    return read


def _sort(kind: OpKind) -> Iterator[Work]:
    yield Work(family="sort", dtype="int64", sizes={"elements": elements(kind.inputs[0])})


def _resampling(kind: OpKind) -> Iterator[Work]:
    values = max(elements(kind.inputs[0]), elements(kind.outputs[0]))
    yield Work(family="resampling", dtype="float32", sizes={"elements": values})


def _host_read(kind: OpKind) -> Iterator[Work]:
    yield Work(family="host_read", dtype="any", sizes={"calls": 1})


def _table(reading: Reading, *packets: str) -> dict[str, Reading]:
    return {f"aten.{packet}": reading for packet in packets}


_READINGS: dict[str, Reading] = {
    **_table(_linear, "linear"),
    **_table(_addmm, "addmm"),
    **_table(_matmul, "matmul", "mm", "bmm"),
    **_table(_attention, "scaled_dot_product_attention"),
    **_table(_convolution, "conv2d", "convolution"),
    **_table(_unary("sigmoid"), "sigmoid", "tanh", "exp"),
    **_table(_unary("silu"), "silu"),
    **_table(_unary("gelu"), "gelu"),
    **_table(_unary("cosine"), "cos", "sin", "log", "erf"),
    **_table(_unary("square"), "pow"),
    **_table(_unary("scaling"), "neg", "abs", "sqrt", "rsqrt", "relu", "clamp"),
    **_table(_arithmetic, "add", "sub", "mul", "div", "floor_divide", "maximum", "minimum"),
    **_table(_cast, "to", "_to_copy", "float", "type_as"),
    **_table(_regrouping, "reshape", "contiguous", "clone", "flatten"),
    **_table(_written("copy"), "cat", "stack", "copy", "triu", "tril", "masked_fill", "where"),
    **_table(_written("fill"), "zeros", "zeros_like", "new_zeros", "ones", "full", "arange", "fill", "zero"),
    **_table(_pad, "pad", "constant_pad_nd"),
    **_table(_along_rows("layer_norm"), "layer_norm", "native_layer_norm", "rms_norm"),
    **_table(_along_rows("softmax"), "softmax", "_softmax"),
    **_table(_reduction, "sum", "mean", "amax", "amin", "any", "all"),
    **_table(_rows_by_index("gather", None), "index", "index_select", "gather", "embedding"),
    **_table(_rows_by_index("scatter", 2), "index_put", "scatter", "masked_scatter"),
    **_table(_sort, "sort", "argsort", "topk"),
    **_table(_resampling, "_upsample_bicubic2d_aa", "upsample_bicubic2d", "upsample_linear1d", "upsample_bilinear2d"),
    **_table(_host_read, "item", "_local_scalar_dense"),
}
