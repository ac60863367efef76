"""The faults that show what a gate finds can all still be planted, and lie in every room."""

from __future__ import annotations

from pathlib import Path

from scripts.plant_faults import problems
from scripts.planted.finders import affinity, chunks
from scripts.planted.scratch import read_faults

ROOT = Path(__file__).parents[2]


def test_every_fault_can_be_planted_once() -> None:
    assert problems() == []


def test_a_fault_whose_text_is_gone_is_named(tmp_path: Path) -> None:
    first = read_faults()[0]
    file = tmp_path / first.file
    file.parent.mkdir(parents=True)
    file.write_text(2 * first.before, "utf-8")
    assert first.problem(tmp_path) == f"fault 1: {first.file} holds its text 2 times"
    assert first.problem(tmp_path / "nowhere") == f"fault 1: {first.file} holds its text 0 times"


def test_forty_faults_lie_in_every_room() -> None:
    faults = read_faults()
    source = ROOT / "src" / "llm_perf_opt"
    rooms = {path.name for path in source.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert len(faults) == 40
    names = {"runners", "patches", "profiling"}  # of earlier scripts: nothing is worked out in them
    assert rooms - names | {"docs"} == {fault.room.split("/")[0] for fault in faults}
    assert all(fault.file.startswith(f"src/llm_perf_opt/{fault.room}/") for fault in faults if fault.room != "docs")


def test_who_is_asked_first_is_there() -> None:
    for fault in read_faults():
        file, _, test = fault.ask_first.partition("::")
        if file.startswith("tests/"):
            assert f"def {test.partition('[')[0]}" in (ROOT / file).read_text("utf-8"), fault.ask_first


def test_tests_of_the_same_name_and_room_come_first() -> None:
    changed = "src/llm_perf_opt/timing/efficiency.py"
    assert affinity("tests/timing/test_efficiency.py", changed) == 2
    assert affinity("tests/timing/test_predict.py", changed) == 1
    assert affinity("tests/core/test_units.py", changed) == 0


def test_chunks_double_up_to_a_limit_and_lose_no_file() -> None:
    files = [str(number) for number in range(200)]
    sizes = [len(chunk) for chunk in chunks(files)]
    assert sizes == [3, 6, 12, 24, 48, 48, 48, 11]
    assert [file for chunk in chunks(files) for file in chunk] == files
