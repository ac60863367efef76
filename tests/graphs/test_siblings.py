"""`parfor N`: repeated use of one instance, and same-class siblings that do not depend on each other."""

from __future__ import annotations

from llm_perf_opt.core.graph_view import BoxLoop, LoopKind
from llm_perf_opt.graphs.view import group
from tests.graphs.made_runs import (
    ADD,
    INDEX_ADD_INTO,
    PROJECT_FLOPS,
    SLICE,
    MadeRun,
    Token,
    box_at,
    boxes,
    drawn,
    made,
)

EXPERTS = {"experts": "ModuleList", **{f"experts.{n}": "Expert" for n in range(4)}}


def test_experts_that_add_into_one_accumulator_are_side_by_side() -> None:
    def route(run: MadeRun, x: Token) -> Token:
        total = run.op(ADD, x, x)
        for n in range(4):
            run.op(INDEX_ADD_INTO, total, run.call(f"experts.{n}", x))
        return total

    assert drawn(group(made(EXPERTS, route))) == {"Expert @ experts.[0-3]": "parfor 4"}


def test_experts_that_write_their_rows_back_in_place_are_side_by_side() -> None:
    def route(run: MadeRun, x: Token) -> Token:
        for n in range(4):
            run.op(INDEX_ADD_INTO, x, run.call(f"experts.{n}", x))
        return x

    assert drawn(group(made(EXPERTS, route))) == {"Expert @ experts.[0-3]": "parfor 4"}


def test_slices_of_one_storage_are_not_a_chain() -> None:
    def route(run: MadeRun, x: Token) -> Token:
        outputs = [run.call(f"experts.{n}", run.op(SLICE, x)) for n in range(4)]
        return run.op(ADD, outputs[0], outputs[3])

    assert drawn(group(made(EXPERTS, route))) == {"Expert @ experts.[0-3]": "parfor 4"}


def test_modules_that_hand_their_input_through_are_not_a_chain() -> None:
    def route(run: MadeRun, x: Token) -> Token:
        for n in range(4):
            run.call(f"experts.{n}", x, lambda token: token)
        return run.op(ADD, x, x)

    assert drawn(group(made(EXPERTS, route))) == {"Expert @ experts.[0-3]": "parfor 4"}


def test_untouched_experts_stay_in_the_family_with_their_parameters() -> None:
    classes = {**EXPERTS, **{f"experts.{n}.proj": "Linear" for n in range(4)}}

    def route(run: MadeRun, x: Token) -> Token:
        for n in (0, 3):
            run.call(f"experts.{n}", x, lambda token, n=n: run.call(f"experts.{n}.proj", token))  # type: ignore[misc]
        return x

    view = group(made(classes, route))
    assert drawn(view) == {"Expert @ experts.[0-3]": "parfor 2 of 4", "Linear @ experts.[0-3].proj": ""}
    experts, proj = box_at(view, "experts.[0-3]"), box_at(view, "experts.[0-3].proj")
    for box in (experts, proj):
        assert (box.instances, box.calls, box.calls_per_instance) == (4, 2, (0, 1))
        assert box.figures.parameters == 4 * 64
    assert dict(zip(experts.members, experts.member_calls, strict=True)) == {
        "experts.0": 1,
        "experts.1": 0,
        "experts.2": 0,
        "experts.3": 1,
    }


def test_one_touched_expert_is_still_one_of_four() -> None:
    view = group(made(EXPERTS, lambda run, x: run.call("experts.2", x)))
    assert drawn(view) == {"Expert @ experts.[0-3]": "parfor 1 of 4"}


def test_layers_that_touch_different_numbers_of_experts() -> None:
    classes = {"layers": "ModuleList"}
    for layer in range(2):
        classes[f"layers.{layer}"] = "Layer"
        classes |= {f"layers.{layer}.{path}": name for path, name in EXPERTS.items()}
    touched = {0: (0, 1, 2), 1: (1, 3)}

    def forward(run: MadeRun, x: Token) -> Token:
        for layer, chosen in touched.items():

            def body(token: Token, layer: int = layer, chosen: tuple[int, ...] = chosen) -> Token:
                outputs = [run.call(f"layers.{layer}.experts.{n}", token) for n in chosen]
                return run.op(ADD, outputs[0], outputs[-1])

            x = run.call(f"layers.{layer}", x, body)
        return x

    view = group(made(classes, forward))
    assert drawn(view) == {"Layer @ layers.[0-1]": "for 2", "Expert @ layers.[0-1].experts.[0-3]": "parfor 2-3 of 4"}
    assert box_at(view, "layers.[0-1].experts.[0-3]").figures.flops == 5 * PROJECT_FLOPS


def test_repeated_use_of_one_instance_is_a_parfor_over_calls() -> None:
    classes = {"tower": "Tower", "tower.layers": "ModuleList", **{f"tower.layers.{n}": "Linear" for n in range(3)}}

    def forward(run: MadeRun, x: Token) -> Token:
        outputs = [
            run.call("tower", run.input(), lambda token: run.chain([f"tower.layers.{n}" for n in range(3)], token))
            for _ in range(2)
        ]
        return run.op(ADD, *outputs)

    view = group(made(classes, forward))
    tower, layers = box_at(view, "tower"), box_at(view, "tower.layers.[0-2]")
    assert tower.loops == (BoxLoop(kind=LoopKind.PARFOR, count=2, over="calls"),)
    assert layers.loops == (BoxLoop(kind=LoopKind.FOR, count=3),)
    assert (layers.instances, layers.calls_per_instance, layers.calls) == (3, (2,), 6)
    assert not any("each use feeds" in line for line in view.caption)


def test_uses_that_feed_each_other_are_named_in_the_caption() -> None:
    view = group(made({"cell": "Linear"}, lambda run, x: run.chain(["cell"] * 3, x)))
    assert drawn(view) == {"Linear @ cell": "parfor 3"}
    assert "One caller uses these several times, and each use feeds the next: cell." in view.caption


def test_leaves_in_roles_are_told_by_name() -> None:
    def attention(run: MadeRun, x: Token) -> Token:
        return run.op(ADD, run.call("q_proj", x), run.call("k_proj", x))

    view = group(made({"q_proj": "Linear", "k_proj": "Linear"}, attention))
    assert drawn(view) == {"Linear @ q_proj": "", "Linear @ k_proj": ""}


TOWERS = {path: name for side in ("left", "right") for path, name in ((side, "Tower"), (f"{side}.proj", "Linear"))}


def tower(run: MadeRun, side: str, x: Token) -> Token:
    return run.call(side, x, lambda token: run.call(f"{side}.proj", token))


def test_towers_in_roles_that_do_not_depend_on_each_other_are_side_by_side() -> None:
    view = group(made(TOWERS, lambda run, x: run.op(ADD, tower(run, "left", x), tower(run, "right", x))))
    assert drawn(view) == {"Tower @ [left,right]": "parfor 2", "Linear @ [left,right].proj": ""}


def test_towers_in_roles_that_depend_on_each_other_through_a_third_stay_apart() -> None:
    classes = {**TOWERS, "norm": "Norm"}
    view = group(made(classes, lambda run, x: tower(run, "right", run.call("norm", tower(run, "left", x)))))
    assert [box.loops for box in boxes(view)] == [()] * 6
    assert {"Tower @ left", "Tower @ right"} <= set(drawn(view))
