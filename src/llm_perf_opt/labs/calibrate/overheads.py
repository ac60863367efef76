"""What costs time without moving values: views, module calls, sorting a few numbers, a read on the host, and pages."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_perf_opt.core.hardware.calibration import Timing
from llm_perf_opt.labs.calibrate.probe import Probe, Stopwatch, Work, noise

_FRESH_BYTES = 128 * 2**20  # large enough that an allocator takes it from the system and gives it back at once


class _Nothing(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values


def overhead_probes(device: str) -> list[Probe]:
    """Views and module calls, which come in groups, and what stands alone; none of it depends on a size."""

    def view(calls: int) -> Work:
        values = noise((4, 6, 8), "float32", device)
        return lambda: values.transpose(0, 1)[1:3].unsqueeze(0).view(1, 2, 4, 8)

    def module_call(calls: int) -> Work:
        module, values = _Nothing(), noise((4,), "float32", device)
        return lambda: module(module(values))

    def host_read(calls: int) -> Work:
        value = torch.zeros((), dtype=torch.int64, device=device)
        return value.item

    def sort(elements: int) -> Work:
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
