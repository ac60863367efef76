"""Parquet files: which version counts, what a row says, and what is said where packages are missing."""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.store import VARIABLE
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


def test_rows_that_were_read_once_need_no_reader(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> dict[str, list[object]]:
        columns = tables.read_rows(table, ("m", "cache"), where="m < 4", defaults={"cache": "bfloat16"})
        assert [column.dtype.kind for column in columns.values()] == ["i", "U", "f"]
        return {name: column.tolist() for name, column in columns.items()}

    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    table = tables.newest("h100_sxm", "gemm", "trtllm", folder)
    assert table is not None
    first = read()
    monkeypatch.setattr(tables, "_connection", lambda: pytest.fail("the rows are there already"))
    assert read() == first == {"m": [1, 2], "cache": ["bfloat16"] * 2, "seconds": [0.25e-3, 1e-3]}


@pytest.mark.parametrize("change", ["content", "time", "question"])
def test_rows_of_a_changed_file_or_question_are_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    table = tables.newest("h100_sxm", "gemm", "trtllm", folder)
    assert table is not None
    tables.read_rows(table, ("m",))
    before, where = table.path.stat(), "true"
    if change == "content":  # of the same size, at the same time
        write(folder, "other/rows.parquet", "select * from (values (3, 8, 0.5), (5, 8, 0.25)) as t(m, n, latency)")
        table.path.write_bytes((folder / "other" / "rows.parquet").read_bytes())
        os.utime(table.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        os.utime(table.path, ns=(0, 0))
    else:
        where = "m > 1"
    tables.read_rows(table, ("m",), where=where)
    assert len(list((tmp_path / "cache" / "kernel tables").iterdir())) == 2


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert tables.missing_packages() == ("aiconfigurator-core", "duckdb")
    with pytest.raises(PerfOptError) as caught:
        tables.data_folder()
    assert 'pip install "llm-perf-opt[kernels]"' in str(caught.value.fix)
