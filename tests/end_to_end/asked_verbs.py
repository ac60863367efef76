"""What each verb prints when it is asked a question about a model of the catalogue.

What a verb prints is its report as JSON. A figure is known by its phase and by the key it is printed under; a study has
columns in place of keys, and `serve` rows, so both are told here by the key of the other verbs. A request of two
tokens is a prompt and one step behind it, which is what a trace runs: `serve` is asked for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.testing import CliRunner

import llm_perf_opt as lpo
from llm_perf_opt.api.serve import ServeAnswer
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.cli.app import app
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.fit import ServingFit
from llm_perf_opt.sweeps.studies.study import read_plan
from tests.end_to_end.asked_bills import (
    OUTPUT,
    advised,
    by_hand,
    in_nanoseconds,
    of_an_engine,
    prices,
    served_bill,
    studied_bill,
)
from tests.end_to_end.asked_questions import (
    MOST,
    ONE,
    OVER_ALL,
    PHASES,
    SMALLEST,
    Question,
    Run,
    Told,
    questions,
)
from tests.end_to_end.printed_answers import first_rank, printed, rows_of, told_of


def asked(question: Question) -> dict[str, Told | None]:
    """Verb -> what it tells; None: it refuses the plan. Only verbs that can answer are asked."""
    verbs = {"trace": trace_verb, "cost": cost_verb, "trace --device": timed_verb}
    verbs |= {"trace --device --rates data-sheet": sheet_verb, "study": study_verb}
    if question.plan in SERVED:
        verbs |= {"serve": serve_verb}
    if question.plan == ONE:
        verbs |= {"sweep": sweep_verb, "memory": memory_verb}
        if question.device == question.run.devices[0]:
            verbs |= {"compare": compare_verb}
    if question.device == question.run.devices[0]:
        verbs |= {"advise": advise_verb}
        if question.run.execution == "eager":
            verbs |= {"trace --device --execution fused": engine_verb}
    if question == _reported():
        verbs |= {"report": report_verb, "the command line": command_verb}
    return {name: _answered(verb, question) for name, verb in verbs.items()}


@cache
def _reported() -> Question:
    """The question that a report and the command line are asked, which takes seconds: the first of the smallest."""
    return next(one for one in questions() if one.run.model == SMALLEST and one.run.execution == "fused")


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
        copies_key_heads=run.execution == "fused",  # as `trace --device` has it
        **spread.sizes(),
    )


def _of(question: Question) -> Trace:
    return traced(question.run, question.plan)


def _hardware(question: Question) -> str:
    return question.device if question.plan == ONE else f"2x {question.device}"


def trace_verb(question: Question) -> Told:
    """`trace`: cost by stage, what is necessary, and the ranks of a plan."""
    document = _stages(question.run, question.plan)
    needs = {(phase, _NECESSARY.get(key, key)): one for (phase, key), one in told_of(document, "As written").items()}
    return {**told_of(document, "Cost by stage"), **needs, **first_rank(document)}


@cache
def _stages(run: Run, plan: str) -> dict[str, Any]:
    return printed(traced(run, plan).stages())


_NECESSARY = {"flops_as_written": "flops", "bytes_moved_as_written": "bytes_moved"}


def cost_verb(question: Question) -> Told:
    """`cost`, by the count of the trace."""
    return _costs(question.run, question.plan)


@cache
def _costs(run: Run, plan: str) -> Told:
    return told_of(printed(traced(run, plan).cost(["counted"])), "Stages")


def timed_verb(question: Question) -> Told:
    """`trace --device`, by the source of times that it takes by itself; `serving` is read from the library."""
    answer = _of(question).predict(_hardware(question), execution=question.run.execution)
    held = {} if answer.serving is None else _held(answer.serving, question.run.global_batch)
    timed = _timed(printed(answer))
    if len(_of(question).ranks) > 1:  # times are of the first, and the price is of all
        return {**timed, **held}
    return {**timed, **held, **in_nanoseconds(timed), **by_hand(question, timed)}


def advise_verb(question: Question) -> Told:
    """`advise` for an answer of two tokens: a prompt and one step."""
    answer = _of(question).advise(_hardware(question), execution=question.run.execution, output=OUTPUT)
    return {} if len(_of(question).ranks) > 1 else advised(answer, printed(answer))


def engine_verb(question: Question) -> Told:
    """`trace --device --execution fused` of code that runs as written: a prompt and a step by an engine."""
    answer = _of(question).predict(_hardware(question), execution="fused")
    return {} if len(_of(question).ranks) > 1 else of_an_engine(_timed(printed(answer)))


def _held(fit: ServingFit, batch: int) -> Told:
    """The account of a rank's memory; the longest context is that of the batch."""
    names = ("weights_bytes", "working_bytes", "outside_torch_bytes", "room_bytes", "cache_tokens")
    longest = {("", "largest_context"): fit.largest_context} if batch == 1 else {}
    return {**{("", name): getattr(fit, name) for name in names}, **longest}


SERVED = (ONE, "tp2", "dp2")  # in place of `pp2` a server fills its stages with several batches


def serve_verb(question: Question) -> Told:
    """`serve --output 2 --engine-only`: its steps where all users are in one, and the memory of a replica."""
    run, spread = question.run, read_plan(question.plan)
    answer = lpo.serve(
        _served(run),
        question.device if question.plan == ONE else f"2x {question.device}",
        input=run.context,
        output=OUTPUT,
        users=run.global_batch,
        engine_only=True,
        max_gpus=1,
        tp=spread.tp,
        ep=1,
        attention_dp=1,
    )
    if answer.best is None:  # no room for the weights, or for all users at once
        return {}
    (fleet,) = answer.fleets
    told = _held(fleet.candidate.replica.fit, run.global_batch)
    is_timed = run.execution == "fused" and fleet.is_measured
    if not is_timed:
        return told
    return {**told, **_steps(answer, run.global_batch // spread.dp), **served_bill(fleet)}


def _steps(answer: ServeAnswer, batch: int) -> Told:
    """As printed; of a user alone TTFT and TPOT are these very steps."""
    document = printed(answer)
    rows = {
        (row["time"], row["of_requests"]): row["expected_seconds"] for row in rows_of(document, "Times of requests")
    }
    sequences = f"{batch} sequence{'s' if batch > 1 else ''}"
    told = {("decode", "expected_seconds"): rows.get(("decode step", sequences))}
    if answer.demand.users == 1:
        assert rows["TPOT", "median"] == told["decode", "expected_seconds"]
        assert rows["TTFT", "median"] == rows["prefill of one prompt", "alone"]
        told["prefill", "expected_seconds"] = rows["TTFT", "median"]
    return {name: figure for name, figure in told.items() if figure is not None}


@cache
def _served(run: Run) -> Trace:
    """One request, as the server traces it itself."""
    return lpo.trace(run.model, weights=run.weights, cache=run.cache)


def command_verb(question: Question) -> Told:
    """`trace --device` and `serve` as commands."""
    run = question.run
    formats = [word for name in ("weights", "cache") if (kind := getattr(run, name)) for word in (f"--{name}", kind)]
    sizes = ["--prompt-tokens", run.context, "--batch", run.global_batch, "--execution", run.execution]
    timed = _command("trace", run.model, "--device", question.device, *sizes, *formats)
    asked_so = ["--input", run.context, "--output", OUTPUT, "--users", run.global_batch, "--engine-only", "--tp", 1]
    server = _command("serve", run.model, "--gpus", question.device, *asked_so, "--max-gpus", 1, *formats)
    (plan,) = rows_of(server, "Every plan that fits")
    return {**_timed(timed), ("", "cache_tokens"): plan["cache_tokens"]}


def _command(*words: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def sheet_verb(question: Question) -> Told:
    """`trace --device --rates data-sheet`, but for what a source of times decides under one name for all."""
    asked_so = {"execution": question.run.execution, "rates": "data-sheet"}
    told = _timed(printed(_of(question).predict(_hardware(question), **asked_so)))
    return {name: figure for name, figure in told.items() if name[1] not in _BY_SOURCE}


_BY_SOURCE = ("device_low_seconds", "device_high_seconds", "engine_kernels", "bound_by")


def _timed(document: Mapping[str, Any]) -> Told:
    serving = {("", key): figure for row in rows_of(document, "Does it serve") for key, figure in row.items()}
    bounds = {
        (phase, _READ.get(key, key)): one for (phase, key), one in told_of(document, "Where the lower bound").items()
    }
    return {
        **told_of(document, "Predicted time by stage"),
        **bounds,
        **told_of(document, "Does this forward fit", "phase"),
        **serving,
        **first_rank(document),
    }


_READ = {"bytes_read_once": "must_be_read_bytes"}


def memory_verb(question: Question) -> Told:
    """`Trace.memory`: what the device must hold."""
    document = printed(_of(question).memory(_hardware(question)))
    serving = {("", key): figure for row in rows_of(document, "Does it serve") for key, figure in row.items()}
    return {**told_of(document, "Does this forward fit", "phase"), **serving}


def report_verb(question: Question) -> Told:
    """`report`: everything on one page."""
    document = printed(_of(question).report(device=question.device, execution=question.run.execution))
    return {
        **told_of(document, "Cost by stage"),
        **told_of(document, "By device", "phase"),
        **_timed(document),
    }


def compare_verb(question: Question) -> Told:
    """`compare` of a run with itself: both sides."""
    trace = _of(question)
    document = printed(
        trace.compare(trace, device=question.device, execution=question.run.execution, rates="data-sheet")
    )
    told = {**told_of(document, "Stages", "stage"), **told_of(document, "Times on", "stage")}
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
    return {**told_of(printed(answer), "Every point", "phase"), ("", "largest_batch"): largest.served}


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
    } | (studied_bill(row) if len(_of(question).ranks) == 1 else {})


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
        "prices": prices(run.devices),
        "execution": run.execution,
        "rates": None,
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(json.dumps(document))  # JSON is YAML
        lpo.study(file, out=Path(folder) / "results", workers=1)
        return lpo.ask(Path(folder) / "results", sql="select * from points").to_arrow().to_pylist()
