from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.recordings import read_recording

CSV = Path(__file__).parents[2] / "facts" / "nsight"
KERNELS = [(2_000, 2_500, 1, 0), (1_000, 1_700, 2, 0), (5_000, 5_010, 1, 1)]  # start, end, name, device
NAMES = {1: "void gemm<1>(int)", 2: "flash_fwd_kernel"}


def database(file: Path, *, with_names: bool = True) -> Path:
    """The tables of `nsys export --type sqlite` that are read, with the columns that are read and one more."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
            "(start INTEGER, end INTEGER, demangledName INTEGER, deviceId INTEGER, gridX INTEGER)"
        )
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER)")
        connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, 1)", KERNELS)
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (900, 910, 0)")
        if with_names:
            connection.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
            connection.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
            connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3')")
        connection.commit()
    return file


def test_the_database_gives_kernels_in_order_and_the_device(tmp_path: Path) -> None:
    recording = read_recording(database(tmp_path / "report.sqlite"))
    assert [(work.name, work.kind, work.duration_ns) for work in recording.work] == [
        ("[CUDA memset]", "fill", 10),
        ("flash_fwd_kernel", "kernel", 700),
        ("void gemm<1>(int)", "kernel", 500),
    ]
    assert (recording.device_name, recording.other_devices, recording.source) == (
        "NVIDIA H100 80GB HBM3",
        1,
        "Nsight Systems",
    )


def test_the_device_is_the_one_that_cuda_numbered(tmp_path: Path) -> None:
    """With CUDA_VISIBLE_DEVICES=1 device 0 of CUDA is GPU 1. Where two processes number differently none is named."""
    file = database(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (1, 'NVIDIA L4')")
        connection.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)")
        connection.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, 77)")
        connection.commit()
    assert read_recording(file).device_name == "NVIDIA L4"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 78)")
        connection.commit()
    assert read_recording(file).device_name is None


def test_a_list_of_other_objects_says_what_it_has(tmp_path: Path) -> None:
    (file := tmp_path / "rows.json").write_text('[{"kernel": "gemm", "dur": 3}]')
    with pytest.raises(PerfOptError, match="no table of Nsight Systems") as caught:
        read_recording(file)
    assert caught.value.why == "its rows have no Start (ns), Duration (ns), Name; they have kernel, dur"


# The tables of the tests that follow have the headings, units and marks of real reports, with figures of our own:
# Nsight Systems 2021 to 2026 differ in the columns between the start and the name.
@pytest.mark.parametrize(
    "columns",
    [
        "CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MBps),SrcMemKd,"
        "DstMemKd,Device,Ctx,Strm",
        "CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,"
        "DstMemKd,Device,Ctx,GreenCtx,Strm",
        "CorrId,Device",
    ],
)
def test_the_tables_of_several_releases(tmp_path: Path, columns: str) -> None:
    row = ",".join("NVIDIA Thor (0)" if column == "Device" else "" for column in columns.split(","))
    preamble = (
        "\nNOTICE: Existing SQLite export found: x.sqlite\n    Consider --force-export=true\n\nProcessing [x] ...\n"
    )
    table = (
        f"{preamble}Start (ns),Duration (ns),{columns},Name\n"
        f'300,20,{row},"ns::<unnamed>::gemm(float, const float *)"\n'
        f"100,7,{row},[CUDA memcpy Host-to-Device]\n"
    )
    (file := tmp_path / "trace.csv").write_text(table)
    recording = read_recording(file)
    assert recording.device_name == "NVIDIA Thor"
    assert [(work.name[:12], work.kind, work.duration_ns) for work in recording.work] == [
        ("[CUDA memcpy", "copy", 7),
        ("ns::<unnamed", "kernel", 20),
    ]


def test_a_database_without_names_is_still_times(tmp_path: Path) -> None:
    recording = read_recording(database(tmp_path / "report.sqlite", with_names=False))
    assert recording.device_name is None
    assert [work.name for work in recording.work[1:]] == ["", ""]


def test_the_table_as_csv_and_as_json_says_the_same(tmp_path: Path) -> None:
    (table,) = CSV.glob("*gpu_trace*.csv")
    as_csv = read_recording(table)
    rows = [
        {"Start (ns)": work.start_ns, "Duration (ns)": work.duration_ns, "Device": "Made-up GPU (0)", "Name": work.name}
        for work in as_csv.work
    ]
    file = tmp_path / "table.json"
    file.write_text(json.dumps(rows), "utf-8")
    assert read_recording(file) == as_csv
    assert as_csv.device_name == "Made-up GPU"
    assert as_csv.work[0].kind == "copy"


@pytest.mark.parametrize(
    "text",
    [
        "Start (ns),Duration (ns),Name\nsoon,1,a\n",
        "Start (ns),Duration (ns),Name\n1,-1,a\n",
        "Start (ns),Duration (ns),Name\n1,99999999999999999999,a\n",
        "Start (ns),Duration (ns),Name\n",
        "a,b\n1,2\n",
        "[1, 2]",
        '[{"Name": "a"}]',
    ],
)
def test_a_bad_table_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text, "utf-8")
    with pytest.raises(PerfOptError) as caught:
        read_recording(file)
    assert caught.value.why and caught.value.fix


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE things (id INTEGER)")
        connection.commit()
    with pytest.raises(PerfOptError, match="no database of Nsight Systems"):
        read_recording(file)


ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS start, i AS end, 1 AS demangledName, 0 AS deviceId FROM n"
)


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS}",
        f"CREATE VIEW cupti_activity_kind_kernel AS {ENDLESS}",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, demangledName AS (hex(zeroblob(9000000))))",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, [a'], demangledName AS (hex(start)), [b'])",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end, demangledName, deviceId)",
    ],
)
def test_what_computes_when_it_is_read_is_refused(statement: str, tmp_path: Path) -> None:
    file = database(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        connection.execute(statement)
        connection.commit()
    with pytest.raises(PerfOptError, match="no database of Nsight Systems") as caught:
        read_recording(file)
    assert "is not a plain table" in caught.value.why


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i + 1 AS end"


@pytest.mark.parametrize(
    "made",
    [
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS}, 1 AS demangledName, 0 AS deviceId FROM n",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end AS (start + length(zeroblob(start))), "
        "demangledName INTEGER, deviceId INTEGER)",
    ],
    ids=["a view without end", "a column that is worked out"],
)
def test_what_is_no_plain_table_is_refused(made: str, tmp_path: Path) -> None:
    file = database(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        connection.execute(made)
        connection.commit()
    with pytest.raises(PerfOptError, match="is no database of Nsight Systems") as refused:
        read_recording(file)
    assert "CUPTI_ACTIVITY_KIND_KERNEL is not a plain table" in refused.value.why


def test_comments_of_a_table_are_no_code(tmp_path: Path) -> None:
    """Nsight describes each column in a comment, also with the word AS and a bracket."""
    file = database(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET")
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, -- time as (ns)\n end INTEGER, deviceId INTEGER)"
        )
        connection.commit()
    assert len(read_recording(file).work) == 2


def test_a_name_that_many_kernels_share_is_read_once(tmp_path: Path) -> None:
    file = database(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 1, 0, 1)", [(at, at + 1) for at in range(10_000)]
        )
        connection.commit()
    assert len({id(work.name) for work in read_recording(file).work}) == 3


def test_a_query_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.core.recordings import nsight_export
    from llm_perf_opt.core.work_limits import limits

    monkeypatch.setattr(nsight_export, "_STEPS_BETWEEN_CHECKS", 1)
    file = database(tmp_path / "report.sqlite")
    with pytest.raises(PerfOptError, match="The phase ran") as stopped, limits(max_seconds=0):
        read_recording(file)
    assert "--max-seconds" in stopped.value.fix


def test_the_device_that_is_read_is_the_busiest_not_that_with_most_kernels(tmp_path: Path) -> None:
    file = database(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (6000, 9000, 1, 1, 1)")
        connection.commit()
    assert [work.duration_ns for work in read_recording(file).work] == [10, 3000]
