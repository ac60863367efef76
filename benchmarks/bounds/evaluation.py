"""Every measured run beside its bounds, and what came of it as plain figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.bounds import serving_readers
from benchmarks.bounds.floors import EVALUATION_RULES, Floors, floors, sequences_that_fit
from benchmarks.bounds.measured_run import MeasuredRun
from benchmarks.bounds.plan_links import plan_links
from benchmarks.bounds.published_reader import read_published
from benchmarks.bounds.silicon_reader import read_silicon
from benchmarks.bounds.silicon_rules import ROW_RULES, TABLE_RULES
from benchmarks.bounds.traced_models import smallest_stored_form, traced_needs
from llm_perf_opt.core.hardware import find_device

FACTS = Path(__file__).parents[2] / "tests" / "facts"
SERVING = FACTS / "serving"
READERS: dict[str, Callable[[Path], Iterator[MeasuredRun]]] = {
    "trtllm_overview.json": serving_readers.read_overview,
    "vllm_ground_truth.json": serving_readers.read_vllm_latencies,
    "nim.json": serving_readers.read_nim,
    "deepseek_r1_16xh100.json": serving_readers.read_two_nodes,
}
RULES: tuple[Callable[..., Any], ...] = (
    *ROW_RULES,
    *TABLE_RULES,
    serving_readers.lengths_not_recorded,
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
    """The run beside what its model's own code says it needs."""
    is_smallest = without != smallest_stored_form.__name__
    device, needs = find_device(run.device), traced_needs(run.model, run.precision, is_smallest=is_smallest)
    held = traced_needs(run.model, run.precision, is_smallest=is_smallest).held_bytes(run.mean_context)
    fitting = sequences_that_fit(run, needs, held, device)
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
    return {
        "checked": len(checked),
        "not_checked": dict(Counter(unusable.values())),
        "definitions": list(_definitions(checked)),
        "rules": list(_rules(checked)),
        "to_win": _spread([ratio for each in checked if (ratio := each.to_win) is not None]),
        "groups": list(_groups(checked)),
        "closest": list(_closest(checked)),
        "plans": list(_plans(checked)),
    }


def _definitions(checked: Sequence[Checked]) -> Iterator[dict[str, Any]]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for each in checked:
        for definition, ratio in each.ratios().items():
            ratios.setdefault((definition, each.run.source), []).append(ratio)
    for (definition, source), values in sorted(ratios.items()):
        yield {"definition": definition, "source": source, **_spread(values)}


def _rules(checked: Sequence[Checked]) -> Iterator[dict[str, Any]]:
    touched = Counter(rule for each in checked for rule in (*each.run.touched, *each.floors.touched))
    touched[smallest_stored_form.__name__] = sum(each.run.precision != "bf16" for each in checked)
    for rule in RULES:
        sentence = (rule.__doc__ or "").strip().splitlines()[0]
        yield {"rule": rule.__name__, "sentence": sentence, "touched": touched[rule.__name__]}


def _groups(checked: Sequence[Checked]) -> Iterator[dict[str, Any]]:
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for each in checked:
        if (ratio := each.to_win) is not None:
            ratios.setdefault((each.run.model, each.run.device, each.run.engine), []).append(ratio)
    for (model, device, engine), values in sorted(ratios.items()):
        yield {"model": model, "device": device, "engine": engine, **_spread(values)}


def _closest(checked: Sequence[Checked], count: int = 8) -> Iterator[dict[str, Any]]:
    """The runs that come nearest to a bound, each by its nearest definition."""
    nearest = [(*min((ratio, name) for name, ratio in each.ratios().items()), each.run) for each in checked]
    for ratio, definition, run in sorted(nearest, key=lambda found: found[0])[:count]:
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
            "step_links": round(max(_share(each.floors.step_links_s, each.floors.tpot_s) for each in members), 4),
            "prompt_links": round(max(_share(each.floors.prompt_links_s, each.floors.ttft_s) for each in members), 4),
        }


def _share(links_s: float, bound_s: float | None) -> float:
    return links_s / bound_s if bound_s else 0.0


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
