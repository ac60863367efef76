"""Times are optional, survive the file, and must be possible."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt.core.callgraph import (
    CallGraph,
    CallGraphBuilder,
    OpKind,
    read_callgraph,
    to_json_dict,
    write_callgraph,
)
from tests.core.callgraph.made_graphs import changed, finished, toy_graph
from tests.core.callgraph.test_json_files import SCHEMA

KIND = OpKind(name="aten::mm", inputs=(), outputs=(), arguments={"input_shapes": [[2, 4]]})


def timed_graph(*, device: bool = True) -> CallGraph:
    """The root calls `a` from 10 to 40 and `b` from 50 to 70."""
    builder = CallGraphBuilder()
    builder.module("", "Root", ("a", "b"), {})
    builder.module("a", "A", (), {})
    builder.module("b", "B", (), {})
    builder.enter("", (), 0)
    for path, start, end in (("a", 10, 40), ("b", 50, 70)):
        builder.enter(path, (), start)
        builder.timed_op(KIND, duration_ns=7, device_ns=3 if device else None)
        builder.leave((), end)
    builder.leave((), 100)
    return finished(builder, stages=[])


def test_times_survive_the_file(tmp_path: Path) -> None:
    graph = timed_graph()
    assert graph.problems() == []
    write_callgraph(graph, tmp_path / "g.json", overwrite=False)
    again = read_callgraph(tmp_path / "g.json")
    assert again.calls is not None and again.ops is not None
    assert (list(again.calls.started_ns), list(again.calls.ended_ns)) == ([0, 10, 50], [100, 40, 70])
    assert (list(again.ops.duration_ns), list(again.ops.device_ns)) == ([7, 7], [3, 3])
    jsonschema.validate(to_json_dict(graph), SCHEMA)


def test_a_graph_without_times_has_no_keys_for_them() -> None:
    document = to_json_dict(toy_graph())
    assert not {"started_ns", "ended_ns"} & document["calls"].keys()
    assert not {"duration_ns", "device_ns"} & document["ops"].keys()
    assert "device_ns" not in to_json_dict(timed_graph(device=False))["ops"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"ended_ns": [100, 9, 70]}, "call 1 ends 1 ns before it begins"),
        ({"ended_ns": [60, 40, 70]}, "call 2 ends 10 ns after its caller, call 0"),
        ({"started_ns": [0, 10, 5]}, "call 2 begins before call 1"),
        ({"started_ns": [0, 10]}, "2 times for 3 rows"),
        ({"started_ns": [], "ended_ns": [100, 40, 70]}, "and not both"),
        ({"started_ns": [0, 10, 50], "ended_ns": []}, "and not both"),
        ({"started_ns": [-1, 10, 50]}, "below 0"),
    ],
)
def test_impossible_times_are_named(columns: dict[str, list[int]], problem: str) -> None:
    assert any(problem in found for found in changed(timed_graph(), "calls", **columns).problems())


def test_ops_have_a_time_each_or_none_has() -> None:
    assert any("1 times for 2 rows" in found for found in changed(timed_graph(), "ops", duration_ns=[7]).problems())
    builder = CallGraphBuilder()
    builder.timed_op(KIND, duration_ns=1)
    builder.op(KIND, (), ())
    with pytest.raises(ValueError, match="1 of 2 ops have a time"):
        finished(builder, stages=[])


def test_calls_have_a_time_each_or_none_has() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Root", (), {})
    for time_ns in (1, None):
        builder.enter("", (), time_ns)
        builder.leave((), time_ns)
    with pytest.raises(ValueError, match="1 of 2 calls have a time"):
        finished(builder, stages=[])


def test_a_call_that_never_ended_lasts_as_long_as_what_it_called() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Root", ("a",), {})
    builder.module("a", "A", (), {})
    builder.enter("", (), 0)
    builder.enter("a", (), 5)
    builder.leave((), 9)
    graph = finished(builder, stages=[], stopped_in="")
    assert graph.problems() == []
    assert graph.calls is not None and list(graph.calls.ended_ns) == [9, 9]


def test_ops_of_which_only_the_name_is_known_are_counted_and_not_listed() -> None:
    builder = CallGraphBuilder()
    builder.module("", "Root", ("a",), {})
    builder.module("a", "A", (), {})
    builder.enter("", ())
    builder.enter("a", ())
    builder.leave(())
    builder.leave(())
    for path, name in (("a", "linear"), ("a", "linear"), ("a", "relu"), (None, "ones")):
        builder.named_op(path, name)
    graph = finished(builder, stages=[])
    assert graph.problems() == []
    assert graph.ops is None
    assert graph.op_call_counts == {"": 0, "a": 3}
    assert graph.coverage is not None and (graph.coverage.ops, graph.coverage.op_kinds) == (4, 3)
