from __future__ import annotations

import pytest

from llm_perf_opt.comparisons import Compared, compare, comparison_report, match_phases
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import label_of, path_pattern
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Level, Report, Table
from tests.comparisons.made_runs import WIDTH, MadeRun
from tests.comparisons.test_run_causes import moe_run
from tests.slowness import timed


def table(report: Report, title: str) -> Table:
    return next(found for found in report.tables if found.title == title)


def report_of(left: CallGraph, right: CallGraph, rows: int = 25) -> Report:
    return comparison_report(Compared(left="old", right="new", comparisons=(compare(left, right),)), rows)


def test_runs_that_agree_have_stages_and_no_causes() -> None:
    report = report_of(moe_run([2, 2, 2, 2]), moe_run([2, 2, 2, 2]))
    assert [found.title for found in report.tables] == ["Stages"]
    assert report.notes[-1].text == "The traces agree in everything that both of them record."


def test_changes_by_cause_add_up_to_those_of_the_stages() -> None:
    left, right = moe_run([2, 2, 2, 2], workload={"mode": "a"}), moe_run([5, 4, 4, 3], workload={"mode": "b"})
    report = report_of(left, right)
    stages, causes = table(report, "Stages"), table(report, "Why they differ")
    names = [column.name for column in stages.columns]
    before, after = stages.footer[names.index("FLOPs A")], stages.footer[names.index("FLOPs B")]
    assert (before, after) == (2 * 8 * WIDTH * WIDTH, 2 * 16 * WIDTH * WIDTH)
    change = [column.name for column in causes.columns].index("FLOPs B - A")
    assert sum(row[change] for row in causes.rows) == causes.footer[change] == after - before  # type: ignore[misc, operator]


def test_unexplained_families_come_first_and_the_rest_is_counted() -> None:
    report = report_of(moe_run([2, 2, 2, 2]), moe_run([5, 3, 0, 0], with_extra_op=True), rows=1)
    rows = table(report, "Differences by family of modules").rows
    assert [row[0] for row in rows] == ["unexplained"]
    texts = [note.text for note in report.notes]
    assert any("more families of modules are not listed" in text for text in texts)
    assert [note.level for note in report.notes if "Unexplained" in note.text] == [Level.WARNING]


def test_experts_are_one_row_with_their_range() -> None:
    rows = table(report_of(moe_run([2, 2, 2, 2]), moe_run([4, 3, 1, 0])), "Differences by family of modules").rows
    assert "moe.experts.[0-3].up" in {row[2] for row in rows}


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        ([""], "(root)"),
        (["a.0.b", "a.1.b", "a.2.b"], "a.[0-2].b"),
        (["a.0", "a.2", "a.3"], "a.[0,2,3]"),
        (["a.7"], "a.7"),
        (["a.expert_0.w", "a.expert_1.w"], "a.expert_[0-1].w"),
        (["a.fc1"], "a.fc1"),
        ([f"a.{2 * index}" for index in range(9)], "a.[0,2,4,...,16]"),
    ],
)
def test_a_family_has_one_label(paths: list[str], label: str) -> None:
    assert len({path_pattern(path) for path in paths}) == 1
    assert (label_of(paths, 4) or "(root)") == label


def phase(name: str, *, decode_steps: int = 1) -> CallGraph:
    run = MadeRun({"": "Net"})
    run.leaf("", (1, WIDTH))
    steps = decode_steps if name == "decode" else 0
    return run.graph(phase=name, workload={"decode_steps": decode_steps}, runtime={"decode_steps": steps})


def test_phases_are_matched_by_name() -> None:
    matched = match_phases([phase("prefill"), phase("decode")], [phase("decode"), phase("prefill")])
    assert [(left.phase, right.phase) for left, right in matched.pairs] == [("prefill",) * 2, ("decode",) * 2]
    assert matched.lone == ()
    assert len(match_phases([phase("a"), phase("b")], [phase("a"), phase("b")], ["b"]).pairs) == 1


def test_a_decode_that_was_not_asked_for_has_a_cause() -> None:
    both, alone = [phase("prefill"), phase("decode")], [phase("prefill", decode_steps=0)]
    assert [lone.cause for lone in match_phases(both, alone).lone] == ["decode length"]
    lost = match_phases(both, [phase("prefill")])
    assert [(lone.side, lone.cause) for lone in lost.lone] == [("A", None)]
    compared = Compared(left="a", right="b", comparisons=(), lone=lost.lone)
    assert compared.unexplained == 1


def test_two_files_are_compared_whatever_their_phases() -> None:
    assert len(match_phases([phase("prefill")], [phase("decode")]).pairs) == 1


def test_phases_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="no phase in common"):
        match_phases([phase("a"), phase("b")], [phase("c")])
    with pytest.raises(UsageError, match="Neither run has a phase 'x'"):
        match_phases([phase("a")], [phase("a")], ["x"])


def big_run(shift: int) -> CallGraph:
    """100 mixtures of 60 experts, each with three linear maps: 24,202 modules."""
    layers, experts = 100, 60
    parts = ("gate", "up", "down")
    classes = {"": "Net", "layers": "ModuleList"}
    for layer in range(layers):
        classes |= {f"layers.{layer}": "Moe", f"layers.{layer}.experts": "ModuleList"}
        for expert in range(experts):
            path = f"layers.{layer}.experts.{expert}"
            classes |= {path: "Mlp", **{f"{path}.{part}": "Linear" for part in parts}}
    run = MadeRun({})
    for path, name in classes.items():
        run.builder.module(path, name, (), {})
    with run.call("", (99, WIDTH)):
        for layer in range(layers):
            with run.call(f"layers.{layer}", (99, WIDTH)):
                for expert in range(experts):
                    rows = 1 + (expert + shift) % 3
                    path = f"layers.{layer}.experts.{expert}"
                    with run.call(path, (rows, WIDTH)):
                        for part in parts:
                            with run.call(f"{path}.{part}", (rows, WIDTH)):
                                run.mm(rows)
    return run.graph()


@pytest.mark.slow
def test_twenty_four_thousand_modules_take_seconds() -> None:
    left, right = big_run(0), big_run(1)
    comparison = timed(10, lambda: compare(left, right))
    report = timed(10, lambda: comparison_report(Compared(left="a", right="b", comparisons=(comparison,))))
    assert len(comparison.findings) > 60_000
    assert {finding.cause for finding in comparison.findings} == {"routing"}
    assert len(table(report, "Differences by family of modules").rows) == 4
