"""The most memory that a stretch of a run occupied: of the process, and on CUDA of torch's allocator."""

from __future__ import annotations

import logging
import resource
import sys
from pathlib import Path

import torch

log = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): writing 5 sets the peak to what is resident now


def resident_bytes() -> int | None:
    """What the process occupies now; None where the system does not tell."""
    return _status_bytes("VmRSS")


class PeakMemory:
    """Peaks since it was made. Without a Linux `/proc` the process's peak is that since its start."""

    def __init__(self, device: str) -> None:
        self._cuda = device if torch.device(device).type == "cuda" else None
        try:
            _RESET.write_text(_RESET_PEAK)
        except OSError as error:
            log.debug("the peak of the process cannot be reset: %s", error)
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def process_bytes(self) -> int | None:
        """The largest resident set."""
        known = _status_bytes("VmHWM")
        if known is not None:
            return known
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def device_bytes(self) -> int | None:
        """The most that torch's allocator had given out on the CUDA device of the run; None without CUDA."""
        return None if self._cuda is None else int(torch.cuda.max_memory_allocated(self._cuda))


def _status_bytes(name: str) -> int | None:
    """A field of `/proc/self/status`, which counts in kibibytes."""
    try:
        lines = _STATUS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields[name].split()[0]) * 1024 if name in fields else None
