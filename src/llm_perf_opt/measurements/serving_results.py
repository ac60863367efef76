"""What load generators write: vllm bench serve, genai-perf and AIPerf, guidellm.

All of them give the time to the first token of a request (TTFT) and the time per token after it (TPOT). guidellm calls
that the inter-token latency: its time per output token includes the first one. Medians count before means.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from llm_perf_opt.core.reading import decode_json
from llm_perf_opt.core.workload import steps_after_prompt
from llm_perf_opt.measurements.measurement import (
    MEASURED_FILE,
    MeasuredRun,
    Measurement,
    Quantity,
    run_of,
    time_of,
)

VLLM = "vllm bench serve"
GENAI_PERF = "genai-perf"
AIPERF = "AIPerf"
GUIDELLM = "guidellm"
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
_MOST_RUNS = 64
Number = Annotated[float, Meta(ge=0)]


class _Record(Struct, frozen=True, kw_only=True):
    """What is read of an object; other keys are left alone."""


class VllmResult(_Record, frozen=True, kw_only=True):
    """The result of one `vllm bench serve --save-result`, with or without the details of each request."""

    mean_ttft_ms: Number | None = None
    median_ttft_ms: Number | None = None
    mean_tpot_ms: Number | None = None
    median_tpot_ms: Number | None = None
    completed: Number | None = None
    total_input_tokens: Number | None = None
    total_output_tokens: Number | None = None
    request_throughput: Number | None = None
    max_concurrency: Number | None = None
    model_id: str | None = None
    spec_decode_acceptance_length: Number | None = None


class Statistics(_Record, frozen=True, kw_only=True):
    """One metric of genai-perf or AIPerf."""

    unit: str | None = None
    avg: Number | None = None
    p50: Number | None = None


class GenaiPerfResult(_Record, frozen=True, kw_only=True):
    """`profile_export_genai_perf.json`, and `profile_export_aiperf.json`, which has the same form."""

    time_to_first_token: Statistics | None = None
    inter_token_latency: Statistics | None = None
    input_sequence_length: Statistics | None = None
    output_sequence_length: Statistics | None = None
    request_throughput: Statistics | None = None
    request_latency: Statistics | None = None
    input_config: Any = None
    aiperf_version: str | None = None


class Distribution(_Record, frozen=True, kw_only=True):
    """A metric of guidellm over the requests of one outcome."""

    mean: Number | None = None
    median: Number | None = None


class ByOutcome(_Record, frozen=True, kw_only=True):
    """A metric of guidellm; requests that failed are left out."""

    successful: Distribution | None = None


class GuidellmMetrics(_Record, frozen=True, kw_only=True):
    """The metrics of one benchmark of guidellm."""

    time_to_first_token_ms: ByOutcome | None = None
    inter_token_latency_ms: ByOutcome | None = None
    prompt_token_count: ByOutcome | None = None
    output_token_count: ByOutcome | None = None
    request_concurrency: ByOutcome | None = None


class GuidellmBenchmark(_Record, frozen=True, kw_only=True):
    """One load of a guidellm report."""

    metrics: GuidellmMetrics | None = None
    config: Any = None
    args: Any = None  # in place of `config`, until version 0.3


class GuidellmReport(_Record, frozen=True, kw_only=True):
    """`benchmarks.json`."""

    benchmarks: tuple[GuidellmBenchmark, ...]
    config: Any = None
    args: Any = None


def read_vllm(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run, or one in each line, as `--append-result` leaves them."""
    lines = [line for line in raw.splitlines() if line.strip()]
    is_appended = len(lines) > 1 and all(line.lstrip().startswith(b"{") for line in lines)
    texts = lines if is_appended else [raw]
    if len(texts) > _MOST_RUNS:
        raise MEASURED_FILE.refusal("is too large", f"it holds more than {_MOST_RUNS} runs")
    return tuple(_vllm_run(decode_json(text, VllmResult, MEASURED_FILE), file) for text in texts)


def _vllm_run(result: VllmResult, file: str) -> MeasuredRun:
    ttft, tpot = (
        _time(quantity, median, mean, 1e-3)
        for quantity, median, mean in (
            (Quantity.TTFT, result.median_ttft_ms, result.mean_ttft_ms),
            (Quantity.TPOT, result.median_tpot_ms, result.mean_tpot_ms),
        )
    )
    output = _per_request(result.total_output_tokens, result.completed)
    in_flight = result.max_concurrency
    if in_flight is None and result.request_throughput and result.mean_ttft_ms and result.mean_tpot_ms and output:
        latency_s = (result.mean_ttft_ms + steps_after_prompt(output) * result.mean_tpot_ms) * 1e-3
        in_flight = result.request_throughput * latency_s  # Little's law
    return run_of(
        [ttft, tpot],
        source=VLLM,
        file=file,
        model=result.model_id,
        concurrency=_whole(in_flight),
        input_tokens=_whole(_per_request(result.total_input_tokens, result.completed)),
        output_tokens=_whole(output),
        tokens_per_step=max(1.0, result.spec_decode_acceptance_length or 1.0),
    )


def read_genai_perf(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """The one run of an export."""
    result = decode_json(raw, GenaiPerfResult, MEASURED_FILE)
    given = _first(
        result.input_config,
        ("perf_analyzer", "stimulus", "concurrency"),
        ("loadgen", "concurrency"),
        ("phases", -1, "concurrency"),
        ("concurrency",),
    )
    in_flight = _number(given)
    throughput, latency = result.request_throughput, _in_seconds(result.request_latency)
    if in_flight is None and throughput is not None and throughput.avg and latency is not None:
        in_flight = throughput.avg * latency  # Little's law
    names = (
        ("model_names", 0),
        ("endpoint", "model_names", 0),
        ("models", "items", 0, "name"),
        ("model", 0),
        ("model",),
    )
    return (
        run_of(
            [
                _statistics_time(Quantity.TTFT, result.time_to_first_token),
                _statistics_time(Quantity.TPOT, result.inter_token_latency),
            ],
            source=GENAI_PERF if result.aiperf_version is None else AIPERF,
            file=file,
            model=_text(_first(result.input_config, *names)),
            concurrency=_whole(in_flight),
            input_tokens=_whole(_average(result.input_sequence_length)),
            output_tokens=_whole(_average(result.output_sequence_length)),
        ),
    )


def read_guidellm(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run for each load of the report; a load without a finished request is left out."""
    report = decode_json(raw, GuidellmReport, MEASURED_FILE)
    if len(report.benchmarks) > _MOST_RUNS:
        raise MEASURED_FILE.refusal("is too large", f"it holds more than {_MOST_RUNS} runs")
    settings = (report.config, report.args)
    model = next((name for part in settings if (name := _text(_first(part, *_GUIDELLM_MODEL))) is not None), None)
    runs = [
        _guidellm_run(benchmark, file, model)
        for benchmark in report.benchmarks
        if benchmark.metrics and _finished(benchmark.metrics)
    ]
    if not runs:
        raise MEASURED_FILE.refusal("holds no time", "no benchmark of guidellm has times of successful requests")
    return tuple(runs)


_GUIDELLM_MODEL = (("spec", "backend", "model"), ("backend", "model"), ("model",), ("backend_kwargs", "model"))
_GUIDELLM_LOAD = (("strategy", "streams"), ("strategy", "max_concurrency"))


def _finished(metrics: GuidellmMetrics) -> bool:
    times = (metrics.time_to_first_token_ms, metrics.inter_token_latency_ms)
    return any(metric is not None and metric.successful is not None and metric.successful.mean for metric in times)


def _guidellm_run(benchmark: GuidellmBenchmark, file: str, model: str | None) -> MeasuredRun:
    metrics = benchmark.metrics
    assert metrics is not None
    streams = next(
        (load for part in (benchmark.config, benchmark.args) if (load := _first(part, *_GUIDELLM_LOAD))), None
    )
    seen = metrics.request_concurrency
    in_flight = _number(streams) or (None if seen is None or seen.successful is None else seen.successful.mean)
    return run_of(
        [
            _outcome_time(Quantity.TTFT, metrics.time_to_first_token_ms),
            _outcome_time(Quantity.TPOT, metrics.inter_token_latency_ms),
        ],
        source=GUIDELLM,
        file=file,
        model=model,
        concurrency=_whole(in_flight),
        input_tokens=_whole(_outcome_mean(metrics.prompt_token_count)),
        output_tokens=_whole(_outcome_mean(metrics.output_token_count)),
    )


def _outcome_time(quantity: Quantity, metric: ByOutcome | None) -> Measurement | None:
    successful = None if metric is None else metric.successful
    return None if successful is None else _time(quantity, successful.median, successful.mean, 1e-3)


def _outcome_mean(metric: ByOutcome | None) -> float | None:
    return None if metric is None or metric.successful is None else metric.successful.mean


def _statistics_time(quantity: Quantity, metric: Statistics | None) -> Measurement | None:
    return None if metric is None else _time(quantity, metric.p50, metric.avg, _unit(metric))


def _unit(metric: Statistics) -> float:
    unit = "ms" if metric.unit is None else metric.unit.lower()
    if unit not in _SECONDS:
        raise MEASURED_FILE.malformed("unit", f"a unit of time, one of {', '.join(_SECONDS)}", metric.unit)
    return _SECONDS[unit]


def _in_seconds(metric: Statistics | None) -> float | None:
    return None if metric is None or metric.avg is None else metric.avg * _unit(metric)


def _average(metric: Statistics | None) -> float | None:
    return None if metric is None else metric.avg


def _time(quantity: Quantity, median: float | None, mean: float | None, unit_s: float) -> Measurement | None:
    """The median, or the mean where no median was written; None where there is neither, or it is zero."""
    if median:
        return time_of(quantity, median * unit_s, "median of the requests")
    return time_of(quantity, None if mean is None else mean * unit_s, "mean of the requests")


def _per_request(total: float | None, requests: float | None) -> float | None:
    return total / requests if total is not None and requests else None


def _whole(count: float | None) -> int | None:
    """The nearest whole number from 1 on; None where nothing was counted, or more than any number."""
    return max(1, round(count)) if count and math.isfinite(count) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _first(document: Any, *paths: tuple[str | int, ...]) -> Any:
    """The value at the first path that leads to one; configurations of other programs are no part of any contract."""
    for path in paths:
        value = document
        for key in path:
            if isinstance(key, str):
                value = value.get(key) if isinstance(value, dict) else None
            else:
                value = value[key] if isinstance(value, list) and value else None
        if value is not None:
            return value
    return None


STEP_LOG = "vLLM's log of iterations"
_LINE = re.compile(
    rb"Iteration\((\d{1,12})\): (\d{1,9}) context requests, (\d{1,9}) context tokens, (\d{1,9}) generation requests, "
    rb"(\d{1,9}) generation tokens, iteration elapsed time: ([0-9.]{1,12}) ms"
)
_FEWEST = 3  # steps of one size, so that a median says something
_MOST_STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step of an engine."""

    prompts: int
    prompt_tokens: int
    decoding: int
    decoded_tokens: int
    seconds: float

    @property
    def only_decodes(self) -> bool:
        """One token for each sequence, and no prompt."""
        return self.decoding > 0 and not self.prompts and self.decoded_tokens == self.decoding


def is_step_log(raw: bytes) -> bool:
    """Whether a step is logged in it."""
    return _LINE.search(raw) is not None


def read_steps(raw: bytes) -> tuple[MeasuredStep, ...]:
    """All steps in order, whatever else the log says between them."""
    steps = []
    for _, prompts, prompt_tokens, decoding, decoded, milliseconds in _LINE.findall(raw):
        seconds = float(milliseconds) * 1e-3
        if seconds > 0 and (int(prompts) or int(decoding)):
            steps.append(
                MeasuredStep(
                    prompts=int(prompts),
                    prompt_tokens=int(prompt_tokens),
                    decoding=int(decoding),
                    decoded_tokens=int(decoded),
                    seconds=seconds,
                )
            )
    if not steps:
        raise MEASURED_FILE.refusal("holds no step", "no line tells of an iteration with a time above zero")
    return tuple(steps)


def read_step_log(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """A run for each number of sequences that often decoded together: the median of such steps."""
    by_batch: dict[int, list[float]] = defaultdict(list)
    for step in read_steps(raw):
        if step.only_decodes:
            by_batch[step.decoding].append(step.seconds)
    often = sorted(
        (batch for batch in by_batch if len(by_batch[batch]) >= _FEWEST), key=lambda batch: -len(by_batch[batch])
    )
    if not often:
        raise MEASURED_FILE.refusal("holds no run", f"no number of sequences decoded together {_FEWEST} times")
    return tuple(
        run_of(
            [time_of(Quantity.TPOT, statistics.median(by_batch[batch]), "median")],
            source=STEP_LOG,
            file=file,
            batch=batch,
        )
        for batch in sorted(often[:_MOST_STEPS])
    )
