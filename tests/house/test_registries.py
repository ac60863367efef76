"""Every registered plug-in imports and has what its protocol asks for, so a new one is tested by existing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from llm_perf_opt import plugins
from llm_perf_opt.document import Report
from llm_perf_opt.errors import UsageError
from llm_perf_opt.plugins import DRAWINGS, FOLDER_INPUTS, FOLDERS, MODELS, REPORTERS, TRACERS, Registry, Sight


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
    assert method_takes(adapter, "__init__", "folder", "trust_remote_code")


@pytest.mark.parametrize("name", FOLDER_INPUTS.names())
def test_inputs_of_a_model_type_take_a_build_and_a_workload(name: str) -> None:
    assert list(inspect.signature(FOLDER_INPUTS.get(name)).parameters) == ["name", "build", "workload"]


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


def test_every_registry_is_held_to_its_protocol_here() -> None:
    registries = {name for name, value in vars(plugins).items() if isinstance(value, Registry)}
    assert registries == {"MODELS", "FOLDERS", "FOLDER_INPUTS", "TRACERS", "REPORTERS", "DRAWINGS"}


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
