"""Studies on this machine: every point once, resumed, recomputed where something changed, and asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.study import study
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.report import Kind
from llm_perf_opt.sweeps.studies.run_task import run_task
from tests.api.tiny_folders import llama_folder
from tests.sweeps.studies.made_studies import tiny_study, written

KEYS = "select inputs_hash, global_batch, asked_context, count(*) as rows from points group by all having rows > 1"
ALL = "select * from points order by inputs_hash, global_batch, asked_context"
SMALL: dict[str, Any] = {"deployments": {"plan": ["one device", "dp2"], "weights": ["checkpoint", "fp8"]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def results(place: Path) -> Path:
    study(tiny_study(place, 2, **SMALL), out=place / "results", workers=1)
    return place / "results"


def test_every_point_is_one_row_with_its_figures(results: Path) -> None:
    found = lpo.ask(results, sql="select * from points").to_pandas()
    assert len(found) == 2 * 2 * 2 * 2
    assert set(found.status) == {"ok"}
    assert lpo.ask(results, sql=KEYS).row_count == 0
    assert (found.decode_lower_bound_s <= found.decode_low_s).all()
    assert (found.decode_low_s <= found.decode_high_s).all()


def test_a_point_is_what_a_prediction_of_it_says(results: Path, place: Path) -> None:
    """The same model, plan, format and device asked by `predict`, which knows nothing of studies."""
    where = "plan = 'one device' and weights = 'fp8' and device = 'l40s' and model = 'm00'"
    row = lpo.ask(results, sql=f"select * from points where {where}").to_pandas().iloc[0]
    traced = lpo.trace(str(place / "models/m00"), batch=2, prompt_tokens=16, weights="fp8")
    predicted = traced.predict("l40s", execution="fused", rates="data-sheet")
    decode = [stage for stage in predicted.stages if stage.phase == "decode"]
    assert row.decode_high_s == pytest.approx(sum(stage.high_s for stage in decode), rel=1e-12)
    assert row.prefill_low_s == pytest.approx(
        sum(stage.low_s for stage in predicted.stages if stage.phase == "prefill"), rel=1e-12
    )
    assert row.run_high_s == row.prefill_high_s  # no answer was asked for


def test_replicas_share_the_batch_and_the_price(results: Path) -> None:
    where = "model = 'm00' and device = 'h100-sxm' and weights = 'fp8'"
    sql = f"select plan, requests_per_s_low, price_per_hour from points where {where} order by plan"
    spread, single = lpo.ask(results, sql=sql).rows
    assert (spread[0], single[0]) == ("dp2", "one device")
    assert spread[2] == 2 * single[2] == 5.0
    assert spread[1] >= single[1]


def test_a_finished_study_computes_nothing_again(results: Path, place: Path) -> None:
    again = study(tiny_study(place, 2, **SMALL), out=results, workers=1)
    assert (again.computed, again.reused) == (0, again.points)


def test_a_new_device_computes_its_points_alone(place: Path, results: Path) -> None:
    before = lpo.ask(results, sql=ALL).to_arrow()
    more = study(tiny_study(place, 2, **SMALL, gpus=["h100-sxm", "l40s", "l4"]), out=results, workers=1)
    assert (more.computed, more.reused) == (8, 16)
    assert lpo.ask(results, sql=KEYS).row_count == 0
    assert lpo.ask(results, sql=ALL.replace("points", "points where device <> 'l4'")).to_arrow().equals(before)
    fewer = study(tiny_study(place, 2, **SMALL), out=results, workers=1)
    assert fewer.computed == 0
    assert lpo.ask(results, sql=ALL).to_arrow().equals(before)


def test_a_changed_model_recomputes_its_points_alone(tmp_path: Path) -> None:
    file = tiny_study(tmp_path, 2, **SMALL)
    study(file, out=tmp_path / "results", workers=1)
    config = tmp_path / "models/m01/config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 144', '"intermediate_size": 160'))
    again = study(file, out=tmp_path / "results", workers=1)
    assert (again.computed, again.reused) == (8, 8)


def test_a_task_that_runs_twice_leaves_the_same_rows(
    results: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_perf_opt.sweeps.studies.study import read_study
    from llm_perf_opt.sweeps.studies.study_run import installed_versions
    from llm_perf_opt.sweeps.studies.tasks import study_tasks

    before = lpo.ask(results, sql=ALL).to_arrow()
    task = study_tasks(read_study(tiny_study(place, 2, **SMALL)), installed_versions())[0]
    run_task(task, str(results), run="0123abcd")
    assert lpo.ask(results, sql=ALL).to_arrow().equals(before)


def test_a_failure_is_a_row_with_its_reason(tmp_path: Path) -> None:
    models, plans = ["deepseek-ocr-tiny", "no-such-model"], {"plan": ["one device", "dp2"]}
    file = written(tmp_path, models=models, workload={"users": 3}, deployments=plans)
    found = study(file, out=tmp_path / "results", workers=1)
    assert found.failed == 2 + 4  # three sequences on two replicas; every point of a model that is not there
    rows = lpo.ask(tmp_path / "results", "failures").rows
    assert {row[0] for row in rows} == {"deepseek-ocr-tiny", "no-such-model"}
    assert any("cannot be shared" in str(row[-1]) for row in rows)
    again = study(file, out=tmp_path / "results", workers=1)
    assert again.computed == 0, "a failure is a result"
    retried = study(file, out=tmp_path / "results", workers=1, retry_failed=True)
    assert retried.computed == 6


def test_many_pairs_are_evaluated_from_one_function_and_equal_the_traces(tmp_path: Path) -> None:
    workload = {"users": [2, 4], "input": "range(16,24)", "output": 3}
    grid = {"workload": workload, "gpus": ["h100-sxm"]}
    grid["deployments"] = {"weights": ["checkpoint"]}
    study(tiny_study(tmp_path, 1, **grid), out=tmp_path / "function", workers=1)
    few = {**grid, "workload": {"users": [2, 4], "input": [16, 23], "output": 3}}
    study(tiny_study(tmp_path, 1, **few), out=tmp_path / "traced", workers=1)
    sql = "select * exclude (origin, inputs_hash) from points where context in (16, 23) order by global_batch, context"
    by_form, traced = (lpo.ask(tmp_path / name, sql=sql).to_pandas() for name in ("function", "traced"))
    assert len(by_form) == len(traced) == 4
    for name in by_form.columns:
        left, right = by_form[name].tolist(), traced[name].tolist()
        if isinstance(left[0], float):
            assert left == pytest.approx(right, rel=1e-9, nan_ok=True), name
        else:
            assert left == right or (all(x != x for x in left) and all(x != x for x in right)), name


def test_a_saved_function_is_a_model_that_needs_no_torch(tmp_path: Path) -> None:
    tiny_study(tmp_path, 1)
    traced = lpo.trace(str(tmp_path / "models/m00"), batch=2, prompt_tokens=16)
    traced.over(batch=(2, 4), context=(16, 32)).save(tmp_path / "m.function.json")
    grid = {"users": [2, 4], "input": [16, 40]}
    file = written(tmp_path, models=["m.function.json"], workload=grid, deployments={})
    found = study(file, out=tmp_path / "results", workers=1)
    assert (found.points, found.failed) == (8, 4)
    rows = lpo.ask(tmp_path / "results", sql="select distinct context, status from points order by context").rows
    assert rows == ((16, "ok"), (40, "failed"))


def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    file = tiny_study(tmp_path, 2, **SMALL)
    study(file, out=tmp_path / "serial", workers=1)
    study(file, out=tmp_path / "two", workers=2)
    serial, two = (lpo.ask(tmp_path / name, sql=ALL).to_arrow() for name in ("serial", "two"))
    assert serial.equals(two)


def test_results_lie_wherever_fsspec_reaches(results: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(results), "/kept", recursive=True)
    assert lpo.ask("memory://kept", "summary").rows == lpo.ask(results, "summary").rows


def test_a_query_reads_the_points_and_no_other_file(results: Path) -> None:
    with pytest.raises(UsageError, match="could not be answered"):
        lpo.ask(results, sql="select * from read_csv('/etc/passwd')")
    with pytest.raises(UsageError, match="no study"):
        lpo.ask(results, study="other")


def test_columns_of_any_query_are_shown_as_what_they_are(results: Path) -> None:
    query = (
        "select device, min(tpot_s), count(*), min(tpot_s), null as nothing, true as sure from points group by device"
    )
    (table,) = lpo.ask(results, sql=query).report().tables
    kinds = [column.kind for column in table.columns]
    assert kinds == [Kind.TEXT, Kind.SECONDS, Kind.COUNT, Kind.SECONDS, Kind.TEXT, Kind.TEXT]
    assert len({column.name for column in table.columns}) == 6, "two columns of one name are told apart"
    assert lpo.ask(results, sql="select 1 as one where false").report().tables[0].rows == ()


def test_questions_are_answered_with_what_they_assume(results: Path) -> None:
    answer = lpo.ask(results, "cheapest plan under 50 ms TPOT")
    assert [row[0] for row in answer.rows] and answer.row_count == 2  # one for each model
    assert "Prices are from the study file" in repr(answer)
    assert lpo.ask(results, "cheapest plan under 0.0001 ms TPOT").row_count == 0
    assert {row[3] for row in lpo.ask(results, "bottleneck of decode on l40s").rows} == {4}


def test_the_page_holds_every_point_and_the_tables(results: Path, tmp_path: Path) -> None:
    page = lpo.study_page(results, tmp_path / "study.html").read_text()
    assert "16 of 16 points are drawn" in page
    assert "Smallest device" in page
    with pytest.raises(PerfOptError, match="overwrite"):
        lpo.study_page(results, tmp_path / "study.html")


def test_an_engine_that_is_not_there_is_refused_before_any_work(place: Path) -> None:
    with pytest.raises(UsageError, match="is not an engine"):
        study(tiny_study(place, 2), out=place / "none", engine="slurm")
    with pytest.raises(UsageError, match="address is for Ray"):
        study(tiny_study(place, 2), out=place / "none", address="auto")
    assert not (place / "none").exists()


def test_without_ray_the_message_says_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PerfOptError, match=r"llm-perf-opt\[ray\]"):
        study(tiny_study(place, 2), out=place / "none", engine="ray")


REMOTE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

Path(__file__).with_name("ran").touch()
Path({mark!r}).touch()


class Own(LlamaForCausalLM):
    pass
"""


def folder_with_code(folder: Path, mark: Path) -> Path:
    """A folder whose own Python leaves a file when it runs."""
    import json

    llama_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own-llama", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(REMOTE.format(mark=str(mark)))
    return folder


@pytest.mark.parametrize(
    "asked",
    [
        {"trust_remote_code": True},
        {"workload": {"users": 1, "trust_remote_code": True}},
        {"models": [{"model": "own", "trust_remote_code": True}]},
        {"models": [{"model": "own", "out": "written"}]},
    ],
)
def test_no_line_of_a_study_file_runs_code_or_chooses_what_trace_does(tmp_path: Path, asked: dict[str, Any]) -> None:
    folder_with_code(tmp_path / "own", tmp_path / "ran")
    file = written(tmp_path, **{"models": ["own"], **asked})
    with pytest.raises(UsageError, match=r"trust.remote.code|'out' is not a field"):
        study(file, out=tmp_path / "results", workers=1)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "results").exists()


def test_the_middle_of_a_band_is_as_far_by_factors_from_both_edges(results: Path) -> None:
    sql = "select tpot_s, decode_low_s, decode_high_s from points where decode_low_s is not null"
    rows = lpo.ask(results, sql=sql).rows
    assert rows
    for middle, low, high in rows:
        assert float(middle) / float(low) == pytest.approx(float(high) / float(middle))
        assert float(low) < float(high)
