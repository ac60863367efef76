"""Whatever the command line offers, Python does: every option of every verb is a parameter, or is about showing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

import pytest
import typer

import llm_perf_opt as lpo
from llm_perf_opt.api.tracing import load_phase
from llm_perf_opt.cli.app import app
from llm_perf_opt.core import store
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import workload_options
from llm_perf_opt.core.workload import ModelCode
from llm_perf_opt.serving.capacity.search import SearchSpace
from llm_perf_opt.serving.engine_process.make_environment import make
from llm_perf_opt.timing.kernels.added_tables import add_tables, remove_tables
from llm_perf_opt.timing.kernels.table_sets import table_sets

SHOWING = {  # option -> what Python does instead
    "format_name": "an answer is saved in the format of the suffix",
    "json_wanted": "to_dict()",
    "strict": "the figures that it looks at: unpriced_ops, unexplained, missing",
    "verbose": "repr and save() hold everything; logging",
    "open_page": "save() returns the path",
    "tables": "the variable LLM_PERF_OPT_TABLES",
    "operators": "report() holds the chapters of operators",
    "help": "help(...)",
    "max_ops": "lpo.limits(max_ops=...)",
    "max_seconds": "lpo.limits(max_seconds=...)",
    "max_memory": "lpo.limits(max_memory=...)",
}
NAMES = {  # option -> parameter of another name
    "torchlens_picture": "pictures",
    "devices": "devices_file",
    "max_weights": "max_weight_bytes",
    "check": "checks",
    "part": "parts",
    "budget": "budgets",
    "left": "self",
    "right": "other",
    "source": "path",
}
Trace, Answer = lpo.Trace, lpo.Answer
IN_PYTHON: dict[str, tuple[Callable[..., Any], ...]] = {
    "trace": (lpo.trace, lpo.load, Trace.predict, Trace.what_if),
    "advise": (lpo.trace, lpo.load, Trace.advise, Answer.save),
    "tables list": (table_sets,),
    "tables add": (add_tables,),
    "tables remove": (remove_tables,),
    "graph": (lpo.load, load_phase, Trace.graph, lpo.GraphAnswer.save),
    "cost": (lpo.cost, lpo.load, Trace.cost, lpo.CostAnswer.save_files),
    "report": (lpo.trace, lpo.load, Trace.stages, Trace.report, Answer.save),
    "sweep": (lpo.sweep, lpo.pages, Answer.save, lpo.SweepAnswer.save_points, lpo.SweepAnswer.save_function),
    "study": (lpo.study,),
    "ask": (lpo.ask, lpo.study_page, Answer.save),
    "serve": (
        lpo.serve,
        lpo.capacity,
        lpo.trace,
        SearchSpace,
        lpo.ServeAnswer.save_deployment,
        lpo.CapacityAnswer.save_chrome_trace,
        Answer.save,
    ),
    "train": (lpo.train, lpo.TrainAnswer.save_trainer, Answer.save),
    "engines install": (make,),
    "cache list": (store.entries,),
    "cache where": (store.store_folder,),
    "cache clear": (store.clear,),
    "join": (lpo.load, load_phase, Trace.join, Answer.save),
    "export": (lpo.export,),
    "compare": (lpo.trace, lpo.load, Trace.compare),
    "models": (lpo.known_models,),
    "doctor": (lpo.doctor,),
    "devices list": (lpo.devices,),
    "devices show": (lpo.device,),
    "devices cluster": (lpo.cluster,),
    "devices calibrate": (lpo.calibrate,),
    "devices template": (lpo.device_template,),
}
ONE_FOR_ANOTHER = {  # (verb, option) -> parameter, where a word of the command line is another one in Python
    ("tables add", "source"): "source",
    ("tables remove", "name"): "key",
    ("compare", "phase"): "phases",
    ("cost", "model"): "model",
    ("cost", "out"): "folder",
    ("graph", "out"): "path",
    ("graph", "runtime_log"): "path",
    ("report", "sources"): "path",
    ("report", "gpus"): "device",
    ("compare", "gpus"): "device",
    ("serve", "chrome_trace"): "path",
    ("ask", "out"): "path",
    ("ask", "page"): "path",
    ("serve", "price"): "prices",
    ("serve", "out"): "path",
    ("serve", "write"): "folder",
    ("train", "measured"): "measured_tokens_per_s",
    ("train", "out"): "path",
    ("train", "price"): "prices",
    ("train", "write"): "folder",
    ("engines install", "engine"): "folder",  # there is one engine, and its name is that of the package
    ("sweep", "output"): "decode_steps",
    ("sweep", "out"): "path",
    ("sweep", "csv"): "path",
    ("sweep", "save_function"): "path",
    ("trace", "what_if"): "what",
    ("report", "out"): "path",
    ("join", "out"): "path",
    ("devices show", "device"): "name",
    ("devices cluster", "cluster"): "text",
    ("devices template", "device"): "identifier",
}


def verbs() -> Iterator[tuple[str, Any]]:
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        inner: dict[str, Any] = getattr(command, "commands", {})
        if inner:
            yield from ((f"{name} {verb}", found) for verb, found in inner.items())
        elif name != "profile":  # its options are the keys of a configuration
            yield name, command


@pytest.mark.parametrize(("verb", "command"), list(verbs()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_option_has_a_parameter(verb: str, command: Any) -> None:
    callables = IN_PYTHON[verb]
    taken = {name for one in callables for name in signature(one).parameters}
    kinds = {one.kind for each in callables for one in signature(each).parameters.values()}
    workload = (
        {*workload_options(), *ParallelPlan.options(), *ModelCode.options()}
        if Parameter.VAR_KEYWORD in kinds
        else set()
    )
    options = [str(option.name) for option in command.params if option.name not in SHOWING]
    wanted = {name: ONE_FOR_ANOTHER.get((verb, name), NAMES.get(name, name)) for name in options}
    assert {name: word for name, word in wanted.items() if word not in taken | workload} == {}


def test_profile_is_in_python_too() -> None:
    assert callable(lpo.profile)
