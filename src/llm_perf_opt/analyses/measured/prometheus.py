"""What vLLM's `/metrics` says: Prometheus text with histograms of the times of requests since the server started."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from llm_perf_opt.analyses.measured.measurement import MEASURED_FILE, MeasuredRun, Quantity, run_of, time_of

PROMETHEUS = "vLLM's metrics"
_LINE = re.compile(rb"^(vllm:[a-z0-9_]{1,80})\{([^}]{0,2000})\} ([0-9.eE+-]{1,40}|\+Inf|NaN)$", re.MULTILINE)
_EDGE = re.compile(rb'le="([^"]{1,40})"')
_NOT_COUNTED = (b"NaN", b"+Inf")  # of a metric that nothing was observed for
_LARGEST = 2.0**63  # of a count, a sum of seconds or an edge
_MODEL = re.compile(rb'model_name="([^"]{1,200})"')
_TIMES = {
    Quantity.TTFT: ("vllm:time_to_first_token_seconds",),
    Quantity.TPOT: ("vllm:request_time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
}
Histogram = Counter[float]  # upper edge -> requests at or below it


def is_prometheus(raw: bytes) -> bool:
    """Whether it is a text of metrics of vLLM."""
    return _LINE.search(raw) is not None and not raw.lstrip().startswith((b"{", b"["))


def read_prometheus(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run: the medians of the histograms, engines together. A server that answered nobody has no times."""
    histograms: dict[str, Histogram] = {}
    values: Counter[str] = Counter()
    models = set()
    for name, labels, text in _LINE.findall(raw):
        if text in _NOT_COUNTED:
            continue
        value = _number(text, "a value")
        if (model := _MODEL.search(labels)) is not None:
            models.add(model[1].decode("utf-8", "replace"))
        plain = name.decode()
        if plain.endswith("_bucket") and (edge := _EDGE.search(labels)) is not None:
            upper = math.inf if edge[1] == b"+Inf" else _number(edge[1], "an edge of a histogram")
            histograms.setdefault(plain.removesuffix("_bucket"), Counter())[upper] += value  # type: ignore[assignment]
        else:
            values[plain] += value  # type: ignore[assignment]
    requests = values["vllm:request_success_total"]
    return (
        run_of(
            [time_of(quantity, _first_median(histograms, names), "median") for quantity, names in _TIMES.items()],
            source=PROMETHEUS,
            file=file,
            model=models.pop() if len(models) == 1 else None,
            input_tokens=_mean(values["vllm:prompt_tokens_total"], requests),
            output_tokens=_mean(values["vllm:generation_tokens_total"], requests),
        ),
    )


def _number(text: bytes, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= _LARGEST:
        raise MEASURED_FILE.malformed(where, f"a number from 0 to {_LARGEST:g}", text.decode("ascii", "replace"))
    return found


def _first_median(histograms: Mapping[str, Histogram], names: tuple[str, ...]) -> float | None:
    return next((found for name in names if (found := median(histograms.get(name, Counter()))) is not None), None)


def median(histogram: Mapping[float, float]) -> float | None:
    """Where half of the requests lie, straight between the edges of a bucket; None: nobody, or above the last edge."""
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
