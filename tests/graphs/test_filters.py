"""Pictures of a part: what is left out is counted, stands in boxes of its own, and is never lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import Box, GraphView, Metric, inclusive, own, total
from llm_perf_opt.graphs.boxes import sum_of
from llm_perf_opt.graphs.conservation import check_conservation
from llm_perf_opt.graphs.view import group
from tests.costs.small_run import small_run
from tests.examples import examples
from tests.graphs.made_decoder import decoder
from tests.graphs.made_runs import PROJECT_FLOPS, box_at, boxes
from tests.graphs.random_runs import graphs


def left_out(view: GraphView) -> list[Box]:
    return [box for box in boxes(view) if box.is_left_out]


def shown(view: GraphView) -> list[str]:
    return [box.path or "(root)" for box in boxes(view) if not box.is_left_out]


def test_chosen_boxes_stay_with_those_around_them() -> None:
    view = group(decoder(), only="attention,head")
    assert shown(view) == ["(root)", "layers.[0-2]", "layers.[0-2].attn", "head"]


def test_what_is_left_out_stands_by_stage_in_the_box_around_it() -> None:
    view = group(decoder(), only="attention,head")
    assert [(box.label, box.calls, box.figures.flops) for box in left_out(view)] == [
        ("left out: 3 modules of prefill", 3, 3 * PROJECT_FLOPS),  # q, in each attention
        ("left out: 12 modules of prefill", 12, 9 * PROJECT_FLOPS),  # norm, mlp, up, act in each layer
        ("left out: 2 modules of vision", 2, PROJECT_FLOPS),  # the tower and its matmul
    ]
    assert set(left_out(view)[2].members) == {"tower", "tower.proj"}


def test_the_caption_counts_what_is_left_out() -> None:
    caption = group(decoder(), only="attention,head").caption
    assert caption[0] == "8 modules and 8 of 25 calls in 4 boxes, 4 of them shown."
    assert caption[1] == (  # 13 of 14 matmuls
        "Only attention, head, with the boxes around it. Left out: 17 modules, 17 calls, 92.9 % of FLOPs; "
        "they are in the boxes named left out."
    )


def test_nothing_left_out_is_said_too() -> None:
    caption = group(decoder(), min_share="0%").caption
    assert caption[1] == "Only at least 0 % of FLOPs: that is everything, so nothing is left out."


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize(
    "asked",
    [{"only": "linear"}, {"only": "norm,layers.*.mlp"}, {"stage": "vision"}, {"stage": "prefill", "only": "heavy"}],
    ids=str,
)
def test_every_metric_adds_up_to_that_of_the_whole_picture(asked: dict[str, str], metric: Metric) -> None:
    graph = decoder()
    whole, part = group(graph), group(graph, **asked)
    assert check_conservation(part, graph) == []
    assert total(part, metric) == total(whole, metric)
    assert sum(own(box, metric) or 0 for box in boxes(part)) == total(whole, metric)
    for box in boxes(part):
        if not box.is_left_out:
            assert inclusive(box, metric) == inclusive(box_at(whole, box.path), metric)


def test_a_share_of_the_metric_that_was_chosen() -> None:
    assert shown(group(decoder(), min_share=3 / 14)) == [
        "(root)", "layers.[0-2]", "layers.[0-2].norm", "layers.[0-2].attn", "layers.[0-2].attn.q", "layers.[0-2].mlp",
        "layers.[0-2].mlp.up", "layers.[0-2].mlp.act",
    ]  # fmt: skip
    by_parameters = group(decoder(), min_share="20%", metric="parameters")  # 8 weights of 64, 3 of them in each family
    assert shown(by_parameters) == [
        "(root)", "layers.[0-2]", "layers.[0-2].attn", "layers.[0-2].attn.q", "layers.[0-2].mlp", "layers.[0-2].mlp.up",
    ]  # fmt: skip


@pytest.mark.parametrize("share", ["5", "x%", "-1%", "101%", 1.5, "nan%"])
def test_a_share_is_a_percentage(share: str | float) -> None:
    with pytest.raises(UsageError, match="is not a share"):
        group(decoder(), min_share=share)


def test_a_share_of_what_is_not_known_is_refused() -> None:
    from dataclasses import replace

    graph = decoder()
    bare = replace(graph, ops=None, op_kinds=(), storages=None, calls=None, op_call_counts={}, coverage=None)
    with pytest.raises(UsageError, match="FLOPs of this trace are unknown"):
        group(bare, min_share="1%")
    assert group(bare, min_share="10%", metric="calls").roots


def test_words_that_choose_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="names no module with 'Conv2d'"):
        group(decoder(), only="linear,Conv2d")
    with pytest.raises(UsageError, match="names no module with 'conv'"):
        group(decoder(), only="conv")
    assert "head" in shown(group(decoder(), only="linear,conv"))  # a list of families serves every model
    with pytest.raises(UsageError, match="There is no stage 'vison'"):
        group(decoder(), stage="vison")
    with pytest.raises(UsageError, match="Nothing in this picture"):
        group(decoder(), only="norm", stage="vision")


def test_a_family_is_shown_whole_if_one_of_its_members_is_chosen() -> None:
    assert shown(group(decoder(), only="layers.1.norm")) == ["(root)", "layers.[0-2]", "layers.[0-2].norm"]


def test_arrows_pass_through_what_is_left_out() -> None:
    whole, part = group(decoder()), group(decoder(), only="norm,mlp")
    (layer,) = [box for box in boxes(part) if box.path == "layers.[0-2]"]
    names = {child.id: child.path for child in layer.children}
    ways = {(names[arrow.source], names[arrow.target], arrow.calls) for arrow in layer.arrows}
    assert ways == {("layers.[0-2].norm", "layers.[0-2].mlp", 3)}  # norm -> attn -> mlp
    assert len(box_at(whole, "layers.[0-2]").arrows) == 2


def test_boxes_left_out_make_room_for_others() -> None:
    graph = decoder()
    assert "layers.[0-2].attn.q" not in [box.path for box in group(graph, max_boxes=7).visible()]
    assert "layers.[0-2].attn.q" in [box.path for box in group(graph, max_boxes=8, only="layers.*.attn.q").visible()]


def test_a_filter_inside_a_focus() -> None:
    view = group(decoder(), focus="layers.1", only="linear")
    assert shown(view) == ["layers.1", "layers.1.attn", "layers.1.attn.q", "layers.1.mlp", "layers.1.mlp.up"]
    assert sum_of([box.own for box in boxes(view)]).flops == 4 * PROJECT_FLOPS


@given(graph=graphs(), place=st.integers(0, 100), share=st.floats(0, 1))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_ran_a_filter_conserves_it(graph: CallGraph, place: int, share: float) -> None:
    classes = sorted({graph.module_types[path] for path in graph.call_counts})
    for asked in ({"only": classes[place % len(classes)]}, {"min_share": share, "metric": "calls"}):
        assert check_conservation(group(graph, **asked), graph) == []


def test_a_small_run_with_two_stages() -> None:
    graph = small_run()
    for stage in group(graph).stages:
        if any(box.stage == stage for box in boxes(group(graph))):
            view = group(graph, stage=stage)
            assert {box.stage for box in left_out(view)} <= set(view.stages) - {stage}
