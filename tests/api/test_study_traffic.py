"""Traffic as an axis of a study: one row for each plan, device and traffic, with the figures of a plan under it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.study import study
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity import replays as capacity_replays
from llm_perf_opt.sweeps.studies.parquet_store import StudyManifest, StudyStore
from llm_perf_opt.sweeps.studies.replayed_points import replica_plan
from llm_perf_opt.sweeps.studies.run_task import run_task
from llm_perf_opt.sweeps.studies.study import read_study
from llm_perf_opt.sweeps.studies.tasks import StudyTask, study_tasks
from tests.api.one_by_one import OneByOne

pytestmark = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="no tables of measured kernels")
VERSIONS = {"tool_version": "1", "torch_version": "2", "transformers_version": None, "engine_version": "0.32.0"}
SLOW, BUSY = "1 at once prompt=200 output=20 requests=6", "4 at once prompt=lognormal(300,0.5) output=20 requests=8"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small").mkdir()
    (tmp_path / "small/config.json").write_text(json.dumps(LLAMA))
    written = tmp_path / "study.yaml"
    document: dict[str, Any] = {
        "name": "served",
        "models": ["small"],
        "gpus": ["h100-sxm"],
        "deployments": {"plan": ["one device", "tp2", "dp2"]},
        "traffic": [SLOW, BUSY],
        "prices": {"h100-sxm": 2.0},
    }
    written.write_text(json.dumps(document))
    return written


def tasks_of(file: Path) -> tuple[StudyTask, ...]:
    return study_tasks(read_study(file), VERSIONS)


def test_one_task_has_every_plan_and_every_traffic(file: Path) -> None:
    (task,) = tasks_of(file)
    assert task.points == 3 * 2
    assert list(task.pairs()) == [(None, None)]
    assert len({one.inputs_hash for one in task.deployments}) == 6
    (other,) = study_tasks(read_study(file), {**VERSIONS, "engine_version": "0.33.0"})
    assert not {one.inputs_hash for one in task.deployments} & {one.inputs_hash for one in other.deployments}


def test_a_row_is_what_a_plan_under_that_traffic_says(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity_replays, "ReplayProcess", OneByOne)
    monkeypatch.setattr(capacity_replays, "find", lambda engine: None)
    (task,) = tasks_of(file)
    outcome = run_task(task, str(tmp_path / "results"), run="0123abcd")
    assert (outcome.points, outcome.failed) == (6, 0)
    store = StudyStore(str(tmp_path / "results"))
    listed = {"study": "served", "run": "0123abcd", "tool_version": "1", "points": 6, "stems": [task.file_stem]}
    store.write_manifest(StudyManifest(**listed, parts={task.file_stem: outcome.part}))
    rows = lpo.ask(tmp_path / "results", sql="select * from points").to_pandas()
    row = rows[(rows.plan == "tp2") & (rows.traffic == BUSY)].iloc[0]
    asked = lpo.capacity(str(tmp_path / "small"), "2x h100-sxm", BUSY, tp=2, prices={"h100-sxm": 2.0})
    banded = asked.best.banded
    assert row.ttft_p99_s == pytest.approx(banded.expected.ttft.p99_s, rel=1e-12)
    assert row.tpot_p50_high_s == pytest.approx(banded.high.tpot.median_s, rel=1e-12)  # type: ignore[union-attr]
    assert row.requests_per_s_low == pytest.approx(banded.high.requests_per_s, rel=1e-12)
    assert row.cost_per_million_tokens_high == pytest.approx(
        2 * 2.0 / 3600 / banded.high.output_tokens_per_s * 1e6, rel=1e-12
    )
    assert row.origin == "replay"
    assert row.global_batch != row.global_batch, "unknown: the traffic decides"
    assert row.engine_version == "0.32.0"
    kept = run_task(task, store.root, list(store.finished("served")), run="89abcdef")
    assert kept.kept == 6
    fleets = lpo.ask(tmp_path / "results", "cheapest fleet under 60 s TTFT and 1000 ms TPOT").to_pandas()
    assert len(fleets) == 2
    assert set(fleets.plan) == {"one device"}, "the fewest GPUs are the cheapest"


def test_without_vllm_every_point_says_so(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(engine: object) -> None:
        raise PerfOptError("There is no vLLM to replay requests with.", why="it is not installed", fix="make it")

    monkeypatch.setattr(capacity_replays, "find", missing)
    (task,) = tasks_of(file)
    assert run_task(task, str(tmp_path / "results"), run="0123abcd").failed == 6


def test_plans_that_vllm_does_not_serve_are_refused() -> None:
    assert replica_plan(ParallelPlan(tp=4, ep=4, dp=2)).ep == 4
    for plan in (ParallelPlan(fsdp=2), ParallelPlan(tp=4, ep=2)):
        with pytest.raises(PerfOptError, match="does not serve"):
            replica_plan(plan)


def test_grids_and_traffic_exclude_each_other(file: Path, tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="takes no users"):
        study(file, ["workload.users=8"], out=tmp_path / "none")
