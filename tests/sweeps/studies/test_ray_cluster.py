"""A real Ray cluster of two nodes on one machine; a node and the driver are killed in the middle of a study."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.api.ask import ask
from llm_perf_opt.api.study import study
from tests.sweeps.studies.made_studies import tiny_study

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

ROOT = Path(__file__).parents[3]
MODELS, POINTS = 12, 12 * 4 * 3 * 2
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "memory": 4 * 2**30}
ALL = "select * from points order by inputs_hash, global_batch, asked_context"
LONGEST_S = 240.0


def driver(file: Path, out: Path, address: str) -> subprocess.Popen[bytes]:
    words = ["study", str(file), "--out", str(out), "--engine", "ray", "--address", address]
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}
    return subprocess.Popen([sys.executable, "-m", "llm_perf_opt", *words], env=environment)


def finished(out: Path) -> int:
    return len(list(out.glob("study=*/model=*/part-*.parquet")))


def wait_until(is_so: Callable[[], bool], running: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LONGEST_S
    while not is_so():
        assert running.poll() is None, "the driver ended too early"
        assert time.monotonic() < end, "nothing happened for too long"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_study_survives_the_death_of_a_node_and_of_its_driver(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    file, out, serial = tiny_study(tmp_path, MODELS), tmp_path / "on-ray", tmp_path / "serial"
    cluster: Any = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        node = cluster.add_node(**NODE)
        first = driver(file, out, cluster.address)
        wait_until(lambda: finished(out) >= 6, first)
        cluster.remove_node(node, allow_graceful=False)
        before = finished(out)
        wait_until(lambda: finished(out) >= before + 4, first)
        first.kill()
        first.wait()
        left = finished(out)
        assert left < MODELS * 3, "it was killed in the middle"
        cluster.add_node(**NODE)
        assert driver(file, out, cluster.address).wait(timeout=LONGEST_S) == 0
    finally:
        cluster.shutdown()
    study(file, out=serial, workers=1)
    on_ray, one_by_one = (ask(place, sql=ALL).to_arrow() for place in (out, serial))
    assert on_ray.num_rows == POINTS
    assert ask(out, sql="select distinct inputs_hash, global_batch, asked_context from points").row_count == POINTS
    assert on_ray.equals(one_by_one)
    assert set(on_ray.column("status").to_pylist()) == {"ok"}


@pytest.mark.slow
def test_kills_and_two_writers_on_a_cluster_lose_nothing() -> None:
    """Two nodes: 2 kills, one of them after the first part, and a pair.

    Drivers are forks of a process that never knew Ray: a fork of this one would inherit its threads' locks.
    """
    rows = "[(row.tried, row.findings) for row in rows_on_ray(2, 1, seed=3)]"
    code = f"import json; from scripts.campaigns.study_faults import rows_on_ray; print(json.dumps({rows}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=2 * LONGEST_S, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[1, []], [1, []], [1, []]]
