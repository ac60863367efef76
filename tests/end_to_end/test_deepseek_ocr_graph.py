"""The picture of DeepSeek-OCR: what must be seen in it, box by box, and that it adds up to the trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.graphs.conservation import check_conservation
from llm_perf_opt.graphs.view import group
from llm_perf_opt.weightless.routing import RandomRouting
from tests.end_to_end.deepseek_ocr_runs import facts, trace, trace_anew, workload

CROPS = [2, 3]


@cache
def traced(mode: str, phase: str, decode_steps: int = 1, seed: int | None = None) -> CallGraph:
    """With a seed the routing is random, else balanced."""
    chosen = workload(mode, CROPS, decode_steps=decode_steps)
    return trace(chosen, phase, None if seed is None else RandomRouting(seed))


@cache
def view_of(mode: str, phase: str, decode_steps: int = 1, seed: int | None = None) -> GraphView:
    return group(traced(mode, phase, decode_steps, seed))


def all_boxes(view: GraphView) -> list[Box]:
    return [box for root in view.roots for box in root.walk()]


def loops(boxes: list[Box]) -> dict[str, str]:
    """Path -> loops of the boxes that have any; a use of one instance is marked."""
    return {
        box.path: " ".join(loop.text + (" calls" if loop.over == "calls" else "") for loop in box.loops)
        for box in boxes
        if box.loops
    }


DECODER = {"model.layers.[1-11]": "for 11", "model.layers.[1-11].mlp.experts.[0-63]": "parfor 64"}
VISION = {
    "model.sam_model.blocks.[0-11]": "for 12",
    "model.sam_model.blocks.[0,1,3,4,6,7,9,10]": "for 8",
    "model.sam_model.blocks.[2,5,8,11]": "for 4",
    "model.vision_model.transformer.layers.[0-23]": "for 24",
}
TWICE = dict.fromkeys(("model.sam_model", "model.vision_model", "model.projector"), "parfor 2 calls")


def test_gundam_shows_every_loop_and_no_other() -> None:
    view = view_of("gundam", "prefill")
    assert loops(all_boxes(view)) == DECODER | VISION | TWICE
    shown = {box.path: box for box in view.visible()}
    assert len(shown) == len(view.visible()) <= 40
    stacks = {"model.sam_model.blocks.[0-11]", "model.vision_model.transformer.layers.[0-23]"}
    assert {*DECODER, *TWICE, *stacks} <= shown.keys()


def test_instances_and_calls_are_two_numbers() -> None:
    boxes = {box.path: box for box in all_boxes(view_of("gundam", "prefill"))}
    for path, instances, calls_each in (
        ("model.sam_model.blocks.[0-11]", 12, 2),
        ("model.vision_model.transformer.layers.[0-23]", 24, 2),
        ("model.layers.0", 1, 1),
        ("model.layers.[1-11]", 11, 1),
        ("model.layers.[1-11].mlp.experts.[0-63]", 11 * 64, 1),
        ("model.layers.[1-11].mlp.shared_experts", 11, 1),
    ):
        box = boxes[path]
        assert (box.instances, box.calls_per_instance) == (instances, (calls_each,)), path
        assert box.calls == instances * calls_each


def test_the_neck_is_not_grouped_and_an_expert_has_its_three_linears_once() -> None:
    view = view_of("gundam", "prefill")
    shown = {box.path: box.class_name for box in view.visible()}
    neck = {f"model.sam_model.neck.{n}": ("Conv2d", "LayerNorm2d")[n % 2] for n in range(4)}
    assert neck.items() <= shown.items()
    (experts,) = [box for box in all_boxes(view) if box.path == "model.layers.[1-11].mlp.experts.[0-63]"]
    assert [(child.class_name, child.path.rpartition(".")[2], child.loops) for child in experts.children] == [
        ("Linear", "gate_proj", ()),
        ("SiLU", "act_fn", ()),
        ("Linear", "up_proj", ()),
        ("Linear", "down_proj", ()),
    ]
    assert experts.children[0].path == "model.layers.[1-11].mlp.experts.[0-63].gate_proj"


@pytest.mark.parametrize(("mode", "phase"), [("gundam", "prefill"), ("gundam", "decode"), ("base", "prefill")])
def test_totals_are_those_of_the_trace_to_the_last_flop(mode: str, phase: str) -> None:
    view, graph = view_of(mode, phase), traced(mode, phase)
    costs = stage_costs(graph)
    total = costs.total
    assert (view.totals.flops, view.totals.bytes_moved, view.totals.parameters, view.totals.activation_bytes) == (
        total.flops,
        total.bytes_moved,
        3_336_106_240,
        total.activation_bytes,
    )
    assert check_conservation(view, graph) == []
    by_stage = dict.fromkeys(view.stages, 0)
    for box in all_boxes(view):
        by_stage[box.stage] += box.own.flops or 0
    assert by_stage == {stage.name: stage.flops for stage in costs.stages}


def test_modules_cost_what_the_released_code_costs() -> None:
    runs = {(run["workload"], run["phase"]): run for run in facts("flops.json")["runs"]}
    run = runs["gundam-2x3", "prefill"]
    boxes = {box.path: box.figures.flops for box in all_boxes(view_of("gundam", "prefill"))}
    expected = {path: sum(by_op.values()) for path, by_op in run["by_module"].items() if path in boxes}
    assert run["crops"] == CROPS
    assert {path: boxes[path] for path in expected} == expected
    assert len(expected) > 5


def test_arrows_show_the_way_of_an_image() -> None:
    (model,) = [box for box in all_boxes(view_of("gundam", "prefill")) if box.path == "model"]
    names = {child.id: child.path for child in model.children}
    assert {(names[arrow.source], names[arrow.target]): arrow.calls for arrow in model.arrows} == {
        ("model.sam_model", "model.vision_model"): 2,
        ("model.sam_model", "model.projector"): 2,
        ("model.vision_model", "model.projector"): 2,
        ("model.embed_tokens", "model.layers.0"): 1,
        ("model.projector", "model.layers.0"): 1,
        ("model.layers.0", "model.layers.[1-11]"): 1,
        ("model.layers.[1-11]", "model.norm"): 1,
    }


def test_runtime_facts_agree_with_the_structure() -> None:
    caption = view_of("gundam", "prefill").caption
    assert "Runtime: 1 image, 6 crops, decoder depth 12, which the structure confirms." in caption


def test_base_mode_has_no_parfor_on_vision() -> None:
    assert loops(all_boxes(view_of("base", "prefill"))) == DECODER | VISION


def test_decode_shows_no_vision_and_steps_in_turn() -> None:
    view = view_of("gundam", "decode", 3)
    assert loops(all_boxes(view)) == {
        "": "for 3 calls",
        "model.layers.[1-11]": "for 11",
        "model.layers.[1-11].mlp.experts.[0-63]": "parfor 6 of 64",
    }
    assert {box.stage for box in all_boxes(view)} == {"decode"}
    assert not [box.path for box in all_boxes(view) if "sam_model" in box.path or "vision_model" in box.path]
    assert any(line.startswith("These modules did not run") and "model.sam_model" in line for line in view.caption)


def test_random_routing_leaves_the_families_whole() -> None:
    view = view_of("gundam", "decode", 1, 7)
    (experts,) = [box for box in all_boxes(view) if box.path.endswith(".experts.[0-63]")]
    assert experts.path == "model.layers.[1-11].mlp.experts.[0-63]"
    assert [loop.text for loop in experts.loops] == ["parfor 6 of 64"]
    assert (experts.instances, experts.calls, experts.calls_per_instance) == (704, 66, (0, 1))


def test_a_file_with_calls_and_edges_alone_shows_the_same_families() -> None:
    """As recorded from the released code, with a routing that left other experts out in every layer."""
    record = facts("callgraph-gundam-2x3.json")["prefill"]
    view = group(CallGraph(phase="prefill", call_counts=record["call_counts"], edges=record["edges"]))
    shown = {box.path: box for box in view.visible()}
    assert len(view.visible()) <= 40
    assert {"model.sam_model.blocks.[0-11]", "model.layers.0", "model.layers.[1-11]"} <= shown.keys()
    assert [loop.text for loop in shown["model.layers.[1-11]"].loops] == ["for 11"]  # from names and counts
    assert any("no data flow" in line for line in view.caption)
    (experts,) = [box for box in all_boxes(view) if box.path == "model.layers.[1-11].mlp.experts.[0-63]"]
    assert experts.calls == sum(path.split(".")[-2:-1] == ["experts"] for path in record["call_counts"])


def test_grouping_takes_a_fraction_of_the_tracing_time() -> None:
    def cpu_seconds(action: Callable[[], object]) -> float:
        start = time.process_time()
        action()
        return time.process_time() - start

    graph = traced("gundam", "prefill")
    tracing = min(cpu_seconds(lambda: trace_anew(workload("gundam", CROPS), "prefill")) for _ in range(2))
    assert min(cpu_seconds(lambda: group(graph)) for _ in range(3)) < tracing / 3
