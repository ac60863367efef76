"""A measurement from whatever holds one: a line, a file or a folder; its content says which program wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.analyses.measured.joined_report import read_joined_report
from llm_perf_opt.analyses.measured.measurement import MEASURED_FILE, MeasuredRun
from llm_perf_opt.analyses.measured.profile_run import METRICS_NAME, read_profile_run
from llm_perf_opt.analyses.measured.prometheus import is_prometheus, read_prometheus
from llm_perf_opt.analyses.measured.serving_results import read_genai_perf, read_guidellm, read_vllm
from llm_perf_opt.analyses.measured.step_log import is_step_log, read_step_log
from llm_perf_opt.analyses.measured.written_figures import read_csv, read_json_figures, read_line, read_toml
from llm_perf_opt.core.reading import decode_json, naming_file, read_bytes

_GZIP, _SQLITE = b"\x1f\x8b", b"SQLite format 3\x00"
_LONGEST_LINE = 2_000
_HEAD = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was given: runs that were read, and GPU recordings that are still to be joined with the trace."""

    runs: tuple[MeasuredRun, ...] = ()
    recordings: tuple[Path, ...] = ()


class _Keys(msgspec.Struct, frozen=True):
    """The keys by which a JSON file of another program is known."""

    median_ttft_ms: Any = None
    mean_ttft_ms: Any = None
    mean_tpot_ms: Any = None
    time_to_first_token: Any = None
    inter_token_latency: Any = None
    benchmarks: Any = None
    tables: Any = None
    pages: Any = None
    trace_events: Any = msgspec.field(name="traceEvents", default=None)


_Reader = Callable[[bytes, str], tuple[MeasuredRun, ...]]
_READERS: tuple[tuple[tuple[str, ...], _Reader], ...] = (
    (("median_ttft_ms", "mean_ttft_ms", "mean_tpot_ms"), read_vllm),
    (("benchmarks",), read_guidellm),
    (("tables",), read_joined_report),
)


def read_measured(given: str | Path | Sequence[str | Path]) -> Measured:
    """All runs and recordings in lines, files and folders."""
    each = [given] if isinstance(given, str | Path) else list(given)
    found = [_read_one(one) for one in each]
    return Measured(
        runs=tuple(run for one in found for run in one.runs),
        recordings=tuple(path for one in found for path in one.recordings),
    )


def _read_one(given: str | Path) -> Measured:
    if isinstance(given, str) and "=" in given and len(given) < _LONGEST_LINE and not _exists(given):
        with naming_file("--measured"):
            return Measured(runs=read_line(given, "--measured"))
    path = Path(given)
    if _exists(path) and path.is_dir():
        return Measured(runs=read_profile_run(path / METRICS_NAME))
    raw = read_bytes(path, MEASURED_FILE)
    with naming_file(path):
        return Measured(recordings=(path,)) if is_recording(raw) else Measured(runs=_runs(raw, path))


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def is_recording(raw: bytes) -> bool:
    """Whether the file holds what a GPU ran: a Chrome trace or an export of Nsight Systems."""
    if raw.startswith((_GZIP, _SQLITE)):
        return True
    head = raw[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"{"):
        return b'"traceEvents"' in raw
    if head.startswith(b"["):
        return b'"ph"' in head or b'"Start (ns)"' in head
    return b"Start (ns)" in head.split(b"\n", 1)[0]


def _runs(raw: bytes, path: Path) -> tuple[MeasuredRun, ...]:
    first, name = raw[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1], path.name
    if path.suffix.lower() == ".toml":
        return read_toml(raw, name)
    if is_prometheus(raw):
        return read_prometheus(raw, name)
    if is_step_log(raw):
        return read_step_log(raw, name)
    if first == b"[":
        return read_json_figures(raw, name)
    if first == b"{":
        return _from_object(raw, path)
    return read_csv(raw, name) if path.suffix.lower() == ".csv" or _has_header(raw) else read_line(_text(raw), name)


def _from_object(raw: bytes, path: Path) -> tuple[MeasuredRun, ...]:
    lines = raw.split(b"\n", 2)
    is_appended = len(lines) > 1 and lines[1].lstrip().startswith(b"{")
    keys = decode_json(lines[0] if is_appended else raw, _Keys, MEASURED_FILE)
    if keys.pages is not None:  # before those of a load generator: a run of `profile` has a figure for a first token
        return read_profile_run(path)
    for names, read in _READERS:
        if any(getattr(keys, name) is not None for name in names):
            return read(raw, path.name)
    if isinstance(keys.time_to_first_token, dict) or isinstance(keys.inter_token_latency, dict):
        return read_genai_perf(raw, path.name)
    return read_json_figures(raw, path.name)


def _has_header(raw: bytes) -> bool:
    """Whether the first line is a list of names, as in CSV, and not of `name=value`."""
    head = raw[:_HEAD].split(b"\n", 1)[0]
    return b"," in head and b"=" not in head and b":" not in head


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MEASURED_FILE.refusal("is no text", str(error)[:200]) from None
