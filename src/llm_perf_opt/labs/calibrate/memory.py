"""Work bound by memory or by overhead: copies, casts, arithmetic, sums, views, module calls, small sorts."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.core.hardware.calibration import Timing
from llm_perf_opt.labs.calibrate.probe import Probe, Stopwatch, TimedCall, noise

_FRESH_BYTES = 128 * 2**20  # large enough that an allocator takes it from the system and gives it back at once


class _Nothing(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values


def overhead_probes(device: str) -> list[Probe]:
    """Views and module calls, which come in groups, and what stands alone; none of it depends on a size."""

    def view(calls: int) -> TimedCall:
        values = noise((4, 6, 8), "float32", device)
        return lambda: values.transpose(0, 1)[1:3].unsqueeze(0).view(1, 2, 4, 8)

    def module_call(calls: int) -> TimedCall:
        module, values = _Nothing(), noise((4,), "float32", device)
        return lambda: module(module(values))

    def host_read(calls: int) -> TimedCall:
        value = torch.zeros((), dtype=torch.int64, device=device)
        return value.item

    def sort(elements: int) -> TimedCall:
        ids = torch.randint(64, (elements,), generator=torch.Generator().manual_seed(0)).to(device)
        return ids.argsort

    groups = (("view", view, 4), ("module_call", module_call, 2), ("host_read", host_read, 1))
    return [
        *(Probe(family=name, dtype="any", axes={"calls": (calls,)}, prepare=work) for name, work, calls in groups),
        Probe(family="sort", dtype="int64", axes={"elements": (8, 512, 4096, 32_768)}, prepare=sort),
    ]


def fresh_byte(stopwatch: Stopwatch, size_bytes: int = _FRESH_BYTES) -> Timing:
    """What one byte of memory straight from the system costs: writing to new memory, less writing to old."""
    old = torch.empty(size_bytes, dtype=torch.uint8)
    again = stopwatch.time(lambda: old.fill_(1))
    first = stopwatch.time(lambda: torch.empty(size_bytes, dtype=torch.uint8).fill_(1))
    least = again.fastest_s * 1e-3  # noise must not make fresh memory cheaper than old
    differences = sorted(
        max(least, end - again.median_s) / size_bytes for end in (first.fastest_s, first.median_s, first.slowest_s)
    )
    return Timing(fastest_s=differences[0], median_s=differences[1], slowest_s=differences[2])


_ELEMENTS = (16, 1024, 16_384, 131_072, 524_288, 2_097_152, 7_340_032)
_WIDTHS = (64, 256, 1024, 4096)
_WIDE_ELEMENTS = (4096, 65_536, 524_288, 4_194_304)
_ROW_AXES = {"width": _WIDTHS, "elements": _WIDE_ELEMENTS}
_INNER = (8, 14, 16, 31, 32, 40, 63, 64, 80, 256, 1024)  # kernels take 32 values at once and the rest one by one

Apply = Callable[[Tensor], object]


def elementwise_probes(dtype: str, device: str) -> list[Probe]:
    """One value out for each value in."""
    one_operand: dict[str, Apply] = {
        "scaling": lambda values: values * 1.5,
        "sigmoid": torch.sigmoid,
        "silu": F.silu,
        "gelu": F.gelu,
        "cosine": torch.cos,
        "square": lambda values: values.pow(2),
        "copy": torch.clone,
        "fill": torch.zeros_like,
    }

    def probe(family: str, apply: Apply) -> Probe:
        def prepare(elements: int) -> TimedCall:
            values = noise((elements,), dtype, device)
            return lambda: apply(values)

        return Probe(family=family, dtype=dtype, axes={"elements": _ELEMENTS}, prepare=prepare)

    def arithmetic(elements: int) -> TimedCall:
        left, right = noise((elements,), dtype, device), noise((elements,), dtype, device)
        return lambda: left + right

    return [
        *(probe(family, apply) for family, apply in one_operand.items()),
        Probe(family="arithmetic", dtype=dtype, axes={"elements": _ELEMENTS}, prepare=arithmetic),
        _broadcast(dtype, device),
        _outer_broadcast(dtype, device),
        _regrouping(dtype, device),
        *_scattered_probes(dtype, device),
    ]


def cast_probe(source: str, result: str, device: str) -> Probe:
    """From one dtype to another; the table is that of the source."""
    wanted = getattr(torch, result)

    def prepare(elements: int) -> TimedCall:
        values = noise((elements,), source, device)
        return lambda: values.to(wanted)

    return Probe(family=f"cast_to_{result}", dtype=source, axes={"elements": _ELEMENTS}, prepare=prepare)


def _broadcast(dtype: str, device: str) -> Probe:
    """Arithmetic in which one operand has a single value per row of `inner` values: the inner loop is that short."""

    def prepare(inner: int, elements: int) -> TimedCall:
        rows = noise((elements // inner, 1), dtype, device)
        columns = noise((elements // inner, inner), dtype, device)
        return lambda: rows + columns

    axes = {"inner": _INNER, "elements": _WIDE_ELEMENTS}
    return Probe(family="broadcast", dtype=dtype, axes=axes, prepare=prepare, growth={"inner": 0})


def _outer_broadcast(dtype: str, device: str) -> Probe:
    """Arithmetic in which each operand lacks a dimension of the result, as position biases are made of two tables."""

    def prepare(inner: int, elements: int) -> TimedCall:
        squares = max(1, elements // inner**2)
        down, across = noise((squares, inner, 1), dtype, device), noise((squares, 1, inner), dtype, device)
        return lambda: down + across

    axes = {"inner": _INNER[:-1], "elements": _WIDE_ELEMENTS[1:]}
    return Probe(family="outer_broadcast", dtype=dtype, axes=axes, prepare=prepare, growth={"inner": 0})


def _scattered_probes(dtype: str, device: str) -> list[Probe]:
    """Work on a channels-first result that is read with the channels last: neighbours in a row lie far apart."""

    def scattered(elements: int) -> Tensor:
        return noise((768, elements // 768), dtype, device).t()

    def copy(elements: int) -> TimedCall:
        return scattered(elements).contiguous

    def arithmetic(elements: int) -> TimedCall:
        far, near = scattered(elements), noise((elements // 768, 768), dtype, device)
        return lambda: far + near

    # Distances that are powers of two fall onto the same places of a cache, others do not: both kinds are tried.
    axes = {"elements": tuple(768 * rows for rows in (1, 16, 256, 1024, 1600, 4096, 6400))}
    families = (("scattered_copy", copy), ("scattered_arithmetic", arithmetic))
    return [Probe(family=family, dtype=dtype, axes=axes, prepare=prepare) for family, prepare in families]


def _regrouping(dtype: str, device: str) -> Probe:
    """A copy that changes the order of dimensions and leaves runs of 64 values together, as heads are moved."""

    def prepare(elements: int) -> TimedCall:
        values = noise((elements // 768, 12, 64), dtype, device).transpose(0, 1)
        return values.contiguous

    axes = {"elements": tuple(768 * rows for rows in (1, 16, 256, 1024, 4096, 9216))}
    return Probe(family="regrouping", dtype=dtype, axes=axes, prepare=prepare)


def row_probes(dtype: str, device: str) -> list[Probe]:
    """Work along rows: norms, softmax, sums, and rows picked or written by index."""
    along_rows: dict[str, Apply] = {
        "layer_norm": lambda rows: F.layer_norm(rows, rows.shape[1:]),
        "softmax": lambda rows: F.softmax(rows, dim=-1, dtype=torch.float32),
        "reduction": lambda rows: rows.mean(dim=-1),
        "column_reduction": lambda rows: rows.sum(dim=0),
    }

    def probe(family: str, apply: Apply) -> Probe:
        def prepare(width: int, elements: int) -> TimedCall:
            rows = noise((elements // width, width), dtype, device)
            return lambda: apply(rows)

        return Probe(family=family, dtype=dtype, axes=_ROW_AXES, prepare=prepare, growth={"width": 0})

    return [*(probe(family, apply) for family, apply in along_rows.items()), *_index_probes(dtype, device)]


def _index_probes(dtype: str, device: str) -> list[Probe]:
    def gather(width: int, elements: int) -> TimedCall:
        rows = noise((elements // width, width), dtype, device)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(device)
        return lambda: rows[order]

    def scatter(width: int, elements: int) -> TimedCall:
        rows = noise((elements // width, width), dtype, device)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(device)
        target = torch.empty_like(rows)

        def put() -> None:
            target[order] = rows

        return put

    families = (("gather", gather), ("scatter", scatter))
    return [
        Probe(family=family, dtype=dtype, axes=_ROW_AXES, prepare=prepare, growth={"width": 0})
        for family, prepare in families
    ]


def resampling_probes(device: str) -> list[Probe]:
    """Images made smaller with a smooth filter, channels first and channels last; the axis counts what goes in."""

    def probe(family: str, layout: torch.memory_format) -> Probe:
        def prepare(elements: int) -> TimedCall:
            images = noise((1, elements // 1024, 32, 32), "float32", device).to(memory_format=layout)
            return lambda: F.interpolate(images, size=(20, 20), mode="bicubic", antialias=True, align_corners=False)

        axes = {"elements": tuple(1024 * channels for channels in (16, 256, 1024, 4096))}
        return Probe(family=family, dtype="float32", axes=axes, prepare=prepare)

    return [
        probe("resampling", torch.contiguous_format),
        probe("scattered_resampling", torch.channels_last),
    ]
