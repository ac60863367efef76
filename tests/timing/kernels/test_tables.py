"""Parquet files: which version counts, what a row says, and what is said where packages are missing."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.timing.kernels import tables

duckdb = pytest.importorskip("duckdb", reason="reads Parquet; comes with the extra `kernels`")


def write(folder: Path, place: str, select: str) -> None:
    path = folder / place
    path.parent.mkdir(parents=True)
    duckdb.connect().execute(f"copy ({select}) to '{path}' (format parquet)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = "select * from (values (1, 8, 0.5), (1, 8, 0.25), (2, 8, 1.0), (4, 8, 0.0)) as t(m, n, latency)"
    for version in ("1.3.0rc9", "1.3.0rc20", "1.0.0"):
        write(tmp_path, f"h100_sxm/gemm/trtllm/{version}/gemm_perf.parquet", rows)
    write(tmp_path, "h100_sxm/gemm/unknown_engine/1.0/gemm_perf.parquet", rows)
    return tmp_path


def test_the_newest_version_counts_by_its_numbers(folder: Path) -> None:
    found = tables.newest("h100_sxm", "gemm", "trtllm", folder)
    assert found is not None
    assert found.version == "1.3.0rc20"
    assert [t.version for t in tables.versions("h100_sxm", "gemm", "trtllm", folder)][1:] == ["1.3.0rc9", "1.0.0"]


def test_only_known_engines_are_listed(folder: Path) -> None:
    assert {table.engine for table in tables.list_tables(folder)} == {"trtllm"}
    assert tables.newest("h100_sxm", "gemm", "vllm", folder) is None


def test_of_equal_rows_the_shortest_counts_and_zero_is_no_time(folder: Path) -> None:
    table = tables.newest("h100_sxm", "gemm", "trtllm", folder)
    assert table is not None
    columns = tables.read_rows(table, ("m", "n"))
    assert columns["m"].tolist() == [1, 2]
    assert columns["seconds"].tolist() == [0.25e-3, 1e-3]


def test_a_column_that_older_files_lack_takes_its_default(folder: Path) -> None:
    table = tables.newest("h100_sxm", "gemm", "trtllm", folder)
    assert table is not None
    columns = tables.read_rows(table, ("m", "window", "cache"), defaults={"window": 0, "cache": "bfloat16"})
    assert columns["window"].tolist() == [0, 0]
    assert columns["cache"].tolist() == ["bfloat16", "bfloat16"]


def test_another_layout_is_refused(folder: Path) -> None:
    table = tables.newest("h100_sxm", "gemm", "trtllm", folder)
    assert table is not None
    with pytest.raises(PerfOptError, match="has no column 'k'"):
        tables.read_rows(table, ("m", "k"))


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert tables.missing_packages() == ("aiconfigurator_core", "duckdb")
    with pytest.raises(PerfOptError) as caught:
        tables.data_folder()
    assert 'pip install "llm-perf-opt[kernels]"' in str(caught.value.fix)
