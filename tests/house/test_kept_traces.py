"""A trace that is kept is the one that would be made, and a changed source never finds an old one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.json_writer import to_json_dict
from tests import kept_traces
from tests.end_to_end.deepseek_ocr_runs import trace_anew, workload


@pytest.fixture
def package(tmp_path: Path) -> Path:
    copied = tmp_path / "llm_perf_opt"
    shutil.copytree(kept_traces.PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


@pytest.mark.parametrize(
    "name",
    ["weightless/ghost.py", "ops/table.py", "core/units.py", "models/deepseek_ocr/adapter.py", "tracing/origin.py"],
)
def test_a_changed_source_misses(package: Path, name: str) -> None:
    before = kept_traces.source_digest(package)
    assert before == kept_traces.source_digest(package)
    file = package / name
    file.write_text(file.read_text("utf-8") + "\n# changed\n", "utf-8")
    assert kept_traces.source_digest(package) != before


def test_new_and_removed_sources_miss_and_what_only_shows_a_trace_does_not(package: Path) -> None:
    before = kept_traces.source_digest(package)
    (package / "formats" / "new_report.py").write_text("")
    assert kept_traces.source_digest(package) == before
    (package / "ops" / "new_op.py").write_text("")
    assert kept_traces.source_digest(package) != before
    (package / "ops" / "new_op.py").unlink()
    assert kept_traces.source_digest(package) == before


def test_a_kept_trace_is_the_one_that_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kept_traces.VARIABLE, str(tmp_path))
    kept_traces._folder.cache_clear()
    made: list[CallGraph] = []

    def make() -> CallGraph:
        made.append(trace_anew(workload("tiny"), "decode"))
        return made[-1]

    try:
        first, again = (kept_traces.kept_graph("tiny, decode", make) for _ in range(2))
    finally:
        kept_traces._folder.cache_clear()
    assert len(made) == 1
    assert first is made[0]
    assert to_json_dict(again, with_events=True) == to_json_dict(first, with_events=True)
