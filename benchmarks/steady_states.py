"""Steady states next to replays through vLLM's own scheduler, on the same step times: 60 fleets below 80 % load.

    python -m benchmarks.steady_states            half an hour of one core; needs vLLM
    python -m benchmarks.steady_states --sessions the same of sessions, with and without host memory: a quarter of one
    python -m benchmarks.steady_states --docs     writes the section of docs/evidence/steady-states.md

Requests come at random. The load is a share of what one replica answers at most, in a steady state without limits. The
steady state is asked for the rate that the requests of the replay happened to have, and there are twenty times as many
of them as decode at once: fewer never fill the server.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil
from operator import sub
from statistics import median
from typing import Any

from benchmarks.pages import DOCS, show_sections, table, write_data
from benchmarks.runner import parser
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.replays import Replays
from llm_perf_opt.serving.capacity.search import PlanCandidate
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, mean_request
from llm_perf_opt.serving.read_traffic import as_traffic
from llm_perf_opt.serving.served_model import ServedModel, engine_folder
from llm_perf_opt.tracing.origin import find_origin

PLANS = (
    ("Qwen/Qwen3-8B", "1x h100-sxm", ParallelPlan()),
    ("Qwen/Qwen3-8B", "1x l40s", ParallelPlan()),
    ("Qwen/Qwen3-30B-A3B", "2x h100-sxm", ParallelPlan(tp=2)),
    ("meta-llama/Llama-3.1-70B-Instruct", "4x h100-sxm", ParallelPlan(tp=4)),
    ("Qwen/Qwen3-32B", "2x h200-sxm", ParallelPlan(tp=2)),
)
SHAPES = ((200, 100), (1000, 200), (4000, 400))
LOADS = (0.2, 0.4, 0.6, 0.8)
FEWEST_REQUESTS, LIVES = 500, 20
LIMITS = {"tpot": 0.08, "ttft_p99": 0.25}
FIGURES = {"tpot": "TPOT", "tpot_p99": "TPOT p99", "ttft": "engine's TTFT", "ttft_p99": "engine's TTFT p99"}
DATA = DOCS / "data" / "steady_states.json"
SESSIONS = (
    "prompt=2000 output=200 sessions:turns=8,grow=400,think=10s",
    "prompt=6000 output=150 sessions:turns=12,grow=300,think=5s",
    "prompt=2000 output=200 sessions:turns=8,grow=400,think=40s",
)
SESSION_LOADS, HOST_BYTES = (0.3, 0.6, 0.75), (None, 96 * 2**30)
SESSION_REQUESTS = 2_400  # of which the first and the last quarter are left out: the cache fills, and empties


def fleets(replays_of: Sequence[tuple[str, str, ParallelPlan]]) -> Iterator[dict[str, Any]]:
    """Every shape and load of each plan: the steady state, the replay, and one over the other."""
    for model, devices, plan in replays_of:
        origin, cluster = find_origin(model, torch_device="cuda"), parse_cluster(devices)
        served = ServedModel(origin)
        with engine_folder(origin, model) as folder, Replays(folder) as replays, shared_work():
            for prompt, output in SHAPES:
                mean = MeanRequest(prompt_tokens=prompt, output_tokens=output)
                replica = served.replica(cluster.device, plan, mean, None, cluster=cluster)
                assert replica is not None
                assert replica.considered.best is not None
                for load in LOADS:
                    rate = round(load * replica.considered.best.requests_per_s, 3)
                    state = replica.steady.at_rate(rate)
                    assert state is not None
                    requests = max(FEWEST_REQUESTS, LIVES * state.sequences)
                    traffic = as_traffic(f"{rate}/s prompt={prompt} output={output} requests={requests}")
                    candidate = PlanCandidate(cluster=cluster, served=served, replica=replica, replicas=1)
                    outcome = replays.outcome(candidate, traffic)
                    assert outcome.tpot is not None
                    state = replica.steady.at_rate(outcome.requests / outcome.arrivals_s)
                    assert state is not None
                    waits = state.queue.waits()
                    pairs = {
                        "tpot": (state.per_token_at(0.5), outcome.tpot.at(0.5)),
                        "tpot_p99": (state.per_token_at(0.99), outcome.tpot.at(0.99)),
                        "ttft": (waits.at(0.5), outcome.ttft.at(0.5)),
                        "ttft_p99": (waits.at(0.99), outcome.ttft.at(0.99)),
                    }
                    yield {
                        "model": model,
                        "devices": devices,
                        "prompt": prompt,
                        "output": output,
                        "load": load,
                        "requests": outcome.requests,
                        "is_growing": outcome.is_growing,
                        **{f"{name}_error": steady / replayed - 1 for name, (steady, replayed) in pairs.items()},
                    }


def sections(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The errors of each load, of all fleets together."""
    lines = []
    for load in (*LOADS, None):
        some = [row for row in rows if load is None or row["load"] == load]
        cells = []
        for name in FIGURES:
            errors = sorted(abs(row[f"{name}_error"]) for row in some)
            cells.append(f"{median(errors):.1%} / {errors[ceil(0.9 * len(errors)) - 1]:.1%}".replace("%", " %"))
        kept = sum(all(abs(row[f"{name}_error"]) <= most for name, most in LIMITS.items()) for row in some)
        lines.append((f"{load:.0%}".replace("%", " %") if load else "all", len(some), kept, *cells))
    titles = ("load", "fleets", "within 8 % and 25 %", *(f"{title} off by: median / p90" for title in FIGURES.values()))
    return {"replays": table(titles, lines)}


def session_rows() -> Iterator[tuple[str, ...]]:
    """Sessions on one L40S, whose cache they fill: the steady state at the rate of the replay, and the replay."""
    model, cluster = "Qwen/Qwen3-8B", parse_cluster("1x l40s")
    origin = find_origin(model, torch_device="cuda")
    served = ServedModel(origin)
    with engine_folder(origin, model) as folder, Replays(folder) as replays, shared_work():
        for shape, host_bytes, load in product(SESSIONS, HOST_BYTES, SESSION_LOADS):
            mean = mean_request(as_traffic(f"1/s {shape} requests=2400"))
            replica = served.replica(cluster.device, ParallelPlan(), mean, None, cluster=cluster, host_bytes=host_bytes)
            assert replica is not None and replica.considered.best is not None
            rate = round(load * replica.considered.best.requests_per_s, 3)
            traffic = as_traffic(f"{rate}/s {shape} requests={SESSION_REQUESTS}")
            candidate = PlanCandidate(cluster=cluster, served=served, replica=replica, replicas=1)
            (requests,) = (replayed.requests for replayed in replays.replayed(candidate, traffic))
            middle = slice(SESSION_REQUESTS // 4, 3 * SESSION_REQUESTS // 4)
            arrivals, firsts, lasts, outputs = (
                times[middle]
                for times in (requests.arrival_s, requests.first_token_s, requests.last_token_s, requests.output_tokens)
            )
            state = replica.steady.at_rate((len(arrivals) - 1) / (arrivals[-1] - arrivals[0]))
            assert state is not None and state.reuse is not None
            tpot = median(map(lambda first, last, tokens: (last - first) / (tokens - 1), firsts, lasts, outputs))
            ttft = sorted(map(sub, firsts, arrivals))
            late = ttft[ceil(0.99 * len(ttft)) - 1]
            found, prompt = sum(requests.cached_tokens[middle]), sum(requests.prompt_tokens[middle])
            where = "GPU" if host_bytes is None else f"GPU and {host_bytes / 2**30:.0f} GiB of the host"
            yield (
                shape.partition(" sessions:")[2],
                where,
                f"{load:.0%}",
                f"{state.reuse.tokens / mean.prompt_tokens:.1%} / {found / prompt:.1%}",
                _both(state.per_token_at(0.5), tpot),
                _both(state.first_token_at(0.5), ttft[len(ttft) // 2]),
                _both(state.first_token_at(0.99), late),
            )


def _both(steady_s: float, replayed_s: float) -> str:
    return f"{steady_s * 1e3:.1f} / {replayed_s * 1e3:.1f} ms ({steady_s / replayed_s - 1:+.1%})"


def session_sections() -> dict[str, str]:
    """One line for each kind of session, room and load."""
    titles = ("sessions", "cache", "load", "found in cache", "TPOT", "engine's TTFT", "engine's TTFT p99")
    rows = []
    for row in session_rows():
        sys.stderr.write(f"{row}\n")
        rows.append(tuple(cell.replace("%", " %") for cell in row))
    return {"sessions": table(titles, rows)}


def main() -> None:
    asked = parser(
        __doc__, docs="write the page's section and its data file", sessions="sessions in place of single requests"
    )
    asked.add_argument("--kept", action="store_true", help="from the data file, without a replay")
    options = asked.parse_args()
    if options.sessions:
        show_sections("evidence/steady-states", session_sections(), is_written=options.docs)
        return
    rows = json.loads(DATA.read_text(encoding="utf-8")) if options.kept else []
    for row in () if options.kept else fleets(PLANS):
        sys.stderr.write(f"{row}\n")
        rows.append(row)
    show_sections("evidence/steady-states", sections(rows), is_written=options.docs)
    if options.docs:
        write_data("steady_states", rows)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    main()
