"""Collectives: bytes are twice the elements of the tables, and other links get none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.timing.kernels.collectives import collective_rows
from llm_perf_opt.timing.kernels.kernel_tables import kernel_tables
from llm_perf_opt.timing.kernels.times import TimeOrigin
from tests.timing.kernels.measured_tables import needs_tables


@needs_tables
def test_a_large_all_reduce_runs_near_the_speed_of_the_links() -> None:
    """Eight H100: 900 GB/s of NVLink both ways, 450 one way; the switch reduces on the way, so a little more."""
    size = np.array([2**30])
    for engine in ("vllm", "sglang", "trtllm"):
        times = kernel_tables("h100-sxm", engine).all_reduce(np.array([8]), size)
        bus = 2 * 7 / 8 * size[0] / times.seconds[0]
        assert 400e9 < bus < 500e9, engine
        assert times.origins == [TimeOrigin.MEASURED]


@needs_tables
def test_a_short_all_reduce_of_an_engine_beats_nccl() -> None:
    ranks, size = np.array([8]), np.array([16 * 8192 * 2])
    tables = kernel_tables("h100-sxm", "vllm")
    assert (
        tables.all_reduce(ranks, size).seconds[0] < tables.collective(CollectiveKind.ALL_REDUCE, ranks, size).seconds[0]
    )


@needs_tables
def test_gathering_moves_half_of_what_reducing_moves() -> None:
    tables, ranks, size = kernel_tables("h200-sxm", None), np.array([8]), np.array([2**29])
    gather, reduce = (
        tables.collective(kind, ranks, size).seconds[0]
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
    )
    assert 0.4 < gather / reduce < 0.8


@needs_tables
def test_sizes_between_rows_and_ranks_between_rows_say_so() -> None:
    times = kernel_tables("h100-sxm", "vllm").all_reduce(np.array([8, 6]), np.array([300_000, 2**20]))
    assert times.origins == [TimeOrigin.INTERPOLATED, TimeOrigin.SCALED]


@needs_tables
def test_a_device_with_other_links_gets_none() -> None:
    times = kernel_tables("h100-pcie", "vllm").all_reduce(np.array([8]), np.array([2**20]))
    assert times.origins == [TimeOrigin.ROOFLINE]
    assert np.isnan(times.seconds).all()


@needs_tables
def test_a_large_gathering_runs_below_the_speed_of_the_links_and_not_far_below() -> None:
    """Eight H100: a rank receives seven eighths of the whole at no more than the 450 GB/s of its links one way."""
    size = np.array([2**29])
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        times = kernel_tables("h100-sxm", None).collective(kind, np.array([8]), size)
        assert 300e9 < 7 / 8 * size[0] / times.seconds[0] < 450e9, kind


def test_an_operation_that_the_newest_version_of_a_library_lacks_comes_from_an_older_one(tmp_path: Path) -> None:
    """The newest file of NCCL may hold all-reduce on few ranks alone: the others, and more ranks, are those before."""
    duckdb = pytest.importorskip("duckdb", reason="reads Parquet; comes with the extra `kernels`")
    rows = {
        "2.29.2": "('all_gather', 'half', 8, 1024, 0.5), ('all_reduce', 'half', 8, 1024, 0.25)",
        "2.30.7": "('all_reduce', 'half', 4, 1024, 0.125)",
    }
    for version, values in rows.items():
        path = tmp_path / "h100_sxm/comm/nccl" / version / "nccl_perf.parquet"
        path.parent.mkdir(parents=True)
        names = "t(op_name, nccl_dtype, num_gpus, message_size, latency)"
        duckdb.connect().execute(f"copy (select * from (values {values}) as {names}) to '{path}' (format parquet)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_PERF_OPT_TABLES", str(tmp_path))
        gathered = collective_rows("h100_sxm", "nccl", CollectiveKind.ALL_GATHER)
        reduced = collective_rows("h100_sxm", "nccl", CollectiveKind.ALL_REDUCE)
    assert gathered is not None and reduced is not None
    assert (gathered["ranks"].tolist(), gathered["seconds"].tolist()) == ([8.0], [0.5e-3])
    assert (reduced["ranks"].tolist(), reduced["seconds"].tolist()) == ([8.0], [0.25e-3])
