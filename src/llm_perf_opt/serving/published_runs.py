"""Published measurements of servers, to draw next to what is expected of one: figures, never a fit.

`published_runs.csv` is made by `python -m benchmarks.published_runs`, which says where its rows come from.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.reading import FileKind, read_bytes

FILE = Path(__file__).with_name("published_runs.csv")
SOURCE = "InferenceX dumps and NVIDIA's measurements in aiconfigurator-core 0.12.0 (Apache-2.0)"
_KIND = FileKind(name="file of published runs", fix="install the package again")
# Models of the same shapes, of which one was measured for both.
_MEASURED_AS = {"deepseek-ai/DeepSeek-V3": "deepseek-ai/DeepSeek-R1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run of a load generator: `users` requests at once on `gpus` GPUs; times are means."""

    model: str
    gpu: str
    engine: str
    weight_bits: int
    gpus: int
    input_tokens: int
    output_tokens: int
    users: int
    ttft_us: int
    tpot_us: int

    @property
    def tokens_per_s_per_user(self) -> float:
        """While an answer is generated."""
        return 1e6 / self.tpot_us

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        """Of all users: each sends the next request when its answer is complete."""
        request_us = self.ttft_us + (self.output_tokens - 1) * self.tpot_us
        return self.users * self.output_tokens * 1e6 / request_us / self.gpus


def published_runs(model: str, gpus: Collection[str]) -> list[PublishedRun]:
    """The runs of a model on any of these GPUs."""
    name = _MEASURED_AS.get(model, model)
    rows = csv.DictReader(read_bytes(FILE, _KIND).decode("utf-8").splitlines())
    return [_measured(row) for row in rows if row["model"] == name and row["gpu"] in gpus]


def _measured(row: dict[str, str]) -> PublishedRun:
    texts = {"model", "gpu", "engine"}
    numbers = {name: int(value) for name, value in row.items() if name not in texts}
    return PublishedRun(model=row["model"], gpu=row["gpu"], engine=row["engine"], **numbers)
