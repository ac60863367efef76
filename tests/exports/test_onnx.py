"""ONNX without weights, and onnxruntime against eager torch with random ones."""

from __future__ import annotations

import importlib
import re
from typing import Any

import onnx
import pytest
import torch

from llm_perf_opt.core.export_outcome import Check, Verdict
from llm_perf_opt.exports import onnx_trial
from llm_perf_opt.exports.failure import failed, quiet
from llm_perf_opt.exports.onnx_trial import missing_packages, parity_of, write_onnx
from llm_perf_opt.exports.torch_lab import export_part
from llm_perf_opt.harness.twins import meta_twin
from tests.exports.tiny_lab import examined, prepared


@pytest.mark.parametrize("name", ["clip-block", "projector", "decoder-layer-dense", "attention-with-kv", "expert"])
def test_onnxruntime_gives_what_eager_gives(name: str) -> None:
    found = examined(name, Check.PARITY)
    assert found.outcome(Check.PARITY).verdict is Verdict.OK
    assert found.parity is not None
    assert found.parity.max_abs_error < 1e-3
    assert found.parity.largest_value > 0.5  # else a small difference would say nothing


def test_a_file_has_its_weights_as_inputs_and_no_values() -> None:
    subject = prepared("expert")
    with quiet():
        _, program = export_part(subject, meta_twin(subject.call))
        assert program is not None
        written = write_onnx(subject, program)
    assert written.outcome.verdict is Verdict.OK
    graph = onnx.load_model_from_string(written.content).graph
    shapes = {entry.name: [size.dim_value for size in entry.type.tensor_type.shape.dim] for entry in graph.input}
    assert len(graph.initializer) == 0
    assert shapes["x"] == [36, 32]
    assert sorted(map(tuple, shapes.values())) == [(16, 32), (16, 32), (32, 16), (36, 32)]


def test_a_grouped_matmul_is_named_as_what_onnx_lacks() -> None:
    outcome = examined("moe-layer-grouped", Check.ONNX).outcome(Check.ONNX)
    assert (outcome.verdict, outcome.operator) == (Verdict.FAILED, "aten._grouped_mm.default")
    assert outcome.remedy == "export instead: moe-layer-all-experts"


def test_a_missing_package_is_told_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = importlib.import_module

    def without_onnxscript(name: str, *more: Any) -> Any:
        if name == "onnxscript":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return load(name, *more)

    monkeypatch.setattr(importlib, "import_module", without_onnxscript)
    outcome = missing_packages(Check.ONNX)
    assert outcome is not None
    assert (outcome.verdict, outcome.detail) == (Verdict.SKIPPED, "onnxscript is not installed")
    assert outcome.remedy == "pip install 'llm-perf-opt[onnx]'"


def test_parity_measures_the_largest_difference_of_any_output() -> None:
    parity = parity_of(
        [torch.tensor([1.0, -4.0]), torch.tensor([0.5])], [torch.tensor([1.0, -3.0]), torch.tensor([0.5])]
    )
    assert (parity.max_abs_error, parity.max_rel_error, parity.largest_value) == (1.0, 0.25, 4.0)


def test_parity_refuses_another_number_of_outputs() -> None:
    with pytest.raises(ValueError, match="eager gives 1 outputs, onnxruntime 2"):
        parity_of([torch.ones(1)], [torch.ones(1), torch.ones(1)])


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parity_refuses_a_value_that_is_not_finite_in_any_output(place: int, value: float) -> None:
    expected, found = [torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)]
    found[place][1] = value
    with pytest.raises(ValueError, match=f"output {place} has values that are not finite"):
        parity_of(expected, found)


def test_parity_refuses_another_shape_even_where_it_could_be_spread() -> None:
    with pytest.raises(ValueError, match=re.escape("output 1 is [1, 3, 4] in eager and [3, 4] in onnxruntime")):
        parity_of([torch.ones(1), torch.ones(1, 3, 4)], [torch.ones(1), torch.ones(3, 4)])


def test_a_run_with_a_wrong_value_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = torch.full((36, 32), float("nan"))
    monkeypatch.setattr(onnx_trial, "_run_onnxruntime", lambda call: [lost])
    outcome, parity = onnx_trial.compare_runtimes(prepared("expert"))
    assert (outcome.verdict, outcome.reason, parity) == (
        Verdict.FAILED,
        "output 0 has values that are not finite",
        None,
    )


def test_an_error_that_only_lingers_in_the_thread_is_no_cause() -> None:
    """Python names whatever was last handled as the context; a cause was handled by a frame that still ran."""

    def long_gone() -> Exception:
        try:
            raise KeyError("of another time")
        except KeyError as error:
            return error

    def raised(handle: bool) -> Exception:
        try:
            try:
                raise LookupError("of this run")
            except LookupError as error:
                raise ValueError("not finite") from (error if handle else None)
        except ValueError as error:
            return error

    lingering = raised(handle=False)
    lingering.__context__ = long_gone()
    assert failed(Check.ONNX, lingering).reason == "not finite"
    assert failed(Check.ONNX, raised(handle=False)).reason == "of this run"
    assert failed(Check.ONNX, raised(handle=True)).reason == "of this run"
