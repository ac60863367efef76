"""Random models, devices and plans: the time of a step never falls, is never below physics, and tp gains at most twice.

    python -m benchmarks.step_order [--docs] [--only MODEL ...]

Of each model, device and plan the table of steps is asked at random batches, contexts and new tokens. Time must not
fall as one of them grows, nor lie below the necessary work of the step over all peaks and bandwidths of its ranks, and
a step on twice the tensor ranks takes at least half as long. Models that are in the record already are kept.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, columns, replace_section
from benchmarks.runner import load_records, parser, save_records
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device, load_devices
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork
from llm_perf_opt.serving.capacity.sizing import search_cluster
from llm_perf_opt.serving.served_model import ServedModel
from llm_perf_opt.timing.lower_bound import is_known, lower_bound
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import StepRange, step_table
from llm_perf_opt.tracing.origin import find_origin

MODELS = (
    "openai-community/gpt2",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "google/gemma-2-9b",
    "google/gemma-3-1b-it",
    "google/gemma-4-26B-A4B",
    "mistralai/Mistral-7B-v0.3",
    "mistralai/Mixtral-8x7B-v0.1",
    "microsoft/phi-4",
    "microsoft/Phi-3.5-MoE-instruct",
    "allenai/OLMo-2-1124-7B",
    "ibm-granite/granite-3.3-8b-instruct",
    "HuggingFaceTB/SmolLM3-3B",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "zai-org/GLM-4.5",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2-Instruct",
)
PER_MODEL = 80  # 2,000 in all
SEED = 34
DATA, PAGE, SECTION = DOCS / "data" / "step_order.json", DOCS / "how" / "one-step.md", "step order"
REACH = StepRange(tokens=256, sequences=32, context=2048)
PROBES = 10  # numbers along each axis, some of them beyond the reach
_BEYOND = 4
_ROUNDING = 1e-9  # relative: the sum of a step's parts in another order

Place = tuple[str, ParallelPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model's decoder: what an engine launches in a step, and what any implementation must do in one."""

    blocks: EngineBlocks
    needs: DecoderNeeds
    heads: int
    has_experts: bool

    @classmethod
    def of(cls, model: str, **workload: Any) -> Decoder:
        served = ServedModel(find_origin(model, torch_device="cuda", **workload))
        (decode,) = (graph for graph in served.trace.graphs if graph.phase == DECODE)
        return cls(
            blocks=served.blocks, needs=decoder_needs(decode), heads=served.heads, has_experts=served.has_experts
        )


def devices() -> list[str]:
    """Everything with a rate for 16 bits."""
    listed = load_devices().devices
    return [name for name, device in listed.items() if is_known("bfloat16", device)]


def places(decoder: Decoder, seed: str) -> list[Place]:
    """All devices and plans, shuffled by a seed."""
    ranks = [tp for tp in (1, 2, 4, 8) if decoder.heads % tp == 0]
    groups = (1, 2, 4) if decoder.has_experts else (1,)
    plans = [
        ParallelPlan(tp=tp, attention_dp=shared, ep=ep)
        for tp, shared in product(ranks, groups)
        for ep in ({1, tp * shared} if decoder.has_experts and shared == 1 else {tp * shared if shared > 1 else 1})
    ]
    drawn = [(name, plan) for name in devices() for plan in plans]
    random.Random(seed).shuffle(drawn)
    return drawn


def checked(decoder: Decoder, place: Place, known: dict[ParallelPlan, StepTable], drawn: random.Random) -> Any:
    """What a device and plan break, and how near they come to each limit."""
    name, plan = place
    device = load_devices().devices[name]
    cluster = search_cluster(name, max(8, plan.replica_ranks))
    timer = EngineTimer.of_any(device, "vllm", cluster)

    def table_of(wanted: ParallelPlan) -> StepTable:
        return step_table(decoder.blocks, timer, wanted, reach=REACH, known=known)

    table = table_of(plan)
    fallen = list(falls(table, drawn))
    bounds = list(_over_bound(table, decoder, device, plan, drawn))
    summary = {"falls": fallen, "nearest_to_bound": min(bounds), "largest_gain": None}
    if plan.tp % 2 == 0:
        half = table_of(replace(plan, tp=plan.tp // 2, ep=max(1, plan.ep // 2)))
        summary["largest_gain"] = max(half.seconds(*step) / table.seconds(*step) for step in _steps(drawn))
    return summary


def _numbers(drawn: random.Random, most: int) -> list[int]:
    """Rising, as likely small as large, and one beyond the table."""
    inside = (round(most ** drawn.random()) for _ in range(PROBES - 1))
    return sorted({*inside, most * drawn.randint(2, _BEYOND)})


def _rising(drawn: random.Random) -> Iterator[tuple[str, list[Any]]]:
    """Steps in which one number grows."""
    batch, context, new = _one_step(drawn)
    batches, contexts, news = (_numbers(drawn, most) for most in (REACH.sequences, REACH.context, REACH.tokens))
    yield "batch", [(more, more * context) for more in batches]
    yield "context", [(batch, batch * more) for more in contexts]
    yield "new tokens", [(0, 0, [(more, 0)]) for more in news]
    yield "new tokens behind a cache", [(0, 0, [(more, context)]) for more in news]
    yield "cache before a chunk", [(0, 0, [(new, more)]) for more in contexts]
    yield "prompts in a step", [(batch, batch * context, [(new, 0)] * more) for more in range(4)]


def _one_step(drawn: random.Random) -> tuple[int, int, int]:
    return tuple(max(1, round(most ** drawn.random())) for most in (REACH.sequences, REACH.context, REACH.tokens))


def falls(table: StepTable, drawn: random.Random) -> Iterator[str]:
    """Where the time of a step falls as one number grows."""
    for what, steps in _rising(drawn):
        for (before, first), (after, second) in pairwise((step, table.seconds(*step)) for step in steps):
            if second < first * (1 - _ROUNDING):
                yield f"{what}: {first * 1e3:.4f} ms at {before}, {second * 1e3:.4f} ms at {after}"


def _over_bound(
    table: StepTable, decoder: Decoder, device: Device, plan: ParallelPlan, drawn: random.Random
) -> Iterator[float]:
    """The time over what physics allows all ranks together, of decode steps and of prompts from nothing."""
    for _ in range(PROBES):
        batch, context, new = _one_step(drawn)
        needs = decoder.needs
        yield table.seconds(batch, batch * context) / _least_s(needs.step(batch=batch, context=context), device, plan)
        yield table.seconds(0, 0, [(new, 0)]) / _least_s(needs.prefill(batch=1, prompt=new), device, plan)


def _least_s(work: NecessaryWork, device: Device, plan: ParallelPlan) -> float:
    """Shared evenly: each rank reads its part, less what its own cache may hold of it."""
    ranks = plan.replica_ranks
    flops = {dtype: count // ranks for dtype, count in work.flops_by_dtype.items()}
    return max(lower_bound(flops, (work.bytes or 0) // ranks, device).seconds, 1e-12)


def _steps(drawn: random.Random) -> Iterator[Any]:
    for _ in range(PROBES):
        batch, context, new = _one_step(drawn)
        yield batch, batch * context
        yield 0, 0, [(new, 0)]


def judged(model: str, count: int = PER_MODEL) -> dict[str, Any]:
    """A record of one model: what breaks, with the place where it does."""
    decoder = Decoder.of(model)
    drawn, known = random.Random(f"{SEED} {model} steps"), dict[str, dict[ParallelPlan, StepTable]]()
    record: dict[str, Any] = {"places": 0, "refused": 0, "falls": [], "below_bound": [], "more_than_twice": []}
    bounds, gains = [], []
    for place in places(decoder, f"{SEED} {model}"):
        if record["places"] == count:
            break
        try:
            summary = checked(decoder, place, known.setdefault(place[0], {}), drawn)
        except PerfOptError:  # no link of the device is known: its ranks have no time
            record["refused"] += 1
            continue
        text = f"{place[0]} {place[1].describe()}"
        record["places"] += 1
        record["falls"] += [f"{text}, {fall}" for fall in summary["falls"]]
        bounds.append(summary["nearest_to_bound"])
        if bounds[-1] < 1 - _ROUNDING:
            record["below_bound"].append(f"{text}: {bounds[-1]:.3f}")
        if summary["largest_gain"] is not None:
            gains.append(summary["largest_gain"])
            if gains[-1] > 2 * (1 + _ROUNDING):
                record["more_than_twice"].append(f"{text}: {gains[-1]:.4f}")
    return {**record, "nearest_to_bound": min(bounds), "largest_gain": max(gains, default=None)}


def section(records: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for the page, and the models with what they break."""
    names = ("places", "falls", "below_bound", "more_than_twice")
    counts = {name: sum(_count(record[name]) for record in records.values()) for name in names}
    nearest = min(record["nearest_to_bound"] for record in records.values())
    gain = max(record["largest_gain"] or 0.0 for record in records.values())
    broken = [
        {"model": model, **{name: _count(record[name]) for name in names}}
        for model, record in records.items()
        if any(record[name] for name in names[1:])
    ]
    lines = [
        f"{counts['places']:,} random places (a model, a device, a plan) of {len(records)} models "
        "(`python -m benchmarks.step_order --docs`): "
        f"time falls with batch, context or new tokens in {counts['falls']}, a step is below the necessary work of its "
        f"ranks in {counts['below_bound']} (the nearest takes {nearest:.2f} times as long), and twice the tensor ranks "
        f"are more than twice as fast in {counts['more_than_twice']} (at most {gain:.2f} times)."
    ]
    titles = {"model": "{model}", "places": "{places}", "time falls": "{falls}", "below physics": "{below_bound}"}
    return "\n\n".join([*lines, *([columns(broken, titles)] if broken else [])])


def _count(figure: int | Sequence[str]) -> int:
    return figure if isinstance(figure, int) else len(figure)


def main() -> None:
    made = parser(__doc__, docs="write the section of the page")
    made.add_argument("--only", nargs="*", default=MODELS, help="these models")
    made.add_argument("--out", type=Path, default=DATA)
    given = made.parse_args()
    records = load_records(given.out)
    for model in given.only:
        if model not in records:
            records[model] = judged(model)
            save_records(given.out, {"seed": SEED}, records)
            print(section({model: records[model]}), flush=True)
    if given.docs:
        replace_section(PAGE, SECTION, section(records))
    print(section(records))


if __name__ == "__main__":
    main()
