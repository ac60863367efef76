"""A measurement from whatever holds one: a line, a file or a folder; its content says which program wrote it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from llm_perf_opt.core.measurement import DECODE, STAGES_OUTSIDE_THE_MODEL
from llm_perf_opt.core.reading import as_record, decode_json, naming_file, parse_foreign_json, parse_toml, read_bytes
from llm_perf_opt.measurements.measurement import (
    MEASURED_FILE,
    MeasuredRun,
    Measurement,
    Quantity,
    run_of,
    time_of,
)
from llm_perf_opt.measurements.profile.metrics_file import METRICS_KIND, PageRow, read_metrics
from llm_perf_opt.measurements.serving_results import (
    is_step_log,
    read_genai_perf,
    read_guidellm,
    read_step_log,
    read_vllm,
)

_JOINED = "llm-perf-opt join"
_STAGES = "Kernel time by stage"
_TITLE = re.compile(r"(.{1,200}), ([a-z_]{1,40}): recorded kernels on the traced ops")
_FORWARDS = re.compile(r", in ([0-9,]{1,12}) forwards?\b")
_WHAT = f"the report of llm-perf-opt join, with its table {_STAGES!r}"


class TableRow(Struct, frozen=True, kw_only=True):
    """A table of the report."""

    title: str
    rows: tuple[dict[str, Any], ...] = ()


class JoinReport(Struct, frozen=True, kw_only=True):
    """What is read of the report."""

    title: str
    tables: tuple[TableRow, ...]


class StageTimeRow(Struct, frozen=True, kw_only=True):
    """A stage and the time of its kernels, over all forwards."""

    stage: str
    kernel_time_seconds: Annotated[float, Meta(ge=0)]


def read_joined_report(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """The one run of the report."""
    report = decode_json(raw, JoinReport, MEASURED_FILE)
    named = _TITLE.fullmatch(report.title)
    rows = next((table.rows for table in report.tables if table.title == _STAGES), ())
    forwards = _forwards(report.tables)
    if named is None or not rows or forwards is None:
        raise MEASURED_FILE.malformed("tables", _WHAT, report.title)
    known_keys = ({name: row.get(name) for name in StageTimeRow.__struct_fields__} for row in rows)
    stages = [as_record(row, StageTimeRow, MEASURED_FILE) for row in known_keys]
    times = [_time(stage, forwards) for stage in stages if stage.kernel_time_seconds > 0]
    return (run_of(times, source=_JOINED, file=file, model=named[1], phase=named[2]),)


def _time(stage: StageTimeRow, forwards: int) -> Measurement:
    try:
        return Measurement(
            quantity=Quantity.STAGE,
            stage=stage.stage[:200],
            samples_s=(stage.kernel_time_seconds / forwards,),
            statistic=f"kernels, mean of {forwards:,} forwards" if forwards > 1 else "kernels of one forward",
            is_device_time=True,
        )
    except ValueError as error:
        raise MEASURED_FILE.refusal("holds a value that cannot be", str(error)) from None


def _forwards(tables: Sequence[TableRow]) -> int | None:
    """How many forwards the times are of, as the answer says."""
    rows = (row for table in tables if table.title == "Answer" for row in table.rows)
    text = next((str(row.get("answer", "")) for row in rows if row.get("what") == "attributed"), "")
    match = _FORWARDS.search(text)
    count = int(match[1].replace(",", "") or 0) if match else 0
    return count if count else None


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
    readings = [_read_one(path) for path in each]
    return Measured(
        runs=tuple(run for reading in readings for run in reading.runs),
        recordings=tuple(path for reading in readings for path in reading.recordings),
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
    if keys.pages is not None:  # before a load generator: a run of `profile` has a figure for a first token
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


_PROFILED = "llm-perf-opt profile"
METRICS_NAME = "metrics.json"
_NS = 1e-9
_MOST_PAGES = 64


def read_profile_run(path: Path) -> tuple[MeasuredRun, ...]:
    """One run for each page of a finished profile; the first pass of a process is left out, it warms up."""
    metrics = read_metrics(path)
    device = None if metrics.device is None else metrics.device.name
    with naming_file(path):
        if len(metrics.pages) > _MOST_PAGES:
            raise METRICS_KIND.refusal("is too large", f"it holds more than {_MOST_PAGES} pages")
        return tuple(
            run_of(
                list(_times(page)),
                METRICS_KIND,
                source=_PROFILED,
                file=str(path),
                model=metrics.model,
                device=device,
                batch=_batch(page),
                input_tokens=page.context_tokens or None,
                output_tokens=page.decode_steps or None,
                workload=page.workload,
            )
            for page in metrics.pages
        )


def _batch(page: PageRow) -> int | None:
    batch = page.workload.get("batch", 1)
    return batch if isinstance(batch, int) and batch >= 1 else None


def _times(page: PageRow) -> Iterator[Measurement]:
    """Of `decode` one step, on average over the steps of a pass; of other stages all that they take in a pass."""
    names = dict.fromkeys(name for pass_ in page.passes for name in pass_.stages_ns)
    for name in names:
        if name in STAGES_OUTSIDE_THE_MODEL:
            continue
        samples = [
            sum(spent) * _NS / (len(spent) if name == DECODE else 1)
            for timed in page.passes
            if sum(spent := timed.stages_ns.get(name, ())) > 0
        ]
        if samples:
            yield Measurement(
                quantity=Quantity.STAGE, stage=name, samples_s=tuple(samples), statistic="median of the passes"
            )


PROMETHEUS = "vLLM's metrics"
_LINE = re.compile(rb"^(vllm:[a-z0-9_]{1,80})\{([^}]{0,2000})\} ([0-9.eE+-]{1,40}|\+Inf|NaN)$", re.MULTILINE)
_EDGE = re.compile(rb'le="([^"]{1,40})"')
_NOT_COUNTED = (b"NaN", b"+Inf")  # of a metric that nothing was observed for
_LARGEST = 2.0**63  # of a count, a sum of seconds or an edge
_MODEL = re.compile(rb'model_name="([^"]{1,200})"')
_HISTOGRAMS = {
    Quantity.TTFT: ("vllm:time_to_first_token_seconds",),
    Quantity.TPOT: ("vllm:request_time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
}
Histogram = Counter[float]  # upper edge -> requests at or below it


def is_prometheus(raw: bytes) -> bool:
    """Whether it is a text of metrics of vLLM."""
    return _LINE.search(raw) is not None and not raw.lstrip().startswith((b"{", b"["))


def read_prometheus(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run: the medians of the histograms, engines together. A server without answered requests has no times."""
    histograms: dict[str, Histogram] = {}
    values: Counter[str] = Counter()
    models = set()
    for name, labels, text in _LINE.findall(raw):
        if text in _NOT_COUNTED:
            continue
        value = _float(text, "a value")
        if (model := _MODEL.search(labels)) is not None:
            models.add(model[1].decode("utf-8", "replace"))
        plain = name.decode()
        if plain.endswith("_bucket") and (edge := _EDGE.search(labels)) is not None:
            upper = math.inf if edge[1] == b"+Inf" else _float(edge[1], "an edge of a histogram")
            histograms.setdefault(plain.removesuffix("_bucket"), Counter())[upper] += value  # type: ignore[assignment]
        else:
            values[plain] += value  # type: ignore[assignment]
    requests = values["vllm:request_success_total"]
    return (
        run_of(
            [time_of(quantity, _first_median(histograms, names), "median") for quantity, names in _HISTOGRAMS.items()],
            source=PROMETHEUS,
            file=file,
            model=models.pop() if len(models) == 1 else None,
            input_tokens=_mean(values["vllm:prompt_tokens_total"], requests),
            output_tokens=_mean(values["vllm:generation_tokens_total"], requests),
        ),
    )


def _float(text: bytes, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= _LARGEST:
        raise MEASURED_FILE.malformed(where, f"a number from 0 to {_LARGEST:g}", text.decode("ascii", "replace"))
    return number


def _first_median(histograms: Mapping[str, Histogram], names: tuple[str, ...]) -> float | None:
    return next((middle for name in names if (middle := median(histograms.get(name, Counter()))) is not None), None)


def median(histogram: Mapping[float, float]) -> float | None:
    """The median, on a straight line between the edges of its bucket; None: no requests, or above the last edge."""
    edges = sorted(histogram)
    half = histogram[edges[-1]] / 2 if edges else 0.0
    low = below = 0.0
    for edge in edges:
        if half and histogram[edge] >= half:
            return low + (edge - low) * (half - below) / (histogram[edge] - below) if math.isfinite(edge) else None
        low, below = edge, histogram[edge]
    return None


def _mean(total: float, requests: float) -> int | None:
    return max(1, round(total / requests)) if total and requests >= 1 else None


# Figures that a person wrote down: `ttft=0.5s tpot=20ms batch=16`, as a line of text, TOML, JSON or CSV.
#
# A time has its unit in its name (`ttft_ms`) or in its value (`0.5s`). A number without one is refused.

_WRITTEN = "written figures"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_TIMES = {
    Quantity.TTFT: ("ttft", "time_to_first_token"),
    Quantity.TPOT: ("tpot", "time_per_output_token", "itl", "inter_token_latency"),
}
_COUNTS = {
    "batch": ("batch", "batch_size"),
    "concurrency": ("concurrency", "max_concurrency"),
    "input_tokens": ("input_tokens", "input_len", "isl", "prompt_tokens", "context"),
    "output_tokens": ("output_tokens", "output_len", "osl", "decode_steps"),
}
_TEXTS = {"model": ("model",), "device": ("device", "gpu")}
_QUANTITY_OF = {name: quantity for quantity, names in _TIMES.items() for name in names}
_COUNT_OF = {name: field for field, names in _COUNTS.items() for name in names}
_TEXT_OF = {name: field for field, names in _TEXTS.items() for name in names}
_PAIR = re.compile(r"([A-Za-z_]{1,40})\s*[=:]\s*(\"[^\"]{0,200}\"|[^\s,;]{1,200})(?:[\s,;]+|$)")
_VALUE = re.compile(r"([0-9.eE+-]{1,40})\s*(s|ms|us)?")
_MOST_RUNS = 64


def read_line(text: str, file: str) -> tuple[MeasuredRun, ...]:
    """The runs in lines of `name=value`, one run in each; what follows a `#` is left out."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return _written_runs((_pairs(line) for line in lines if line), file)


def read_toml(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run at the top level, or one in each table `[[run]]`."""
    document = parse_toml(raw, MEASURED_FILE)
    return _written_runs(_objects(document.get("run", document)), file)


def read_json_figures(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run as an object, or several in a list."""
    return _written_runs(_objects(parse_foreign_json(raw, MEASURED_FILE)), file)


def read_csv(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run in each row below a header."""
    try:
        rows = csv.DictReader(io.StringIO(raw.decode("utf-8-sig")), strict=True)
        items = [{name: value for name, value in row.items() if name and value} for row in rows]
    except (csv.Error, UnicodeDecodeError) as error:
        raise MEASURED_FILE.refusal("is no CSV", str(error)[:200]) from None
    return _written_runs(items, file)


def _pairs(line: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    place = 0
    while place < len(line):
        pair = _PAIR.match(line, place)
        if pair is None:
            raise MEASURED_FILE.malformed("a line of text", "name=value, such as ttft=0.5s", line[place : place + 60])
        if pair[1] in pairs:
            raise MEASURED_FILE.malformed("a line of text", f"{pair[1]!r} once", line[:60])
        pairs[pair[1]] = pair[2].strip('"')
        place = pair.end()
    return pairs


def _objects(document: Any) -> Iterator[Mapping[str, object]]:
    for item in document if isinstance(document, list) else [document]:
        if not isinstance(item, dict):
            raise MEASURED_FILE.malformed("a run", "an object of names and values", item)
        yield item


def _written_runs(objects: Any, file: str) -> tuple[MeasuredRun, ...]:
    runs = [_run(item, file) for item, _ in zip(objects, range(_MOST_RUNS + 1), strict=False)]
    if len(runs) > _MOST_RUNS:
        raise MEASURED_FILE.refusal("is too large", f"it holds more than {_MOST_RUNS} runs")
    if not runs:
        raise MEASURED_FILE.refusal("holds no run", "it is empty")
    return tuple(runs)


def _run(values: Mapping[str, object], file: str) -> MeasuredRun:
    times: dict[Quantity, float] = {}
    known: dict[str, Any] = {}
    for name, value in values.items():
        plain, unit = _without_unit(str(name).strip().lower())
        if plain in _QUANTITY_OF and _QUANTITY_OF[plain] not in times:
            times[_QUANTITY_OF[plain]] = _seconds(name, value, unit)
        elif plain in _COUNT_OF and not unit and _COUNT_OF[plain] not in known:
            known[_COUNT_OF[plain]] = _count(name, value)
        elif plain in _TEXT_OF and not unit and isinstance(value, str):
            known[_TEXT_OF[plain]] = value
        else:
            names = (*(f"{first}_ms" for first, *_ in _TIMES.values()), *_COUNTS, *_TEXTS)
            raise MEASURED_FILE.malformed("a name", f"one of {', '.join(names)}, each once", name)
    return run_of(
        [time_of(quantity, seconds) for quantity, seconds in times.items()], source=_WRITTEN, file=file, **known
    )


def _without_unit(name: str) -> tuple[str, str]:
    plain, _, unit = name.rpartition("_")
    return (plain, unit) if unit in _SECONDS and plain in _QUANTITY_OF else (name, "")


def _seconds(name: str, value: object, unit: str) -> float:
    text = str(value).strip() if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool) else ""
    match = _VALUE.fullmatch(text)
    number = _number(match[1]) if match else None
    if match is None or number is None or bool(match[2]) == bool(unit):
        raise MEASURED_FILE.malformed(f"{name}", "a time with one unit, ttft=0.5s or ttft_ms=500", value)
    if not number > 0:
        raise MEASURED_FILE.malformed(f"{name}", "a time above zero", value)
    return number * _SECONDS[unit or match[2]]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _count(name: str, value: object) -> int:
    number = _number(str(value)) if not isinstance(value, bool) and len(str(value)) < 40 else None
    if number is None or number != number // 1:
        raise MEASURED_FILE.malformed(f"{name}", "a whole number", value)
    return int(number)
