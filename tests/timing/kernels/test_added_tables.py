"""Sets of tables: taken out of wheels without their code, refused where hostile, chosen and named in reports."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.kernel_rates import KernelTableRates, table_rates
from llm_perf_opt.timing.kernels import added_tables, table_sets
from llm_perf_opt.timing.kernels.added_tables import add_tables, remove_tables
from llm_perf_opt.timing.kernels.table_sets import VARIABLE, active_set, named_set, tables_home
from llm_perf_opt.timing.kernels.tables import data_folder, list_tables

PARQUET = b"PAR1" + bytes(16) + b"PAR1"
TABLE = "aisimulate_core/systems/data/h100_sxm/gemm/vllm/0.25.0/gemm_perf.parquet"
METADATA = b"Metadata-Version: 2.4\nName: aisimulate\nVersion: 0.13.0\nLicense-Expression: Apache-2.0\n\nName: other\n"
ABOUT = "aisimulate-0.13.0.dist-info/"
GOOD: Mapping[str, bytes] = {
    TABLE: PARQUET,
    "aisimulate_core/__init__.py": b"raise SystemExit",
    f"{ABOUT}METADATA": METADATA,
    f"{ABOUT}licenses/LICENSE": b"Apache",
}


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(VARIABLE, raising=False)


def wheel(folder: Path, files: Mapping[str, bytes] = GOOD, *, mode: int = 0) -> Path:
    path = folder / "aisimulate-0.13.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (mode if name.endswith(".parquet") else 0) << 16
            archive.writestr(member, content)
    return path


def left(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


def test_tables_and_licences_come_out_of_a_wheel_and_no_code(tmp_path: Path) -> None:
    added = add_tables(wheel(tmp_path))
    assert added.label == "aisimulate 0.13.0 (Apache-2.0)"
    place = "aisimulate-0.13.0"
    wanted = [
        f"{place}/h100_sxm/gemm/vllm/0.25.0/gemm_perf.parquet",
        f"{place}/licences/LICENSE",
        f"{place}/tables.json",
    ]
    assert left(tables_home()) == wanted
    assert active_set() == added
    assert [table.version for table in list_tables()] == ["0.25.0"]


def test_the_same_set_can_be_added_again_and_another_one_of_its_name_cannot(tmp_path: Path) -> None:
    add_tables(wheel(tmp_path))
    assert add_tables(wheel(tmp_path)).key == "aisimulate-0.13.0"
    with pytest.raises(UsageError, match=r"other tables named aisimulate-0\.13\.0"):
        add_tables(wheel(tmp_path, {**GOOD, TABLE: PARQUET.replace(b"\0", b"1")}))
    assert len(left(tables_home())) == 3


def test_two_processes_that_add_one_set_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is faster: its folder gets the name between our look and our move."""
    rename, other = Path.rename, wheel(tmp_path)

    def late(folder: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        add_tables(other)
        return rename(folder, target)

    monkeypatch.setattr(Path, "rename", late)
    assert add_tables(wheel(tmp_path)).key == "aisimulate-0.13.0"
    assert len(left(tables_home())) == 3


def test_a_removed_set_leaves_whole_and_the_installed_package_counts_again(tmp_path: Path) -> None:
    before = active_set()
    add_tables(wheel(tmp_path))
    assert active_set() != before
    remove_tables("aisimulate-0.13.0")
    assert left(tables_home()) == []
    assert active_set() == before


def test_a_folder_of_tables_is_added_and_named_by_what_it_holds(tmp_path: Path) -> None:
    place = tmp_path / "mine" / "h100_sxm/gemm/vllm/1.0/gemm_perf.parquet"
    place.parent.mkdir(parents=True)
    place.write_bytes(PARQUET)
    added = add_tables(tmp_path / "mine")
    assert (added.name, added.licence) == ("mine", "licence not stated")
    assert named_set(added.key) == added
    assert named_set(str(tmp_path / "mine")).label.startswith("mine of 1 files")


@pytest.mark.parametrize(
    "name",
    [
        f"../{TABLE}",
        f"/etc/{TABLE}",
        "aisimulate_core/systems/data/../../gemm/vllm/1.0/gemm_perf.parquet",
        "aisimulate_core/systems/data/h100_sxm/gemm/vllm/../gemm_perf.parquet",
        "aisimulate_core/systems/data/h100_sxm/gemm/vllm/1.0/..\\..\\gemm_perf.parquet",
        "aisimulate_core/systems/data/h100_sxm/gemm/vllm/1.0/.gemm_perf.parquet",
        "aisimulate_core/systems/data/h100_sxm/gemm/vllm/1.0/a b_perf.parquet",
    ],
)
def test_no_name_in_a_wheel_leads_out_of_its_place(tmp_path: Path, name: str) -> None:
    """A name that is no place of a table is not written; one with a table's place at its end is written there alone."""
    archive = wheel(tmp_path, {name: PARQUET, f"{ABOUT}METADATA": METADATA})
    before = {path for path in tmp_path.rglob("*") if "data" not in path.relative_to(tmp_path).parts[:1]}
    try:
        add_tables(archive)
    except PerfOptError as error:
        assert error.why and error.fix
    assert {path for path in tmp_path.rglob("*") if "data" not in path.relative_to(tmp_path).parts[:1]} == before
    assert all(name.startswith("aisimulate-0.13.0/") for name in left(tables_home()))


@pytest.mark.parametrize(
    ("files", "mode", "why"),
    [
        ({"a.py": b""}, 0, "it holds no systems/data"),
        ({TABLE: b"no Parquet"}, 0, "is no Parquet file"),
        ({TABLE: b"/etc/passwd"}, stat.S_IFLNK | 0o777, "is no regular file"),
        ({TABLE: PARQUET, f"other/{TABLE}": PARQUET}, 0, "twice"),
    ],
)
def test_a_hostile_wheel_is_refused_and_leaves_nothing(
    tmp_path: Path, files: Mapping[str, bytes], mode: int, why: str
) -> None:
    with pytest.raises(PerfOptError) as caught:
        add_tables(wheel(tmp_path, files, mode=mode))
    assert why in caught.value.why
    assert not tables_home().is_dir() or left(tables_home()) == []


def test_sizes_are_bounded_by_what_is_unpacked_not_by_what_a_header_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added_tables, "MOST_TABLE_BYTES", 1000)
    with pytest.raises(PerfOptError) as caught:
        add_tables(wheel(tmp_path, {TABLE: b"PAR1" + bytes(5000) + b"PAR1"}))
    assert "larger than 1,000 bytes" in caught.value.why
    monkeypatch.setattr(added_tables, "MOST_BYTES", 30)
    more = {TABLE.replace("vllm", engine): PARQUET for engine in ("vllm", "sglang")}
    with pytest.raises(PerfOptError, match="No tables were taken"):
        add_tables(wheel(tmp_path, more))
    assert left(tables_home()) == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"no archive at all", None])
def test_a_damaged_archive_is_an_error_that_names_it(tmp_path: Path, damage: bytes | None) -> None:
    path = wheel(tmp_path)
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(PerfOptError) as caught:
        add_tables(path)
    assert path.name in caught.value.what


def test_a_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(PARQUET)
    place = tmp_path / "mine" / "h100_sxm/gemm/vllm/1.0/gemm_perf.parquet"
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "secret")
    with pytest.raises(PerfOptError) as caught:
        add_tables(tmp_path / "mine")
    assert "leads out of the folder" in caught.value.why


def test_a_changed_list_is_refused_by_its_seal(tmp_path: Path) -> None:
    added = add_tables(wheel(tmp_path))
    manifest = added.folder / "tables.json"
    manifest.write_text(manifest.read_text().replace("Apache-2.0", "Apache-3.0"))
    with pytest.raises(PerfOptError, match=r"tables\.json"):
        table_sets.added_sets()


def test_a_table_that_is_no_parquet_inside_is_an_error_that_names_it(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="reads Parquet; comes with the extra `kernels`")
    from llm_perf_opt.timing.kernels.tables import read_rows

    add_tables(wheel(tmp_path))
    with pytest.raises(PerfOptError, match=r"gemm_perf\.parquet of h100_sxm cannot be read"):
        read_rows(list_tables()[0], ("m",))


def test_the_folder_that_is_named_comes_first_and_without_it_the_last_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = add_tables(wheel(tmp_path))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="There are no kernel tables"):
        active_set()
    installed = table_sets.installed_sets()
    if installed:
        monkeypatch.setenv(VARIABLE, installed[0].key)
        assert data_folder() == installed[0].folder
    monkeypatch.delenv(VARIABLE)
    assert active_set() == added


def test_every_report_of_measured_kernels_says_version_and_licence() -> None:
    pytest.importorskip("duckdb", reason="reads Parquet; comes with the extra `kernels`")
    if not table_sets.installed_sets():
        pytest.skip("needs the extra kernels")
    rates = table_rates(DataSheetRates(find_device("h100-sxm"), Execution.FUSED), "vllm")
    assert isinstance(rates, KernelTableRates)
    chosen = active_set()
    assert chosen is not None
    notes = " ".join(note.text for note in rates.notes())
    assert f"{chosen.name} {chosen.version} (Apache-2.0)" in notes


def test_the_manifest_says_where_tables_came_from(tmp_path: Path) -> None:
    added = add_tables(wheel(tmp_path))
    said = json.loads((added.folder / "tables.json").read_text())
    assert said["source"] == "aisimulate-0.13.0-py3-none-any.whl"
    assert (said["tables"], said["size_bytes"]) == (1, len(PARQUET))
    assert os.sep not in said["source"]
