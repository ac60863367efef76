"""The gates: what they choose, that five landings run everything, that nothing is skipped silently, and forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from scripts.gate import durations, pytest_plugin, skips
from scripts.gate.import_graph import ImportGraph, module_of
from scripts.gate.parts import Part, run_parts, table_of
from scripts.gate.selection import (
    SLICES,
    Plan,
    choose,
    distances_of_commands,
    distances_of_tests,
    read_plan,
    slice_of,
    write_plan,
)
from scripts.gate.warm_python import CPU_SECONDS, warm_python

ROOT = Path(__file__).parents[2]
COSTS = {f"tests/a/test_{number}.py::test": 1.0 + number for number in range(100)}


def test_five_landings_run_every_expensive_test() -> None:
    ran: set[str] = set()
    for number in range(44, 44 + SLICES):
        choice = choose(COSTS, {}, number=number, budget_s=0)
        assert not choice.reached
        assert set(choice.due) | set(choice.left) == set(COSTS)
        ran.update(choice.due)
    assert ran == set(COSTS)


def test_what_a_change_reaches_runs_the_nearest_first_as_far_as_the_time_allows() -> None:
    due = {name for name in COSTS if slice_of(name) == 0}
    far, near = [name for name in COSTS if name not in due][:2]
    choice = choose({far: 5.0, near: 5.0}, {far: 7, near: 1}, number=0, budget_s=6)
    assert (choice.reached, choice.left) == ((near,), (far,))


def test_a_page_command_is_as_near_as_its_verb() -> None:
    reached = {"src/llm_perf_opt/cli/trace_command.py": 2}
    lines = ["llm-perf-opt trace a --out run", "llm-perf-opt graph run", "dot -V"]
    assert distances_of_commands(lines, reached) == {lines[0]: 2}


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan(left_out=frozenset({"a::b"}), record="r", notes=("n",), took={"ruff": 1.5})
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.fixture
def small_tree(tmp_path: Path) -> ImportGraph:
    for name, text in {
        "src/llm_perf_opt/__init__.py": "",
        "src/llm_perf_opt/core/units.py": "",
        "src/llm_perf_opt/core/peaks.toml": "",
        "src/llm_perf_opt/core/plugins.py": 'TABLE = {"x": "llm_perf_opt.models.made:Made"}',
        "src/llm_perf_opt/models/made.py": "def f():\n    from llm_perf_opt.core import units",
        "tests/models/test_made.py": "import llm_perf_opt.models.made",
        "tests/core/test_plugins.py": "from llm_perf_opt.core.plugins import TABLE",
        "tests/core/test_other.py": "import json",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return ImportGraph(tmp_path)


def test_a_change_reaches_its_importers_inside_functions_and_by_names_in_quotes(small_tree: ImportGraph) -> None:
    reached = small_tree.distances(["src/llm_perf_opt/core/units.py"])
    assert reached == {
        "src/llm_perf_opt/core/units.py": 0,
        "src/llm_perf_opt/models/made.py": 1,
        "src/llm_perf_opt/core/plugins.py": 2,
        "tests/models/test_made.py": 2,
        "tests/core/test_plugins.py": 3,
    }


def test_a_data_file_reaches_what_its_folder_reaches(small_tree: ImportGraph) -> None:
    reached = small_tree.distances(["src/llm_perf_opt/core/peaks.toml"])
    assert reached["src/llm_perf_opt/core/units.py"] == reached["src/llm_perf_opt/core/plugins.py"] == 0
    assert (
        small_tree.distances(["src/llm_perf_opt/models/catalogue/A--Model-1/config.json"])["tests/models/test_made.py"]
        == 1
    )


def test_a_test_whose_parameter_names_a_changed_data_file_is_nearest() -> None:
    nodes = [f"tests/a.py::test_built[{name}]" for name in ("A/Model-1", "A/Model-2")]
    changed = ["src/llm_perf_opt/models/catalogue/A--Model-1/config.json"]
    assert distances_of_tests(nodes, {"tests/a.py": 3}, changed) == {nodes[0]: 0, nodes[1]: 3}


def test_a_page_reaches_the_tests_of_what_stands_on_pages() -> None:
    reached = ImportGraph(ROOT).distances(["docs/reference/cli/devices.md"])
    assert reached["tests/house/test_cli_pages.py"] == 1
    assert "tests/ops/test_matrix_prices.py" not in reached


def test_every_test_file_is_in_the_graph_by_its_module_name() -> None:
    assert module_of("tests/house/test_gate.py") == "tests.house.test_gate"
    assert module_of("src/llm_perf_opt/core/__init__.py") == "llm_perf_opt.core"


def test_parts_run_two_at_a_time_and_are_listed_slowest_first(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(1)"]
    began = time.monotonic()
    times = run_parts([Part(name=name, command=sleep, seconds=1) for name in ("a", "b")], tmp_path, {**os.environ})
    assert time.monotonic() - began < sum(times.took.values())
    assert not times.failed
    assert [line.split()[-1] for line in table_of({"short": 1.0, "long": 2.0})] == ["long", "short"]


def test_a_part_that_fails_shows_its_log_and_ends_the_gate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failing = Part(name="bad", command=[sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], seconds=1)
    endless = Part(name="endless", command=["sleep", "600"], seconds=9)
    began = time.monotonic()
    with pytest.raises(SystemExit):
        run_parts([failing, endless], tmp_path, {**os.environ})
    assert time.monotonic() - began < 60
    assert "the reason" in capfd.readouterr().out
    good = Part(name="good", command=["true"], seconds=0)
    at_once = Part(name="at once", command=["false"], seconds=1)
    with pytest.raises(SystemExit):
        run_parts([at_once, good], tmp_path, {**os.environ})  # both have ended when the first is seen
    times = run_parts([failing, good], tmp_path, {**os.environ}, stops_at_failure=False)
    assert (sorted(times.took), times.failed) == (["bad", "good"], ["bad"])


def test_durations_are_kept_by_test_from_a_tenth_of_a_second_on(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    record = {"tests/a.py::x[1]": 2.0, "tests/a.py::y": 0.04, "tests/a.py::z": 0.05, "tests/b/c.py::x": 1.0}
    durations.write(tmp_path, durations.from_record(record, {"llm-perf-opt models": 3.0}, "abc"))
    kept = durations.read(tmp_path)
    assert kept.tests == {"tests/a.py::x[1]": 2.0, "tests/b/c.py::x": 1.0}
    assert kept.small == {"tests/a.py": 0.09}
    assert (kept.commit, "tests/a.py::y" in kept.tests) == ("abc", False)
    assert durations.most_expensive(kept)[0] == "all tests: 3 s of CPU; all commands: 3 s"


def test_two_workers_begin_with_what_takes_longest_and_files_stay_whole() -> None:
    names = ["long", "longer", "longest", "short", "small"]
    items = [SimpleNamespace(nodeid=f"tests/{name}.py::{number}") for name in names for number in range(2)]
    seconds = {"tests/longest.py": 90.0, "tests/longer.py": 60.0, "tests/long.py": 30.0, "tests/short.py": 1.0}
    places = pytest_plugin.places_of_files(cast("list[pytest.Item]", items), seconds)
    order = [Path(file).stem for file in sorted(places, key=places.__getitem__)]
    assert order == ["longest", "long", "short", "longer", "small"]


def test_only_named_reasons_to_skip_count_in_a_gate() -> None:
    assert skips.is_allowed("this machine has a CUDA device")
    assert not skips.is_allowed("no browser: chromedriver is missing")
    assert skips.is_allowed("There is no vLLM to replay requests with.")
    assert not skips.is_allowed("There is no vLLM to replay requests with.", is_long=True)


GATED = """
import pytest
def test_skips(): pytest.skip({reason!r})
def test_runs(): pass
"""


@pytest.mark.parametrize(
    ("reason", "failed", "code"), [("needs a GPU", (), 0), ("no browser here", (), 1), ("needs a GPU", ("ruff",), 1)]
)
def test_a_gate_fails_where_a_part_failed_or_a_test_is_skipped_for_another_reason(
    tmp_path: Path, reason: str, failed: tuple[str, ...], code: int
) -> None:
    (tmp_path / "test_it.py").write_text(GATED.format(reason=reason))
    plan = Plan(record=str(tmp_path / "record.json"), took={"ruff": 2.0}, failed=failed, notes=("slice 1",))
    write_plan(plan, tmp_path / "plan.json")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "scripts.gate.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, *words, "-c", "/dev/null", "--gate-plan", "plan.json", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "times by part, slowest first" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 passed, 1 skipped" if "GPU" in reason else "1 failed, 1 passed")
    assert ("FAILED before the tests: ruff" in done.stdout) == bool(failed)
    assert json.loads((tmp_path / "record.json").read_text()).keys() == {
        "test_it.py::test_skips",
        "test_it.py::test_runs",
    }


@pytest.fixture(scope="module")
def warm() -> Iterator[Path]:
    with warm_python(sys.executable, ("json", "no_such_module")) as folder:
        yield folder


def test_a_fork_has_the_folder_the_streams_and_the_exit_code_of_its_caller(warm: Path, tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['X'], sys.argv, sys.stdin.read()); sys.exit(7)"
    done = subprocess.run(
        [str(warm / "python"), "-c", code, "a"],
        cwd=tmp_path,
        env={**os.environ, "X": "1", CPU_SECONDS: str(tmp_path / "times")},
        input="in",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, f"{tmp_path} 1 ['-c', 'a'] in\n")
    assert float((tmp_path / "times").read_text()) < 5


def test_a_fork_runs_modules_and_files_and_prints_its_traceback(warm: Path, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("import sys\nif __name__ == '__main__': print(sys.argv[1:])\nsys.exit(1 / 0)")
    for words in (["made.py", "b"], ["-m", "made", "b"]):
        done = subprocess.run([str(warm / "python"), *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "['b']\n")
        assert "ZeroDivisionError" in done.stderr


def test_a_fork_dies_with_the_client_that_is_killed(warm: Path, tmp_path: Path) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    client = subprocess.Popen([str(warm / "python"), "-c", code], cwd=tmp_path)
    for _ in range(200):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.05)
    client.kill()
    client.wait()
    process = int((tmp_path / "pid").read_text())
    for _ in range(200):
        if not Path(f"/proc/{process}").exists():
            return
        time.sleep(0.05)
    raise AssertionError("the command went on without its client")


def test_a_client_without_a_server_starts_the_real_interpreter(tmp_path: Path) -> None:
    with warm_python(sys.executable, ("json",)) as folder:
        client = tmp_path / "python"
        client.write_text((folder / "python").read_text().replace(str(folder), str(tmp_path)))
        client.chmod(0o755)
    done = subprocess.run([str(client), "-c", "print(1)"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n")
