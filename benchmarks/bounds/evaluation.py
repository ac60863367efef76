"""Every measured run next to its bounds, what its model needs by its own code, and both sources of needs compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.bounds.closed_form import ClosedForm, closed_form
from benchmarks.bounds.floors import EVALUATION_RULES, Floors, floors, plan_links, sequences_that_fit
from benchmarks.pages import FACTS
from benchmarks.records import (
    CONFIGS,
    DEEPSEEK_OCR,
    ROW_RULES,
    SERVING,
    TABLE_RULES,
    MeasuredRun,
    lengths_not_recorded,
    read_nim,
    read_overview,
    read_published,
    read_silicon,
    read_two_nodes,
    read_vllm_latencies,
)
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, weight_matrices
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.plugins import FOLDERS, MODELS, TRACERS
from llm_perf_opt.core.tensor_formats import FP8
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.costs.stored_formats import store_cache, store_weights
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

TRACED_PROMPT = 64  # any will do: the needs are a function of batch and context

_ALL = (Role.LINEAR, Role.EXPERTS, Role.HEAD)
STORED = {
    "bf16": {},
    "fp8": dict.fromkeys(_ALL, "fp8"),
    "fp4": dict.fromkeys(_ALL, "nvfp4"),
    "int4": {Role.EXPERTS: "int4-g32-sym"},  # weights alone; attention and shared expert stay in 16 bits
}
MXFP4_EXPERTS = {Role.EXPERTS: "mxfp4"}  # gpt-oss is published so, whatever a record calls its precision


def smallest_stored_form(model: str, precision: str) -> dict[Role, str]:
    """Quantised runs store every matrix but the router's as small as any checkpoint of the label, the cache in fp8."""
    return MXFP4_EXPERTS if model.startswith("gpt-oss") else STORED[precision]


@cache
def traced_needs(model: str, precision: str = "bf16", *, is_smallest: bool = True) -> DecoderNeeds:
    """The needs of a model of `CONFIGS` as its code tells them.

    Without `is_smallest` the head and the cache stay in 16 bits, as in most checkpoints.
    """
    return decoder_needs(stored(decode_graph(model), model, precision, is_smallest=is_smallest))


def stored(graph: CallGraph, model: str, precision: str, *, is_smallest: bool) -> CallGraph:
    """With weights as checkpoints of the precision store them; head and cache in 16 bits unless `is_smallest`."""
    if precision == "bf16":
        return graph
    smallest = smallest_stored_form(model, precision)
    formats = {role: form for role, form in smallest.items() if is_smallest or role is not Role.HEAD}
    roles = weight_matrices(graph)
    made = store_weights(graph, {name: formats[role] for name, role in roles.items() if role in formats})
    return store_cache((made,), FP8)[0] if is_smallest else made


@cache
def decode_graph(model: str) -> CallGraph:
    workload = Workload(prompt_tokens=TRACED_PROMPT)
    if model == DEEPSEEK_OCR:
        targets = MODELS.get(DEEPSEEK_OCR)().targets(DeepSeekOcrWorkload(mode="tiny", prompt_tokens=TRACED_PROMPT))
    else:
        targets = FOLDERS.get("huggingface")(CONFIGS / model, False).targets(workload)
    return TRACERS.get("weightless")().trace(next(target for target in targets if target.phase == "decode"))


READERS: dict[str, Callable[[Path], Iterator[MeasuredRun]]] = {
    "trtllm_overview.json": read_overview,
    "vllm_ground_truth.json": read_vllm_latencies,
    "nim.json": read_nim,
    "deepseek_r1_16xh100.json": read_two_nodes,
}
RULES: tuple[Callable[..., Any], ...] = (
    *ROW_RULES,
    *TABLE_RULES,
    lengths_not_recorded,
    smallest_stored_form,
    *EVALUATION_RULES,
)
# Those that a figure cannot do without: what they fill in is not recorded at all.
NEEDED_RULES = frozenset({"lengths_not_recorded", "batch_that_fits", "repeated_measurement"})
BATCH_NOT_KNOWN = frozenset({"workers_not_recorded", "lengths_not_recorded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run and its bounds."""

    run: MeasuredRun
    floors: Floors

    def ratios(self) -> dict[str, float]:
        """Measured over bound, by definition; below 1 a run would have beaten it."""
        run, least = self.run, self.floors
        token_s = None if run.tokens_per_s_per_gpu is None else 1 / run.tokens_per_s_per_gpu
        pairs = {
            "strict: TPOT": (run.tpot_s, least.tpot_s),
            "strict: TTFT": (run.ttft_s, least.ttft_s),
            "strict: output at full load": (token_s, least.token_s),
            "strict: FLOPs of a cycle": (run.e2e_s, least.cycle_s),
            "expected: TTFT + output x TPOT": (run.e2e_s, least.e2e_s),
            "expected: output at full load": (token_s, least.expected_token_s),
        }
        return {name: measured / bound for name, (measured, bound) in pairs.items() if measured and bound}

    @property
    def to_win(self) -> float | None:
        """By how much a request could still be faster; None where the batch is not known, or the run counted before."""
        run = self.run
        is_split = run.is_disaggregated or run.is_whole_system
        if run.is_repeat or is_split or BATCH_NOT_KNOWN & set(run.touched):
            return None
        return self.ratios().get("expected: TTFT + output x TPOT")


def read_all(without: str | None = None) -> tuple[list[MeasuredRun], dict[str, str]]:
    """Every run of every file, and of `published.json` the records that no bound can be held to, with the reason."""
    runs = read_silicon(SERVING / "silicon_sample.csv", without)
    for name, reader in READERS.items():
        runs.extend(reader(SERVING / name))
    published, unusable = read_published(FACTS / "published.json")
    return [*runs, *published], unusable


def check(run: MeasuredRun, without: str | None = None) -> Checked:
    """The run next to what its model's own code says it needs."""
    is_smallest = without != smallest_stored_form.__name__
    device, needs = find_device(run.device), traced_needs(run.model, run.precision, is_smallest=is_smallest)
    fitting = sequences_that_fit(run, needs, needs.held_bytes(run.mean_context), device)
    return Checked(run=run, floors=floors(run, needs, device, fitting, without, plan_links(run)))


def violations_without(rule: str) -> dict[str, int]:
    """How many runs would beat a bound, under either kind of definition, if this rule were not applied."""
    checked = [check(run, rule) for run in read_all(rule)[0]]
    beaten = [{name for name, ratio in each.ratios().items() if ratio < 1} for each in checked]
    return {
        kind: sum(any(name.startswith(kind) for name in names) for names in beaten) for kind in ("strict", "expected")
    }


def summary(checked: Sequence[Checked], unusable: dict[str, str]) -> dict[str, Any]:
    """All that the page says."""
    to_win = [(each.run, ratio) for each in checked if (ratio := each.to_win) is not None]
    return {
        "checked": len(checked),
        "not_checked": dict(Counter(unusable.values())),
        "definitions": _grouped(
            ("definition", "source"),
            (((name, each.run.source), ratio) for each in checked for name, ratio in each.ratios().items()),
        ),
        "rules": list(_rules(checked)),
        "to_win": _spread([ratio for _, ratio in to_win]),
        "groups": _grouped(
            ("model", "device", "engine"), (((run.model, run.device, run.engine), ratio) for run, ratio in to_win)
        ),
        "closest": list(_closest(checked)),
        "plans": list(_plans(checked)),
    }


def _grouped(names: Sequence[str], ratios: Iterable[tuple[tuple[str, ...], float]]) -> list[dict[str, Any]]:
    """The spread of each group of ratios, with the names of what it is a group of."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for key, ratio in ratios:
        groups.setdefault(key, []).append(ratio)
    return [{**dict(zip(names, key, strict=True)), **_spread(values)} for key, values in sorted(groups.items())]


def _rules(checked: Sequence[Checked]) -> Iterator[dict[str, Any]]:
    touched = Counter(rule for each in checked for rule in (*each.run.touched, *each.floors.touched))
    touched[smallest_stored_form.__name__] = sum(each.run.precision != "bf16" for each in checked)
    for rule in RULES:
        sentence = (rule.__doc__ or "").strip().splitlines()[0]
        yield {"rule": rule.__name__, "sentence": sentence, "touched": touched[rule.__name__]}


def _closest(checked: Sequence[Checked], count: int = 8) -> Iterator[dict[str, Any]]:
    """The runs that come nearest to a bound, each by its nearest definition."""
    nearest = [(*min((ratio, name) for name, ratio in each.ratios().items()), each.run) for each in checked]
    for ratio, definition, run in sorted(nearest, key=lambda ranked: ranked[0])[:count]:
        yield {"ratio": round(ratio, 3), "definition": definition, "run": run.name, "source": run.source}


def _plans(checked: Sequence[Checked]) -> Iterator[dict[str, Any]]:
    """Runs on several GPUs by model, system and plan: the tightest of them, and the largest share of communication."""
    groups: dict[tuple[str, str, str], list[Checked]] = {}
    for each in checked:
        if each.run.decode_gpus > 1:
            plan = each.run.decode_plan.describe(each.run.decode_gpus)
            groups.setdefault((each.run.model, each.run.device, plan), []).append(each)
    for (model, device, plan), members in sorted(groups.items()):
        ratio, definition = min((ratio, name) for each in members for name, ratio in each.ratios().items())
        yield {
            "model": model,
            "device": device,
            "plan": plan,
            "runs": len(members),
            "lowest": round(ratio, 3),
            "definition": definition,
            "step_links": _largest_share((each.floors.step_links_s, each.floors.tpot_s) for each in members),
            "prompt_links": _largest_share((each.floors.prompt_links_s, each.floors.ttft_s) for each in members),
        }


def _largest_share(parts: Iterable[tuple[float, float | None]]) -> float:
    return round(max(links_s / bound_s if bound_s else 0.0 for links_s, bound_s in parts), 4)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """How many, how many below 1, and where they lie."""
    if len(values) == 1:
        tenth = middle = ninetieth = values[0]
    else:
        tenths = quantiles(values, n=10, method="inclusive")
        tenth, middle, ninetieth = tenths[0], tenths[4], tenths[8]
    return {
        "runs": len(values),
        "violations": sum(value < 1 for value in values),
        "lowest": round(min(values), 3),
        "p10": round(tenth, 2),
        "median": round(middle, 2),
        "p90": round(ninetieth, 2),
    }


# ---- traced needs next to formulas from the configuration

STEPS = ((1, 1025), (8, 1025), (32, 8193), (512, 5000))  # batch, context
PROMPT = 9000  # beyond every window and chunk


def models() -> list[str]:
    """Every model that a measured run names."""
    return sorted([DEEPSEEK_OCR, *(folder.name for folder in CONFIGS.iterdir() if folder.is_dir())])


def formulas(model: str) -> ClosedForm:
    """The closed form of a model."""
    return closed_form(FACTS / "deepseek_ocr" if model == DEEPSEEK_OCR else CONFIGS / model)


def agreement(model: str) -> dict[str, Any]:
    """Traced over formula: active parameters, and of several steps and a prompt the ratio furthest from 1."""
    traced, closed = traced_needs(model), formulas(model)
    bytes_ratios, flops_ratios = [], []
    for batch, context in STEPS:
        step, other = traced.step(batch=batch, context=context), closed.step(batch=batch, context=context)
        bytes_ratios.append((step.bytes or 0) / other.bytes)
        flops_ratios.append(step.flops / other.flops)
    prompt, other = traced.prefill(batch=1, prompt=PROMPT), closed.prefill(batch=1, prompt=PROMPT)
    return {
        "model": model,
        "active_matrix_parameters": closed.active_matrix_parameters,
        "active": traced.active_matrix_parameters / closed.active_matrix_parameters,
        "step_bytes": max(bytes_ratios, key=lambda ratio: abs(ratio - 1)),
        "step_flops": max(flops_ratios, key=lambda ratio: abs(ratio - 1)),
        "prefill_bytes": (prompt.bytes or 0) / other.bytes,
        "prefill_flops": prompt.flops / other.flops,
    }
