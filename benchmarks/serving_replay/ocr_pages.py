"""Pages per second of an OCR model on a real server, beside a replay of DeepSeek-OCR with the same pages.

The measured model has DeepSeek-OCR's kind of encoder and decoder; that it has the same sizes is assumed here. So many
clients at once, each with the next page when its last is answered; lengths are the middle of the recorded range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.analyses.capacity.outcome import outcome
from llm_perf_opt.analyses.capacity.steady_state import mean_request
from llm_perf_opt.api.served_model import ServedModel, engine_folder
from llm_perf_opt.api.tracing import find_origin
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.core.workload import read_page_size
from llm_perf_opt.engines.vllm.jobs import ReplayJob
from llm_perf_opt.engines.vllm.process import ReplayProcess

FACTS = Path(__file__).parents[2] / "tests" / "facts" / "serving" / "ocr.json"
MODEL, DEVICE, OUTPUT_TOKENS, ROUNDS = "deepseek-ocr", "rtx-pro-6000-bw-server", 622, 6
PUBLISHED_DEVICE, PUBLISHED_PAGES_PER_DAY = "a100-sxm-40g", 200_000
PUBLISHED_TOKENS_PER_S = 2500  # of the same release, on the same GPU: so many tokens for each page
PUBLISHED_PAGE = "1190x1684"  # A4 at 144 dots per inch, as the release renders documents


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesRow:
    """One measured figure and its replay."""

    what: str
    measured_pages_per_s: float
    pages_per_s: float
    low: float
    high: float
    measured_tpot_s: float | None
    tpot_s: float


def rows() -> Iterator[PagesRow]:
    """Eight measured points, and the published pages of a day."""
    records = [one for one in json.loads(FACTS.read_text(encoding="utf-8"))["records"] if "pages_per_s" in one]
    sizes = tuple(read_page_size(name) for name in dict.fromkeys(one["image"] for one in records))
    origin = find_origin(MODEL, torch_device="cuda")
    with engine_folder(origin, MODEL) as folder, ReplayProcess() as process:
        served = ServedModel(origin, folder, sizes)
        for one in records:
            load = f"{one['concurrency']} at once pages={one['image']} output={OUTPUT_TOKENS}"
            yield _row(process, served, DEVICE, load, one["concurrency"], one["pages_per_s"], one["tpot_ms"] / 1e3)
        published = ServedModel(origin, folder, (read_page_size(PUBLISHED_PAGE),))
        per_s = PUBLISHED_PAGES_PER_DAY / 86400
        output = round(PUBLISHED_TOKENS_PER_S / per_s)
        load = f"100 at once pages={PUBLISHED_PAGE} output={output}"
        yield _row(process, published, PUBLISHED_DEVICE, load, 100, per_s, None)


def _row(
    process: ReplayProcess,
    served: ServedModel,
    device: str,
    load: str,
    at_once: int,
    measured: float,
    tpot_s: float | None,
) -> PagesRow:
    declared = read_traffic(f"{load} requests={ROUNDS * at_once}")
    traffic = as_traffic(declared, served.page_tokens)
    replica = served.replica(find_device(device), ParallelPlan(), mean_request(traffic), None)
    assert replica is not None
    done = process.replay(ReplayJob(settings=replica.settings, traffic=traffic, table=replica.table))
    found = outcome([done], pages=len(traffic.requests), is_closed=True)
    pages_per_s = found.requests_per_s
    return PagesRow(
        what=f"{device}: {load}",
        measured_pages_per_s=measured,
        pages_per_s=pages_per_s,
        low=pages_per_s / replica.table.high,
        high=pages_per_s / replica.table.low,
        measured_tpot_s=tpot_s,
        tpot_s=found.tpot.at(0.5),
    )
