"""What must hold for any two traces: nothing differs from itself, and the order of the sides does not matter."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.comparisons import Comparison, compare
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.costs.stage_costs import stage_costs
from tests.comparisons.made_runs import WIDTH, MadeRun
from tests.examples import examples

PATHS = ("", "a", "a.0", "a.1", "a.0.x", "a.1.x", "b", "b.y")
CALLS = st.lists(
    st.tuples(st.sampled_from(PATHS), st.integers(0, 3), st.integers(1, 3), st.integers(0, 2)), max_size=12
)
HEADERS = st.fixed_dictionaries(
    {
        "tracer": st.sampled_from(["weightless", "hooks"]),
        "workload": st.fixed_dictionaries({}, optional={"mode": st.sampled_from("mn"), "batch": st.integers(1, 2)}),
        "runtime": st.fixed_dictionaries({}, optional={"decode_steps": st.integers(0, 2)}),
    }
)


@st.composite
def graphs(draw: st.DrawFn) -> CallGraph:
    """Calls of random modules at random depths, with random shapes and numbers of ops."""
    run = MadeRun({path: draw(st.sampled_from(["Part", "ModuleList"])) for path in PATHS})
    depth = 0
    for path, leaving, rows, ops in draw(CALLS):
        for _ in range(min(leaving, depth)):
            run.builder.leave([(run.meta((rows, WIDTH)), 0)])
            depth -= 1
        run.builder.enter(path, [(run.meta((rows, WIDTH)), 0)])
        depth += 1
        for _ in range(ops):
            run.mm(rows)
    for _ in range(depth):
        run.builder.leave([])
    return run.graph(**draw(HEADERS))


@settings(max_examples=examples(60), deadline=None)
@given(graphs())
def test_nothing_differs_from_itself(graph: CallGraph) -> None:
    assert compare(graph, graph).findings == ()


def mirrored(comparison: Comparison) -> Counter[tuple[object, ...]]:
    found = (finding.difference for finding in comparison.findings)
    causes = (finding.cause for finding in comparison.findings)
    return Counter((d.aspect, d.path, d.caller, d.right, d.left, cause) for d, cause in zip(found, causes, strict=True))


def plain(comparison: Comparison) -> Counter[tuple[object, ...]]:
    return Counter(
        (f.difference.aspect, f.difference.path, f.difference.caller, f.difference.left, f.difference.right, f.cause)
        for f in comparison.findings
    )


@settings(max_examples=examples(120), deadline=None)
@given(graphs(), graphs())
def test_swapping_the_sides_mirrors_the_findings(left: CallGraph, right: CallGraph) -> None:
    assert plain(compare(left, right)) == mirrored(compare(right, left))


@settings(max_examples=examples(60), deadline=None)
@given(graphs(), graphs())
def test_the_changes_of_all_findings_are_the_change_of_the_total(left: CallGraph, right: CallGraph) -> None:
    found = compare(left, right).findings
    before, after = stage_costs(left).total, stage_costs(right).total
    if left.ops is not None and right.ops is not None:
        assert sum(finding.difference.flops_change for finding in found) == (after.flops or 0) - (before.flops or 0)
        assert sum(finding.difference.bytes_change for finding in found) == (after.bytes_moved or 0) - (
            before.bytes_moved or 0
        )
