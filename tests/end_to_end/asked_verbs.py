"""Questions about models of the catalogue, and what each verb prints when it is asked one of them.

What a verb prints is its report as JSON. A figure is known by its phase and by the key it is printed under; a study has
columns in place of keys, and `plan` puts the phase into them, so both are told here by the key of the other verbs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llm_perf_opt as lpo
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.formats.json_format import JsonReport
from llm_perf_opt.sweeps.studies.study import read_plan
from tests.end_to_end.asked_models import MORE_MODELS, RUNS

SMALLEST = "openai-community/gpt2"
DEVICES = ("l4", "l40s", "a100-sxm-80g", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "rtx-4090")
ONE, SPREAD = "one device", ("tp2", "dp2", "pp2", "fsdp2")
DEVICES_OF_A_RUN, MORE_DEVICES, PLANS_OF_A_RUN = 4, 6, 1
SEED = 410  # every plan at least twice, one that a model refuses, and key heads fewer than ranks
PHASES = ("prefill", "decode")
MOST = "most_of_all_ranks_"
OVER_ALL = "over_all_stages_"

Figure = str | int | float | bool | None
Told = dict[tuple[str, str], Figure]  # phase and printed key -> figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is traced once for all devices and each plan: `global_batch` are the sequences of all ranks."""

    model: str
    global_batch: int
    context: int
    weights: str | None
    cache: str | None
    execution: str
    devices: tuple[str, ...]  # of its questions
    plans: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A run on a device, or spread over two of them."""

    run: Run
    device: str
    plan: str

    def __str__(self) -> str:
        run = self.run
        formats = "-".join(one or "stored" for one in (run.weights, run.cache))
        model = run.model.partition("/")[2]
        return f"{model}-{run.global_batch}x{run.context}-{formats}-{run.execution}-{self.device}-{self.plan}".replace(
            " ", "-"
        )


def questions() -> list[Question]:
    """The same at every run: of each model some runs, each on several devices and spread by a plan."""
    drawn = random.Random(SEED)
    return _of_runs([_drawn_run(drawn, model) for model, count in RUNS.items() for _ in range(count)])


def more_questions() -> list[Question]:
    """Of more and larger models, which take minutes."""
    drawn = random.Random(SEED)
    return _of_runs([_drawn_run(drawn, model, MORE_DEVICES) for model in MORE_MODELS])


def _of_runs(runs: Sequence[Run]) -> list[Question]:
    return [
        question
        for run in runs
        for question in (
            *(Question(run=run, device=device, plan=ONE) for device in run.devices),
            *(Question(run=run, device=run.devices[0], plan=plan) for plan in run.plans),
        )
    ]


def _drawn_run(drawn: random.Random, model: str, devices: int = DEVICES_OF_A_RUN) -> Run:
    return Run(
        model=model,
        global_batch=2 * drawn.randint(1, 12),
        context=drawn.randint(16, 1000),
        weights=drawn.choice((None, None, "fp8", "int4-g128")),
        cache=drawn.choice((None, None, "fp8")),
        execution=drawn.choice(("eager", "fused")),
        devices=tuple(drawn.sample(DEVICES, devices)),
        plans=tuple(drawn.sample(SPREAD, PLANS_OF_A_RUN)),
    )


def asked(question: Question) -> dict[str, Told | None]:
    """Verb -> what it tells; None: it refuses the plan. Only verbs that can answer are asked."""
    verbs = {"trace": trace_verb, "cost": cost_verb, "predict": predict_verb, "predict by data sheet": sheet_verb}
    verbs |= {"study": study_verb}
    if question.plan == ONE:
        verbs |= {"sweep": sweep_verb, "memory": memory_verb}
        if question.device == question.run.devices[0]:
            verbs |= {"compare": compare_verb}
    if question == _reported():
        verbs |= {"report": report_verb}
    return {name: _answered(verb, question) for name, verb in verbs.items()}


@cache
def _reported() -> Question:
    """The question that a whole report is asked, which takes seconds: the first of the smallest model."""
    return next(one for one in questions() if one.run.model == SMALLEST)


def _answered(verb: Callable[[Question], Told | None], question: Question) -> Told | None:
    try:
        return verb(question)
    except UsageError as refusal:
        assert "cannot" in refusal.what or "no tp plan" in refusal.what, refusal
        return None


@cache
def traced(run: Run, plan: str) -> Trace:
    """The run itself, by the library."""
    spread = read_plan(plan)
    return lpo.trace(
        run.model,
        device=run.devices[0] if plan == ONE else f"2x {run.devices[0]}",
        batch=run.global_batch // (spread.dp * spread.fsdp),
        prompt_tokens=run.context,
        weights=run.weights,
        cache=run.cache,
        copies_key_heads=run.execution == "fused",  # as `predict` has it
        **spread.sizes(),
    )


def _of(question: Question) -> Trace:
    return traced(question.run, question.plan)


def _hardware(question: Question) -> str:
    return question.device if question.plan == ONE else f"2x {question.device}"


def printed(answer: Answer) -> dict[str, Any]:
    """The report of an answer, as `--json` prints it."""
    found: dict[str, Any] = json.loads(JsonReport().render(answer.report()))
    return found


def _rows(document: Mapping[str, Any], title: str) -> Iterator[Mapping[str, Figure]]:
    """Of all tables whose title begins so, those of chapters included."""
    for table in document["tables"]:
        if table["title"].startswith(title):
            yield from table["rows"]
    for chapter in document["chapters"]:
        yield from _rows(chapter, title)


def _told(document: Mapping[str, Any], title: str, label: str = "stage") -> Told:
    """Figures of the rows that are a phase; of a model of text every stage is one."""
    return {
        (str(row[label]).removesuffix(" of one token"), key): figure
        for row in _rows(document, title)
        if str(row[label]).removesuffix(" of one token") in PHASES
        for key, figure in row.items()
        if key != label
    }


def trace_verb(question: Question) -> Told:
    """`trace`: cost by stage, what is necessary, and the ranks of a plan."""
    document = _stages(question.run, question.plan)
    needs = {(phase, _NECESSARY.get(key, key)): one for (phase, key), one in _told(document, "As written").items()}
    return {**_told(document, "Cost by stage"), **needs, **_first_rank(document)}


@cache
def _stages(run: Run, plan: str) -> dict[str, Any]:
    return printed(traced(run, plan).stages())


_NECESSARY = {"flops_as_written": "flops", "bytes_moved_as_written": "bytes_moved"}


def _first_rank(document: Mapping[str, Any]) -> Told:
    """The first row of each phase is the rank that the other tables are of; where kinds differ, the most of all too."""
    found: Told = {}
    for row in _rows(document, "Ranks"):
        for key, figure in row.items():
            found.setdefault((str(row["phase"]), key), figure)
    rows = list(_rows(document, "Ranks"))
    if len({row["rank"] for row in rows}) > 1:
        for phase, key in list(found):
            figures = [row[key] for row in rows if row["phase"] == phase]
            if all(isinstance(figure, int) for figure in figures):
                found[phase, f"{MOST}{key}"] = max(figures)  # type: ignore[type-var]
    return {name: figure for name, figure in found.items() if name[1] not in ("phase", "rank", "ranks_alike")}


def cost_verb(question: Question) -> Told:
    """`cost`, by the count of the trace."""
    return _costs(question.run, question.plan)


@cache
def _costs(run: Run, plan: str) -> Told:
    return _told(printed(traced(run, plan).cost(["counted"])), "Stages")


def predict_verb(question: Question) -> Told:
    """`predict`, by the source of times that it takes by itself."""
    return _timed(printed(_of(question).predict(_hardware(question), execution=question.run.execution)))


def sheet_verb(question: Question) -> Told:
    """`predict --rates data-sheet`, but for what the source of times decides and has one name for all sources."""
    asked_so = {"execution": question.run.execution, "rates": "data-sheet"}
    told = _timed(printed(_of(question).predict(_hardware(question), **asked_so)))
    return {name: figure for name, figure in told.items() if name[1] not in _BY_SOURCE}


_BY_SOURCE = ("device_low_seconds", "device_high_seconds", "engine_kernels", "bound_by")


def _timed(document: Mapping[str, Any]) -> Told:
    serving = {("", key): figure for row in _rows(document, "Does it serve") for key, figure in row.items()}
    bounds = {(phase, _READ.get(key, key)): one for (phase, key), one in _told(document, "Where the bound").items()}
    return {
        **_told(document, "Predicted time by stage"),
        **bounds,
        **_told(document, "Does this forward fit", "phase"),
        **serving,
        **_first_rank(document),
    }


_READ = {"bytes_read_once": "must_be_read_bytes"}


def memory_verb(question: Question) -> Told:
    """`Trace.memory`: what the device must hold."""
    document = printed(_of(question).memory(_hardware(question)))
    serving = {("", key): figure for row in _rows(document, "Does it serve") for key, figure in row.items()}
    return {**_told(document, "Does this forward fit", "phase"), **serving}


def report_verb(question: Question) -> Told:
    """`report`: everything on one page."""
    document = printed(_of(question).report(device=question.device, execution=question.run.execution))
    return {
        **_told(document, "Cost by stage"),
        **_told(document, "By device", "phase"),
        **_timed(document),
    }


def compare_verb(question: Question) -> Told:
    """`compare` of a run with itself: both sides."""
    trace = _of(question)
    document = printed(
        trace.compare(trace, device=question.device, execution=question.run.execution, rates="data-sheet")
    )
    told = {**_told(document, "Stages", "stage"), **_told(document, "Times on", "stage")}
    sides = {"a": {}, "b": {}}  # type: dict[str, Told]
    for (phase, key), figure in told.items():
        for side, found in sides.items():
            if f"_{side}_" in f"{key}_":
                found[phase, f"{key}_".replace(f"_{side}_", "_", 1).removesuffix("_")] = figure
    assert sides["a"] == sides["b"]
    return {(phase, _OF_SHEET.get(key, key)): figure for (phase, key), figure in sides["a"].items()}


_OF_SHEET = {"high_seconds": "data_sheet_high_seconds", "low_seconds": "data_sheet_low_seconds"}


def sweep_verb(question: Question) -> Told:
    """`sweep` at one point."""
    run = question.run
    answer = _function(run).sweep(
        batch=run.global_batch, context=run.context, gpus=question.device, execution=run.execution
    )
    (largest,) = answer.largest_batches
    return {**_told(printed(answer), "Every point", "phase"), ("", "largest_batch"): largest.served}


@cache
def _function(run: Run) -> Any:
    return traced(run, ONE).over(batch=(run.global_batch, run.global_batch), context=(run.context, run.context))


def _of_plan(question: Question, key: str) -> str:
    """Figures of a plan with several kinds of rank are not those of the first, which `trace` shows."""
    if len(_of(question).ranks) == 1:
        return key
    return f"{OVER_ALL}{key}" if key.endswith("_seconds") else f"{MOST}{key}"


def study_verb(question: Question) -> Told | None:
    """`study`: the row of the point, by the names of the other verbs."""
    (row,) = (row for row in _study(question.run) if (row["plan"], row["device"]) == (question.plan, question.device))
    if row["status"] != "ok":
        return None
    is_measured = row["decode_expected_s"] is not None
    names = {column: key if is_measured else _OF_SHEET.get(key, key) for column, key in _STUDY_KEYS.items()}
    return {
        (phase, _of_plan(question, key)): row[f"{phase}_{column}"]
        for phase in PHASES
        for column, key in names.items()
        if column != "expected_s" or is_measured
    }


_STUDY_KEYS = {
    "flops": "flops",
    "vector_flops": "vector_flops",
    "bytes_moved": "bytes_moved",
    "launches": "launches",
    "weight_bytes": "weights_bytes",
    "peak_bytes": "peak_bytes",
    "needed_bytes": "needed_in_all_bytes",
    "necessary_flops": "necessary_flops",
    "necessary_bytes": "must_be_read_bytes",
    "lower_bound_s": "lower_bound_seconds",
    "low_s": "low_seconds",
    "expected_s": "expected_seconds",
    "high_s": "high_seconds",
}


@cache
def _study(run: Run) -> Sequence[Mapping[str, Any]]:
    """All points of a run."""
    document = {
        "name": "asked",
        "models": [run.model],
        "workload": {"users": run.global_batch, "input": run.context},
        "deployments": {
            "plan": [ONE, *run.plans],
            "weights": run.weights or "checkpoint",
            "cache": run.cache or "checkpoint",
        },
        "gpus": list(run.devices),
        "execution": run.execution,
        "rates": None,
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(json.dumps(document))  # JSON is YAML
        lpo.study(file, out=Path(folder) / "results", workers=1)
        return lpo.ask(Path(folder) / "results", sql="select * from points").to_arrow().to_pylist()
