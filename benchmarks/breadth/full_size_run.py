"""One model type at its default full-size configuration: built weightless, given inputs, run, measured."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from llm_perf_opt.models.huggingface.folder import class_names, load_class
from llm_perf_opt.models.huggingface.inputs import (
    Found,
    NoInputs,
    Plan,
    Subject,
    accepted_modalities,
    find_inputs,
    make_inputs,
)
from llm_perf_opt.models.huggingface.phases import prefill
from llm_perf_opt.weightless import Engine

from .fork_pool import Record, resident_bytes
from .full_size_configs import full_size_config

MESSAGE_LENGTH = 400
TRACEBACK_LENGTH = 4000


@dataclass(slots=True)
class Progress:
    """How far the run came; becomes the record whatever happens."""

    stage: str = "config"
    record: Record = field(default_factory=dict)


def run_model_type(model_type: str) -> Record:
    """The record of one model type: status `ok`, or `failed` with the stage, the message and the traceback."""
    progress = Progress()
    try:
        _run(model_type, progress)
        progress.record["status"] = "ok"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a sweep records whatever a model raises; nothing is swallowed
        progress.record |= {
            "status": "failed",
            "stage": progress.stage,
            "message": _message(error),
            "traceback": traceback.format_exc()[-TRACEBACK_LENGTH:],
        }
        if isinstance(error, NoInputs):
            progress.record["refusals"] = _refusals(error.refusals)
    progress.record["rss_bytes"] = resident_bytes()
    return progress.record


def _run(model_type: str, progress: Progress) -> None:
    record = progress.record
    chosen = full_size_config(model_type)
    if chosen.why:
        record |= {"why_changed": chosen.why, "changes": chosen.changes}
    if chosen.alignments:
        record["alignments"] = list(chosen.alignments)
    progress.stage = "class"
    record["class"] = chosen.class_name or class_names(model_type)[0]
    model_class = load_class(model_type, str(record["class"]))
    progress.stage = "build"
    engine = Engine(device="cpu")
    with _timed(record, "build_s"), engine:
        model = engine.adopt(model_class(chosen.config).eval())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    record["parameters"] = parameters

    def attempt(plan: Plan, entry: str) -> None:
        def once() -> None:  # the engine may revise an answer and run again: only the last run counts
            before = engine.ops_dispatched
            record["calls"] = _count_calls(lambda: prefill(model, make_inputs(plan, torch.float32), entry))
            record["ops"] = engine.ops_dispatched - before

        engine.run(once)

    progress.stage = "inputs"
    subject = Subject.of(model_class, chosen.config)
    record["accepts"] = list(accepted_modalities(subject))
    with _timed(record, "search_s"):
        found = find_inputs(subject, attempt)
    record |= _described(found)
    progress.stage = "forward"
    with _timed(record, "forward_s"):
        engine.run(lambda: prefill(model, make_inputs(found.plan, torch.float32), found.entry))


def _described(found: Found) -> Record:
    described: Record = {
        "modalities": list(found.modalities),
        "entry": found.entry,
        "inputs": {name: str(list(getattr(leaf, "shape", ())) or leaf)[:80] for name, leaf in found.plan.items()},
    }
    return described | ({"refusals": _refusals(found.refusals)} if found.refusals else {})


def _refusals(messages: tuple[str, ...]) -> list[str]:
    return [message[:MESSAGE_LENGTH] for message in dict.fromkeys(messages)]


def _message(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, NoInputs) and error.__cause__ is not None else error
    return f"{type(cause).__name__}: {cause}".strip()[:MESSAGE_LENGTH]


@contextmanager
def _timed(record: Record, name: str) -> Iterator[None]:
    started = time.process_time()
    yield
    record[name] = round(time.process_time() - started, 3)


def _count_calls(run: Callable[[], object]) -> int:
    calls = 0

    def count(module: Any, arguments: Any) -> None:
        nonlocal calls
        calls += 1

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        run()
    finally:
        hook.remove()
    return calls


def run_control(model_type: str) -> Record:
    """The inputs found weightless on a real model with random weights: how many module calls, or why it refuses."""
    chosen = full_size_config(model_type)
    model_class = load_class(model_type, chosen.class_name or class_names(model_type)[0])
    engine = Engine(device="cpu")
    with engine:
        ghost = engine.adopt(model_class(chosen.config).eval())
    subject = Subject.of(model_class, chosen.config)
    found = find_inputs(subject, lambda plan, entry: engine.run(lambda: prefill(ghost, make_inputs(plan), entry)))
    torch.manual_seed(0)
    model = model_class(chosen.config).eval()
    return {"calls": _count_calls(lambda: prefill(model, make_inputs(found.plan, torch.float32), found.entry))}
