"""Every registered plug-in imports and has what its protocol asks for, so a new one is tested by existing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core import plugins
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import (
    CALIBRATORS,
    DRAWINGS,
    EXPORT_LABS,
    FOLDER_FORMS,
    FOLDER_INPUTS,
    FOLDER_PARTS,
    FOLDER_RANKS,
    FOLDERS,
    MODELS,
    OUTSIDE_PROFILERS,
    REPORTERS,
    SOURCES,
    TRACERS,
    Registry,
)
from llm_perf_opt.core.protocols import Calibrator, KnowsClosedForms, Sight
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.workload import Workload


def method_takes(plugin: type[Any], method: str, *names: str) -> bool:
    return list(inspect.signature(getattr(plugin, method)).parameters) == ["self", *names]


@pytest.mark.parametrize("name", MODELS.names())
def test_a_model_has_a_title_and_targets(name: str) -> None:
    adapter = MODELS.get(name)
    assert adapter.title
    assert method_takes(adapter, "targets", "workload")
    assert isinstance(adapter(), adapter)


@pytest.mark.parametrize("name", FOLDERS.names())
def test_a_folder_adapter_takes_the_folder_and_the_trust(name: str) -> None:
    adapter = FOLDERS.get(name)
    assert adapter.title
    assert method_takes(adapter, "targets", "workload")
    assert method_takes(adapter, "__init__", "folder", "trust_remote_code", "name", "source")


@pytest.mark.parametrize("name", FOLDER_INPUTS.names())
def test_inputs_of_a_model_type_take_a_build_a_workload_and_a_world(name: str) -> None:
    assert list(inspect.signature(FOLDER_INPUTS.get(name)).parameters) == ["name", "build", "workload", "world"]


@pytest.mark.parametrize("name", FOLDER_RANKS.names())
def test_kinds_of_rank_of_a_model_type_begin_with_the_first(name: str) -> None:
    assert FOLDER_RANKS.get(name)(ParallelPlan(tp=2), Workload())[0] == 0
    assert FOLDER_RANKS.get(name)(ParallelPlan(tp=2, rank=1), Workload()) == (1,)


@pytest.mark.parametrize("name", TRACERS.names())
def test_a_tracer_says_what_it_sees(name: str) -> None:
    tracer = TRACERS.get(name)
    assert tracer.sees
    assert tracer.sees <= frozenset(Sight)
    assert method_takes(tracer, "trace", "target")


@pytest.mark.parametrize("name", REPORTERS.names())
def test_a_format_has_a_suffix_and_renders_an_empty_report(name: str) -> None:
    reporter = REPORTERS.get(name)
    assert reporter.suffix.startswith(".")
    assert "nothing" in reporter().render(Report(title="nothing"))


@pytest.mark.parametrize("name", DRAWINGS.names())
def test_a_drawing_has_a_suffix_and_draws_a_view_by_a_metric(name: str) -> None:
    drawing = DRAWINGS.get(name)
    assert drawing.suffix.startswith(".")
    assert method_takes(drawing, "__init__", "metric")
    assert method_takes(drawing, "render", "view")


@pytest.mark.parametrize("name", SOURCES.names())
def test_a_source_takes_an_adapter_and_a_workload(name: str) -> None:
    assert method_takes(SOURCES.get(name), "figures", "adapter", "workload")


@pytest.mark.parametrize("name", OUTSIDE_PROFILERS.names())
def test_an_outside_profiler_takes_a_program_a_folder_and_a_stage(name: str) -> None:
    assert list(inspect.signature(OUTSIDE_PROFILERS.get(name)).parameters) == ["program", "folder", "stage"]


@pytest.mark.parametrize("name", CALIBRATORS.names())
def test_a_calibrator_takes_what_its_protocol_says_with_the_same_defaults(name: str) -> None:
    asked = inspect.signature(Calibrator.__call__).parameters
    taken = inspect.signature(CALIBRATORS.get(name)).parameters
    assert {word: taken[word].default for word in asked if word != "self"} == {
        word: parameter.default for word, parameter in asked.items() if word != "self"
    }
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in taken.values())
    assert all(parameter.default is not parameter.empty for parameter in taken.values())


@pytest.mark.parametrize("name", EXPORT_LABS.names())
def test_an_export_lab_examines_a_part_of_a_target(name: str) -> None:
    assert method_takes(EXPORT_LABS.get(name), "examine", "target", "part", "options", "fresh")


@pytest.mark.parametrize("name", FOLDER_FORMS.names())
def test_folder_forms_know_closed_forms(name: str, tmp_path: Path) -> None:
    assert isinstance(FOLDER_FORMS.get(name)(tmp_path), KnowsClosedForms)


@pytest.mark.parametrize("name", FOLDER_PARTS.names())
def test_parts_of_a_model_type_have_names_of_their_own(name: str) -> None:
    parts = FOLDER_PARTS.get(name)()
    assert len({part.name for part in parts}) == len(parts) > 0
    assert {other for part in parts for other in part.instead} <= {part.name for part in parts}


def test_every_registry_is_held_to_its_protocol_here() -> None:
    registries = {name for name, value in vars(plugins).items() if isinstance(value, Registry)}
    assert registries == {
        *("MODELS", "FOLDERS", "FOLDER_INPUTS", "FOLDER_PARTS", "TRACERS", "SOURCES", "REPORTERS", "DRAWINGS"),
        *("OUTSIDE_PROFILERS", "CALIBRATORS", "EXPORT_LABS", "FOLDER_FORMS", "FOLDER_RANKS"),
    }


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        MODELS.get("deepseek-orc")
    assert caught.value.exit_code == 2
    assert "did you mean 'deepseek-ocr'?" in caught.value.fix


def test_listing_names_imports_nothing() -> None:
    broken: Registry[object] = Registry("thing", {"gone": "no.such.module:Thing"})
    assert broken.names() == ("gone",)
    with pytest.raises(ModuleNotFoundError):
        broken.get("gone")
