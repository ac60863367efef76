"""A JSON file that this program wrote, read back: which kind it is, whether it is as it was written, and its record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration
from llm_perf_opt.core.reading import FileKind, read_bytes

if TYPE_CHECKING:
    from llm_perf_opt.costs.static_file import StaticFile
    from llm_perf_opt.formats.json_format import ViewFile
    from llm_perf_opt.measurements.profile.metrics_file import MetricsFile
    from llm_perf_opt.sweeps.function.files.function_file import SavedFunction

    Result: TypeAlias = "CallGraph | SavedFunction | MetricsFile | StaticFile | ViewFile | Calibration"

_ANY = FileKind(
    name="file of results",
    fix="give a trace, a .function.json, metrics.json, static_compute.json, a .view.json or a calibration",
    max_bytes=2**29,
)


def read_result(path: str | Path) -> Result:
    """The record in a trace, `.function.json`, `metrics.json`, `static_compute.json`, `.view.json` or a calibration.

    The fields are the keys of the file. A file that was changed since it was written, or that is none of these, raises
    a `PerfOptError` that says where and why.
    """
    path = Path(path)
    raw = read_bytes(path, _ANY)
    for key, read in _READERS.items():
        if f'"{key}"'.encode() in raw:
            return read(path)
    raise _ANY.refusal("is not a file of llm-perf-opt", f"it has none of the keys {', '.join(_READERS)}")


def _function(path: Path) -> SavedFunction:
    from llm_perf_opt.sweeps.function.files.function_file import read_function

    return read_function(path)


def _metrics(path: Path) -> MetricsFile:
    from llm_perf_opt.measurements.profile.metrics_file import read_metrics

    return read_metrics(path)


def _static(path: Path) -> StaticFile:
    from llm_perf_opt.costs.static_file import read_static

    return read_static(path)


def _view(path: Path) -> ViewFile:
    from llm_perf_opt.formats.json_format import read_view

    return read_view(path)


# A key that each kind must have, and no kind above it in the list.
_READERS: dict[str, Callable[[Path], Result]] = {
    "call_counts": read_callgraph,
    "function_of": _function,
    "model_figure": _metrics,
    "ledger": _static,
    "boxes": _view,
    "tables": read_calibration,
}
