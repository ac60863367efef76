"""Work that is bound by memory or by the way to the kernel: copies, casts, arithmetic, sums, rows by index.

Sizes go from a few values, where only the way to the kernel counts, to tens of megabytes. Results are made afresh each
time, as a model makes them, and are small enough for the allocator to hand out the same memory again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from llm_perf_opt.labs.calibrate.probe import Probe, Work, noise

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
        def prepare(elements: int) -> Work:
            values = noise((elements,), dtype, device)
            return lambda: apply(values)

        return Probe(family=family, dtype=dtype, axes={"elements": _ELEMENTS}, prepare=prepare)

    def arithmetic(elements: int) -> Work:
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

    def prepare(elements: int) -> Work:
        values = noise((elements,), source, device)
        return lambda: values.to(wanted)

    return Probe(family=f"cast_to_{result}", dtype=source, axes={"elements": _ELEMENTS}, prepare=prepare)


def _broadcast(dtype: str, device: str) -> Probe:
    """Arithmetic in which one operand has a single value per row of `inner` values: the inner loop is that short."""

    def prepare(inner: int, elements: int) -> Work:
        rows = noise((elements // inner, 1), dtype, device)
        columns = noise((elements // inner, inner), dtype, device)
        return lambda: rows + columns

    axes = {"inner": _INNER, "elements": _WIDE_ELEMENTS}
    return Probe(family="broadcast", dtype=dtype, axes=axes, prepare=prepare, growth={"inner": 0})


def _outer_broadcast(dtype: str, device: str) -> Probe:
    """Arithmetic in which each operand lacks a dimension of the result, as position biases are made of two tables."""

    def prepare(inner: int, elements: int) -> Work:
        squares = max(1, elements // inner**2)
        down, across = noise((squares, inner, 1), dtype, device), noise((squares, 1, inner), dtype, device)
        return lambda: down + across

    axes = {"inner": _INNER[:-1], "elements": _WIDE_ELEMENTS[1:]}
    return Probe(family="outer_broadcast", dtype=dtype, axes=axes, prepare=prepare, growth={"inner": 0})


def _scattered_probes(dtype: str, device: str) -> list[Probe]:
    """Work on a channels-first result that is read with the channels last: neighbours in a row lie far apart."""

    def scattered(elements: int) -> Tensor:
        return noise((768, elements // 768), dtype, device).t()

    def copy(elements: int) -> Work:
        return scattered(elements).contiguous

    def arithmetic(elements: int) -> Work:
        far, near = scattered(elements), noise((elements // 768, 768), dtype, device)
        return lambda: far + near

    # Distances that are powers of two fall onto the same places of a cache, others do not: both kinds are tried.
    axes = {"elements": tuple(768 * rows for rows in (1, 16, 256, 1024, 1600, 4096, 6400))}
    families = (("scattered_copy", copy), ("scattered_arithmetic", arithmetic))
    return [Probe(family=family, dtype=dtype, axes=axes, prepare=prepare) for family, prepare in families]


def _regrouping(dtype: str, device: str) -> Probe:
    """A copy that changes the order of dimensions and leaves runs of 64 values together, as heads are moved."""

    def prepare(elements: int) -> Work:
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
        def prepare(width: int, elements: int) -> Work:
            rows = noise((elements // width, width), dtype, device)
            return lambda: apply(rows)

        return Probe(family=family, dtype=dtype, axes=_ROW_AXES, prepare=prepare, growth={"width": 0})

    return [*(probe(family, apply) for family, apply in along_rows.items()), *_index_probes(dtype, device)]


def _index_probes(dtype: str, device: str) -> list[Probe]:
    def gather(width: int, elements: int) -> Work:
        rows = noise((elements // width, width), dtype, device)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(device)
        return lambda: rows[order]

    def scatter(width: int, elements: int) -> Work:
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
        def prepare(elements: int) -> Work:
            images = noise((1, elements // 1024, 32, 32), "float32", device).to(memory_format=layout)
            return lambda: F.interpolate(images, size=(20, 20), mode="bicubic", antialias=True, align_corners=False)

        axes = {"elements": tuple(1024 * channels for channels in (16, 256, 1024, 4096))}
        return Probe(family=family, dtype="float32", axes=axes, prepare=prepare)

    return [
        probe("resampling", torch.contiguous_format),
        probe("scattered_resampling", torch.channels_last),
    ]
