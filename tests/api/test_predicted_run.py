"""A prefill and many decode steps as one prediction, against each step traced and predicted by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.sweeps import predicted_run
from tests.models.huggingface.folders import LLAMA, write_folder
from tests.timing.kernels.measured_tables import needs_tables

DEVICE, PROMPT, BATCH, STEPS = "l4", 30, 3, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), LLAMA)


@pytest.fixture(scope="module")
def traced(model: Path) -> lpo.Trace:
    return lpo.trace(model, prompt_tokens=PROMPT, batch=BATCH)


def decode_times(model: Path, context: int, execution: str) -> tuple[float, float, float]:
    answer = lpo.trace(model, prompt_tokens=context, batch=BATCH).predict(DEVICE, execution=execution)
    (stage,) = (stage for stage in answer.stages if stage.phase == "decode")
    assert stage.lower_bound_s is not None
    return stage.lower_bound_s, stage.low_s, stage.high_s


@pytest.mark.parametrize("execution", ["eager", "fused"])
def test_all_steps_take_as_long_as_each_by_itself(model: Path, traced: lpo.Trace, execution: str) -> None:
    run = traced.predict(DEVICE, execution=execution, decode_steps=STEPS).run
    assert run is not None and run.decode is not None and run.first_step is not None and run.last_step is not None
    single = [decode_times(model, PROMPT + step, execution) for step in range(STEPS)]
    sums = [sum(column) for column in zip(*single, strict=True)]
    assert [run.decode.lower_bound_s, run.decode.low_s, run.decode.high_s] == pytest.approx(sums, rel=1e-9)
    assert [run.first_step.lower_bound_s, run.first_step.high_s] == pytest.approx([single[0][0], single[0][2]])
    assert [run.last_step.lower_bound_s, run.last_step.high_s] == pytest.approx([single[-1][0], single[-1][2]])
    assert (run.first_step.context, run.last_step.context) == (PROMPT, PROMPT + STEPS - 1)
    assert run.decode_tokens_per_s_low == pytest.approx(BATCH * STEPS / sums[2])
    assert run.traces <= STEPS


def test_the_run_is_the_prefill_and_its_steps(traced: lpo.Trace) -> None:
    answer = traced.predict(DEVICE, decode_steps=STEPS)
    run = answer.run
    assert run is not None and run.decode is not None and run.low_s is not None and run.high_s is not None
    prefill = [stage for stage in answer.stages if stage.phase == "prefill"]
    assert run.low_s == pytest.approx(sum(stage.low_s for stage in prefill) + run.decode.low_s)
    assert run.high_s == pytest.approx(sum(stage.high_s for stage in prefill) + run.decode.high_s)
    table = answer.to_pandas(predicted_run.RUN_TABLE)
    assert list(table["part"]) == [
        "prefill",
        f"decode step 1, after {PROMPT} tokens",
        f"decode step {STEPS}, after {PROMPT + STEPS - 1} tokens",
        f"{STEPS} decode steps",
    ]
    assert answer.to_dict()["run"]["decode"]["steps"] == STEPS


def test_one_step_is_printed_as_ever(traced: lpo.Trace) -> None:
    answer = traced.predict(DEVICE)
    assert answer.run is None
    assert predicted_run.RUN_TABLE not in answer.tables


def test_steps_that_no_function_proves_are_not_added_up(traced: lpo.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_run, "RUN_TRACES", 2)
    answer = traced.predict(DEVICE, decode_steps=STEPS)
    run = answer.run
    assert run is not None
    assert run.decode is None and run.low_s is None and run.decode_tokens_per_s_low is None
    assert run.open_because is not None and "2 traces" in run.open_because
    assert any("are not added up" in note.text for note in answer.report().notes)


def test_the_command_prints_one_table_more(
    model: Path, traced: lpo.Trace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--prompt-tokens", str(PROMPT), "--batch", str(BATCH), "--device", DEVICE, "--decode-steps", str(STEPS)]
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "trace", str(model), *words, "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert not end.value.code
    assert err.count("Tracing") == 2  # the steps that are sampled say nothing
    tables = {table["title"]: table["rows"] for table in json.loads(out)["tables"]}
    first = traced.predict(DEVICE).stages[-1]
    assert tables[predicted_run.RUN_TABLE][1]["high_seconds"] == pytest.approx(first.high_s)
    assert tables["Predicted time by stage"][-1]["high_seconds"] == pytest.approx(first.high_s)
    assert tables[predicted_run.RUN_TABLE][3]["part"] == f"{STEPS} decode steps"


@needs_tables
def test_steps_by_measured_kernels_are_forms(model: Path, traced: lpo.Trace) -> None:
    """All steps at once from the shapes of their kernels, and each step traced by itself."""
    found = traced.predict("h100-sxm", execution="fused", rates="tables", engine="vllm", decode_steps=STEPS)
    assert found.run is not None and found.run.decode is not None
    assert found.run.origin == "by form"
    expected = 0.0
    for step in range(STEPS):
        one = lpo.trace(model, prompt_tokens=PROMPT + step, batch=BATCH)
        (stage,) = (
            stage
            for stage in one.predict("h100-sxm", execution="fused", rates="tables", engine="vllm").stages
            if stage.phase == "decode"
        )
        assert stage.expected_s is not None
        expected += stage.expected_s
    assert found.run.decode.expected_s == pytest.approx(expected, rel=1e-9)
    assert "expected" in found.to_pandas(predicted_run.RUN_TABLE).columns


@needs_tables
def test_an_answer_says_where_its_times_come_from(traced: lpo.Trace) -> None:
    tables, sheet = (traced.predict("h100-sxm", execution="fused", rates=name) for name in ("tables", "data-sheet"))
    assert (tables.rates, sheet.rates) == ("measured kernels", "data sheet")
    assert traced.predict("h100-sxm", execution="fused").rates == tables.rates, "the default where they are installed"
    for stage, plain in zip(tables.stages, sheet.stages, strict=True):
        assert stage.lower_bound_s == plain.lower_bound_s
        assert stage.lower_bound_s is not None and stage.expected_s is not None
        assert stage.lower_bound_s <= stage.low_s <= stage.expected_s <= stage.high_s
        assert sum(stage.origins.values()) == pytest.approx(1.0)
        assert (plain.expected_s, plain.origins) == (None, {})
    assert tables.expected_s == pytest.approx(sum(stage.expected_s or 0.0 for stage in tables.stages))
    assert tables.to_dict()["stages"][0]["origins"]
    titles = [table.title for table in tables.report().tables]
    assert "Where kernel times come from" in titles
    assert "What an engine fuses" in titles


def test_without_the_tables_a_note_says_what_they_would_add(traced: lpo.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.timing.kernels.tables.READER", "no_such_reader")
    answer = traced.predict("h100-sxm")
    assert answer.rates == "data sheet"
    assert any('pip install "llm-perf-opt[kernels]"' in note.text for note in answer.report().notes)
    with pytest.raises(PerfOptError, match="needs no_such_reader"):
        traced.predict("h100-sxm", rates="tables")
    amd = traced.predict("mi300x").report()
    assert not any("kernels]" in note.text for note in amd.notes), "no table comes near it"
