"""Measure a machine: every probe in turn over several rounds, and the page faults of fresh memory."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.calibration import Calibration, RateTable, Timing
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.harness.environment import library_versions, torch_threads
from llm_perf_opt.measurements.calibrate.probe import (
    Probe,
    Stopwatch,
    TimedCall,
    measure,
    noise,
    sweep_buffer,
    torch_dtype,
)

log = logging.getLogger(__name__)


def combined(rounds: Sequence[Calibration]) -> Calibration:
    """Rounds on one machine as one calibration.

    A moment in which other programs run, or none does, is seldom the moment of most rounds: the middle is how fast the
    machine is as a rule. Of two rounds the faster counts.
    """
    tables = zip(*(calibration.tables for calibration in rounds), strict=True)
    fresh = [calibration.fresh_byte for calibration in rounds if calibration.fresh_byte is not None]
    return replace(
        rounds[0], tables=tuple(_middle_table(same) for same in tables), fresh_byte=_middle(fresh) if fresh else None
    )


def _middle_table(rounds: Sequence[RateTable]) -> RateTable:
    columns = zip(*(table.times for table in rounds), strict=True)
    return replace(rounds[0], times=tuple(map(_middle, columns)))


def _middle(times: Sequence[Timing]) -> Timing:
    return sorted(times, key=lambda time: time.median_s)[(len(times) - 1) // 2]


_POOL_BYTES = 768 * 2**20
_SMOKE_POOL_BYTES = 64 * 2**20
_REPORT_EVERY_S = 10.0
ROUNDS = 3


def calibrate(
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    clock: str = "wall",
    threads: int | None = None,
    rounds: int = ROUNDS,
    smoke: bool = False,
) -> Calibration:
    """Times of every family of work on `device`, in `dtype` and float32, with `threads` or as many as torch uses.

    `smoke` tries the smallest sizes only, once: it takes seconds, and shows that the machinery runs, not how fast the
    machine is.
    """
    _refuse_absent(device)
    with OneRun(), torch_threads(threads or None), Interruptible():
        watch = Stopwatch(device=device, clock=clock, swept=sweep_buffer(device))
        if smoke:
            probes = [probe.coarse() for probe in _probes(device, dtype, _SMOKE_POOL_BYTES)]
            return replace(_one_round(probes, replace(watch, fewest=2, most=3), "the only round"), is_smoke=True)
        probes = _probes(device, dtype, _POOL_BYTES)
        return combined([_one_round(probes, watch, f"round {number} of {rounds}") for number in range(1, rounds + 1)])


def _one_round(probes: list[Probe], watch: Stopwatch, title: str) -> Calibration:
    kind = torch.device(watch.device).type
    return Calibration(
        device=device_name(watch.device),
        kind=kind,
        threads=torch.get_num_threads(),
        memory_bytes=_memory_bytes(watch.device),
        library_versions=library_versions(),
        tables=tuple(_measured(probes, watch, title)),
        fresh_byte=fresh_byte(watch) if kind == "cpu" else None,
        clock=watch.clock,
    )


def device_name(device: str) -> str:
    """What the driver, or for a processor the system, calls it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _probes(device: str, dtype: str, pool_bytes: int) -> list[Probe]:
    dtypes = tuple(dict.fromkeys((dtype, "float32")))
    probes = [*overhead_probes(device), *resampling_probes(device)]
    for name in dtypes:
        probes += elementwise_probes(name, device)
        probes += row_probes(name, device)
        probes += [cast_probe(name, other, device) for other in dtypes if other != name]
        probes += [narrow_matmul_probe(name, device), batched_matmul_probe(name, device)]
    probes += [*attention_probes(dtype, device), *convolution_probes(dtype, device)]
    return probes + matmul_probes(dtype, device, pool_bytes)


def _measured(probes: list[Probe], stopwatch: Stopwatch, title: str) -> list[RateTable]:
    tables, reported = [], time.monotonic()
    for done, probe in enumerate(probes, start=1):
        tables.append(measure(probe, stopwatch))
        if time.monotonic() - reported > _REPORT_EVERY_S:
            reported = time.monotonic()
            log.info("Calibrating, %s: %d of %d families of work.", title, done, len(probes))
    return tables


def _refuse_absent(device: str) -> None:
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise UsageError(
            f"Cannot calibrate {device!r}.", why="cpu and cuda are known", fix="use --torch-device cpu or cuda"
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise PerfOptError("There is no CUDA device here.", why="torch finds none", fix="use --torch-device cpu")


_LENGTHS = (64, 128, 196, 256, 512, 1024, 2048, 4096)  # 196: windows of 14 x 14, of no round length
_ODD_LENGTHS = (65, 129, 257, 513, 1025)  # kernels that take values in pairs handle these apart
_CHANNELS = (64, 256, 1024)


def attention_probes(dtype: str, device: str) -> list[Probe]:
    """Attention as one op, with and without a mask that is added to the scores; heads of 64 values.

    A class token makes the number of tokens odd, for which the kernels of some processors take twice as long.
    """

    def attention(heads: int, tokens: int, masked: bool) -> TimedCall:
        joined = noise((1, tokens, 3, heads, 64), dtype, device)  # as one linear map makes them
        query, key, value = (role.transpose(1, 2) for role in joined.unbind(2))
        mask = noise((1, heads, tokens, tokens), dtype, device) if masked else None
        return lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def probe(family: str, lengths: tuple[int, ...], masked: bool = False) -> Probe:
        return Probe(
            family=family,
            dtype=dtype,
            axes={"heads": (4, 16), "tokens": lengths},
            prepare=lambda heads, tokens: attention(heads, tokens, masked),
            growth={"tokens": 2},
        )

    return [
        probe("attention", _LENGTHS[:-1]),
        probe("odd_attention", _ODD_LENGTHS),
        probe("masked_attention", _LENGTHS, masked=True),
    ]


def convolution_probes(dtype: str, device: str) -> list[Probe]:
    """Kernels of one pixel, of three, and patches that do not overlap."""
    return [
        _convolution("convolution", dtype, device, kernel=3, stride=1, channels=_CHANNELS),
        _convolution("pointwise_convolution", dtype, device, kernel=1, stride=1, channels=_CHANNELS),
        _convolution("patch_convolution", dtype, device, kernel=16, stride=16, channels=(3,)),
    ]


def _convolution(family: str, dtype: str, device: str, *, kernel: int, stride: int, channels: tuple[int, ...]) -> Probe:
    def convolve(positions: int, columns: int, depth: int) -> TimedCall:
        side = int(positions**0.5)
        inputs = noise((1, depth // kernel**2, side * stride, side * stride), dtype, device)
        weight = noise((columns, depth // kernel**2, kernel, kernel), dtype, device)
        padding = kernel // 2 if stride == 1 else 0
        return lambda: torch.conv2d(inputs, weight, stride=stride, padding=padding)

    axes = {
        "positions": (256, 1024, 4096),
        "columns": (256, 1024),
        "depth": tuple(kernel**2 * count for count in channels),
    }
    return Probe(family=family, dtype=dtype, axes=axes, prepare=convolve)


_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_MATMUL_WIDTHS = (640, 1280, 2560, 5120)
_WIDEST = 20480


class ColdWeights:
    """A pool of values larger than the caches, from which each call of `take` cuts the next matrix."""

    def __init__(self, values: int, dtype: str, device: str) -> None:
        self._pool = noise((values,), dtype, device)
        self._start = 0

    def take(self, rows: int, columns: int) -> Tensor:
        """A matrix that was not touched for as long as the pool is large."""
        if self._start + rows * columns > len(self._pool):
            self._start = 0
        matrix = self._pool[self._start : self._start + rows * columns].view(rows, columns)
        self._start += rows * columns
        return matrix


def matmul_probes(dtype: str, device: str, pool_bytes: int) -> list[Probe]:
    """Rows times a weight: the widest has its own table, since few combinations with it are affordable.

    Nothing is swept between tries: each reads another weight, which does just that.
    """
    largest = max(
        _MATMUL_WIDTHS[-1] ** 2, _WIDEST * _MATMUL_WIDTHS[1]
    )  # of the weights below: the pool must hold each of them
    weights = ColdWeights(max(pool_bytes // torch_dtype(dtype).itemsize, largest), dtype, device)

    def linear(rows: int, columns: int, depth: int) -> TimedCall:
        inputs = noise((rows, depth), dtype, device)
        return lambda: F.linear(inputs, weights.take(columns, depth))

    axes = {"rows": _ROWS, "columns": _MATMUL_WIDTHS, "depth": _MATMUL_WIDTHS}
    wide = {"rows": _ROWS[:10], "columns": (_MATMUL_WIDTHS[-1], _WIDEST), "depth": _MATMUL_WIDTHS[1:2]}
    return [
        Probe(family="matmul", dtype=dtype, axes=axes, prepare=linear, sweep=False),
        Probe(family="wide_matmul", dtype=dtype, axes=wide, prepare=linear, sweep=False),
    ]


def narrow_matmul_probe(dtype: str, device: str) -> Probe:
    """Few columns, as a router has; its weight is small enough to stay in a cache."""

    def linear(rows: int, columns: int, depth: int) -> TimedCall:
        inputs, weight = noise((rows, depth), dtype, device), noise((columns, depth), dtype, device)
        return lambda: F.linear(inputs, weight)

    axes = {"rows": (1, 16, 64, 256, 1024), "columns": (16, 64, 256), "depth": (320, 1280, 5120)}
    return Probe(family="narrow_matmul", dtype=dtype, axes=axes, prepare=linear)


def batched_matmul_probe(dtype: str, device: str) -> Probe:
    """Matmuls of activations, as attention written out in steps has: the right side is read transposed."""

    def batched(batch: int, rows: int, columns: int, depth: int) -> TimedCall:
        left, right = noise((batch, rows, depth), dtype, device), noise((batch, columns, depth), dtype, device)
        return lambda: torch.bmm(left, right.transpose(1, 2))

    axes = {
        "batch": (1, 12),
        "rows": (1, 16, 64, 256, 1024),
        "columns": (16, 64, 256, 1024),
        "depth": (16, 64, 256, 1024),
    }
    return Probe(family="batched_matmul", dtype=dtype, axes=axes, prepare=batched)


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
    """From one dtype to another; the table belongs to the source dtype."""
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
    """Work on a channels-first result that is read with the channels last: neighbours in a row are far apart."""

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

    return [probe("resampling", torch.contiguous_format), probe("scattered_resampling", torch.channels_last)]
