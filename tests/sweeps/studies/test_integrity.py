"""Results that were damaged are never answered from, and never taken for finished; one run writes a study at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.study import study
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.run_lock import LOCK_FILE, locked_folder
from llm_perf_opt.sweeps.studies.one_writer import run_local
from llm_perf_opt.sweeps.studies.parquet_store import MANIFEST, read_manifest
from llm_perf_opt.sweeps.studies.sql import opened_files
from tests.sweeps.studies.made_studies import tiny_study, written

pytest.importorskip("pyarrow", reason="the extra `study` is not installed")

ROOT = Path(__file__).parents[3]
ALL = "select * from points order by inputs_hash, global_batch, asked_context"
SMALL: dict[str, Any] = {"deployments": {"plan": ["one device"]}, "gpus": ["h100-sxm"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two models, a file for each; in a folder whose name would be a pattern."""
    place = tmp_path_factory.mktemp("made")
    study(tiny_study(place, 2, **SMALL), out=place / "res[1]", workers=1)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """The results alone: where models lie is part of what a point rests on."""
    shutil.copytree(made / "res[1]", tmp_path / "res[1]")
    return tmp_path


def parts(place: Path) -> list[Path]:
    return sorted((place / "res[1]").rglob("part-*.parquet"))


def again(place: Path, made: Path, **changed: Any) -> Any:
    return study(tiny_study(made, 2, **{**SMALL, **changed}), out=place / "res[1]", workers=1)


def test_a_folder_named_like_a_pattern_is_asked_and_resumed(place: Path, made: Path) -> None:
    assert len(parts(place)) == 2
    assert lpo.ask(place / "res[1]", sql="select count(*) from points").rows == ((2,),)
    assert again(place, made).computed == 0


def flipped(raw: bytes) -> bytes:
    return raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda raw: raw[:-9], lambda raw: b"", lambda raw: b"PAR1 nothing PAR1"],
    ids=["one bit", "truncated", "empty", "foreign"],
)
def test_a_damaged_part_is_refused_by_ask_and_page_and_computed_again_by_study(
    place: Path, made: Path, damage: Any
) -> None:
    before = lpo.ask(place / "res[1]", sql=ALL).to_arrow()
    part = parts(place)[0]
    part.write_bytes(damage(part.read_bytes()))
    for question in ({"question": "summary"}, {"sql": ALL}):
        with pytest.raises(PerfOptError, match="is not a finished part"):
            lpo.ask(place / "res[1]", **question)
    with pytest.raises(PerfOptError, match="run the same study again"):
        lpo.study_page(place / "res[1]", place / "page.html")
    found = again(place, made)
    assert (found.computed, found.reused, len(found.damaged)) == (1, 1, 1)
    assert part.name in found.damaged[0]
    assert any(note.text.startswith("Computed again") for note in found.report().notes)
    assert lpo.ask(place / "res[1]", sql=ALL).to_arrow().equals(before)


def test_a_whole_part_under_the_name_of_another_is_foreign(place: Path, made: Path) -> None:
    first, second = parts(place)
    digest = second.name.split("-")[4]
    renamed = "-".join([*first.name.split("-")[:4], digest])
    shutil.copy(second, first.with_name(renamed if renamed.endswith(".parquet") else f"{renamed}.parquet"))
    first.unlink()
    found = again(place, made)
    assert found.computed == 1
    assert "written as another part" in found.damaged[0]


def test_the_manifest_has_digest_rows_and_columns_of_each_part_and_breaks_with_one_byte(
    place: Path, made: Path
) -> None:
    import hashlib

    import pyarrow.parquet

    file = place / "res[1]/study=tiny" / MANIFEST
    manifest = read_manifest(file.read_bytes())
    for part in manifest.parts.values():
        raw = (file.parent / part.file).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == part.sha256
        assert pyarrow.parquet.ParquetFile(file.parent / part.file).metadata.num_rows == part.rows == 1
    assert sum(part.rows for part in manifest.parts.values()) == manifest.points == 2
    good = file.read_bytes()
    for bad in (
        good[:-20],
        good.replace(b'"points":2', b'"points":3'),
        b"{}",
        b"",
        b"[1, 2]",
        b"\xff\xfe",
        b"{" * 10**5,
    ):
        file.write_bytes(bad)
        with pytest.raises(PerfOptError, match="run the same study again"):
            lpo.ask(place / "res[1]", "summary")
    assert again(place, made).computed == 0, "parts are known by their names"
    assert lpo.ask(place / "res[1]", sql="select count(*) from points").rows == ((2,),)


def test_the_manifest_lists_its_parts_in_the_order_of_the_study_whoever_finishes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(work: Any, tasks: Any, **_: object) -> Any:
        return ((task, work(task)) for task in reversed(tasks))

    monkeypatch.setattr("llm_perf_opt.sweeps.studies.study_run.run_local", backwards)
    study(tiny_study(tmp_path, 2, **SMALL), out=tmp_path / "results", workers=1)
    manifest = read_manifest((tmp_path / "results/study=tiny" / MANIFEST).read_bytes())
    assert list(manifest.parts) == manifest.stems
    assert [part.file.split("/")[0] for part in manifest.parts.values()] == ["model=m00", "model=m01"]


def test_a_run_of_another_declaration_leaves_the_files_of_the_first_in_place(place: Path, made: Path) -> None:
    before = {path: path.read_bytes() for path in parts(place)}
    other = again(place, made, gpus=["l4"])
    assert (other.computed, other.other_files) == (2, 2)
    assert {path: path.read_bytes() for path in parts(place) if path in before} == before
    assert lpo.ask(place / "res[1]", sql="select distinct device from points").rows == (("l4",),)
    assert again(place, made).computed == 0, "nothing of the first declaration was lost"


def test_a_second_study_of_that_name_is_refused_with_who_writes(place: Path, made: Path) -> None:
    held = locked_folder(place / "res[1]/study=tiny", fix="wait")
    with held, pytest.raises(PerfOptError, match=f"process {os.getpid()} holds its lock"):
        again(place, made)
    assert again(place, made).computed == 0


def _wait_for_lock(folder: Path) -> None:
    with locked_folder(folder, fix="wait"):
        os.kill(os.getpid(), signal.SIGKILL)


# In a process that had no other children: what one query held at most is then what they held.
ASKED = """
import json, resource, sys
import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError
try:
    said = str(lpo.ask(sys.argv[1], sql=sys.argv[2], max_seconds=float(sys.argv[3])).rows)
except PerfOptError as error:
    said = str(error)
print(json.dumps([said, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))
"""


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    killed = multiprocessing.get_context("fork").Process(target=_wait_for_lock, args=(tmp_path,))
    killed.start()
    killed.join()
    assert (tmp_path / LOCK_FILE).read_text().startswith(f"{killed.pid} on ")
    with locked_folder(tmp_path, fix="wait"):
        pass


SLEEPERS = """
import sys, time
from pathlib import Path
from llm_perf_opt.sweeps.studies.one_writer import run_local
from tests.sweeps.studies.test_integrity import note_and_sleep
if __name__ == "__main__":
    list(run_local(note_and_sleep, [sys.argv[1]] * 2, workers=2, task_memory_bytes=1))
"""


def note_and_sleep(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def test_workers_end_when_their_study_is_killed(tmp_path: Path) -> None:
    script, marks = tmp_path / "sleepers.py", tmp_path / "marks"
    marks.mkdir()
    script.write_text(SLEEPERS)
    running = subprocess.Popen([sys.executable, str(script), str(marks)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    end = time.monotonic() + 300
    while len(list(marks.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    workers = [int(mark.name) for mark in marks.iterdir()]
    assert len(workers) == 2
    running.kill()
    running.wait()
    while any(map(_lives, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(_lives, workers))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("address", ["foo://there", "s3://", "sftp-no://x"])
def test_an_address_that_nobody_knows_is_refused_with_what_to_do(address: str, tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="fix: "):
        lpo.ask(address)
    with pytest.raises(PerfOptError, match="fix: "):
        study(written(tmp_path, models=["deepseek-ocr-tiny"]), out=address, workers=1)


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to '{part}'",
        "with t as (copy (select 1) to '{part}' (format parquet, use_tmp_file false)) select * from t",
        "with t as (insert into points values (1) returning *) select * from t",
        "attach '{folder}/new.db'",
        "set memory_limit = '20GB'",
        "select 1; drop view points",
        "create table t as select 1",
        "install httpfs",
        "pragma database_list",
        "select * from read_text('/etc/hostname')",
        "select * from read_parquet('{folder}/**/*.parquet')",
        "select * from glob('/**')",
        "from enable_logging(storage='file')",
        "",
        "select \ud800",
    ],
)
def test_sql_can_only_select_from_the_points(place: Path, sql: str) -> None:
    folder = place / "res[1]"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError):
        lpo.ask(folder, sql=sql.replace("{part}", str(parts(place)[0])).replace("{folder}", str(folder)))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_words_that_write_may_be_texts_and_quoted_names(place: Path) -> None:
    assert lpo.ask(place / "res[1]", sql="select 'copy' as \"update\" from points limit 1").rows == (("copy",),)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select repeat('a', 2000000000)", "memory"),
        ("select list(x) from range(1000000000) t(x)", "memory"),
        ("select * from range(1000000000)", "more than 256 MiB"),
        ("select sum(a.x + b.x) from range(10000000) a(x), range(1000000) b(x)", "10 s are over"),
    ],
)
def test_sql_is_stopped_at_its_bounds(place: Path, sql: str, why: str) -> None:
    words = [sys.executable, "-c", ASKED, str(place / "res[1]"), sql, "10" if "over" in why else "120"]
    said, held = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert why in said
    assert held < 2**30 + 2**29, "1 GiB above an idle process"


def test_a_part_that_the_database_cannot_read_is_refused(tmp_path: Path) -> None:
    """As of one that was written to deceive: its digest fits, and the columns that pyarrow finds do."""
    (tmp_path / "part.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(UsageError, match="not tables that can be read"):
        opened_files([str(tmp_path / "part.parquet")], tmp_path).__enter__()


def test_a_model_whose_name_no_file_can_have_fails_in_its_own_rows(tmp_path: Path) -> None:
    file = tiny_study(tmp_path, 1, **SMALL)
    file.write_text(file.read_text().replace('"models/*"', f'"models/m00", "{"a/" * 3000}x"'))
    found = study(file, out=tmp_path / "results", workers=1)
    assert (found.points, found.failed) == (2, 1)


def test_what_is_no_number_is_unknown_on_the_page_and_a_text_in_a_table(place: Path) -> None:
    from llm_perf_opt.formats.html_format import _short

    assert [_short(value) for value in (float("nan"), float("inf"), 1.23456789)] == [None, None, 1.23457]
    answer = lpo.ask(place / "res[1]", sql="select 'nan'::double as tpot_s, [1, 2] as several, 'inf'::double as x")
    assert answer.rows == (("nan", "[1, 2]", "inf"),)
    for suffix in ("json", "html", "csv", "md", "txt"):
        assert answer.save(place / f"answer.{suffix}").stat().st_size
    assert json.loads((place / "answer.json").read_text())


def test_tasks_of_one_process_still_run_in_order() -> None:
    assert list(run_local(len, ["a", "bb"], workers=1, task_memory_bytes=1)) == [("a", 1), ("bb", 2)]
