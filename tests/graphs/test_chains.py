"""`for N`: distinct instances in series, told from the tensors that passed between them."""

from __future__ import annotations

from llm_perf_opt.graphs.view import group
from tests.graphs.made_runs import (
    ADD,
    ADD_INTO,
    PROJECT,
    PROJECT_FLOPS,
    MadeRun,
    Token,
    box_at,
    drawn,
    made,
)

THREE = {"layers": "ModuleList", "layers.0": "Linear", "layers.1": "Linear", "layers.2": "Linear"}
LAYERS = ["layers.0", "layers.1", "layers.2"]


def test_each_feeding_the_next_is_a_for() -> None:
    view = group(made(THREE, lambda run, x: run.chain(LAYERS, x)))
    assert drawn(view) == {"Linear @ layers.[0-2]": "for 3"}
    box = box_at(view, "layers.[0-2]")
    assert (box.instances, box.calls, box.calls_per_instance) == (3, 3, (1,))
    assert (box.figures.flops, box.figures.parameters) == (3 * PROJECT_FLOPS, 3 * 64)


def test_names_without_digits_are_a_chain_too() -> None:
    classes = {"first": "Linear", "second": "Linear", "third": "Linear"}
    view = group(made(classes, lambda run, x: run.chain(list(classes), x)))
    assert drawn(view) == {"Linear @ [first,second,third]": "for 3"}


def test_digits_in_names_do_not_make_a_chain() -> None:
    view = group(made(THREE, lambda run, x: [run.call(path, x) for path in LAYERS][-1]))
    assert drawn(view) == {"Linear @ layers.[0-2]": "parfor 3"}


def test_a_chain_in_another_order_than_the_names() -> None:
    view = group(made(THREE, lambda run, x: run.chain(list(reversed(LAYERS)), x)))
    assert drawn(view) == {"Linear @ layers.[0-2]": "for 3"}


def test_a_residual_sum_of_the_caller_carries_the_chain() -> None:
    def residual(run: MadeRun, x: Token) -> Token:
        return run.chain(LAYERS, x, lambda path, token: run.op(ADD, token, run.call(path, token)))

    assert drawn(group(made(THREE, residual))) == {"Linear @ layers.[0-2]": "for 3"}


def test_a_residual_sum_in_place_carries_the_chain() -> None:
    def residual(run: MadeRun, x: Token) -> Token:
        return run.chain(LAYERS, x, lambda path, token: run.op(ADD_INTO, token, run.call(path, token)))

    assert drawn(group(made(THREE, residual))) == {"Linear @ layers.[0-2]": "for 3"}


def test_a_norm_between_the_layers_of_another_container_does_not_break_the_chain() -> None:
    classes = {**THREE, "norms": "ModuleList", **{f"norms.{n}": "Norm" for n in range(3)}}

    def zipped(run: MadeRun, x: Token) -> Token:
        for n in range(3):
            x = run.call(f"norms.{n}", run.call(f"layers.{n}", x))
        return x

    assert drawn(group(made(classes, zipped))) == {"Linear @ layers.[0-2]": "for 3", "Norm @ norms.[0-2]": "for 3"}


def test_two_classes_that_alternate_in_one_container_are_not_grouped() -> None:
    classes = {"neck": "Sequential", "neck.0": "Conv", "neck.1": "Norm", "neck.2": "Conv", "neck.3": "Norm"}

    def forward(run: MadeRun, x: Token) -> Token:
        return run.call("neck", x, lambda token: run.chain([f"neck.{n}" for n in range(4)], token))

    assert drawn(group(made(classes, forward))) == {
        "Sequential @ neck": "",
        "Conv @ neck.0": "",
        "Norm @ neck.1": "",
        "Conv @ neck.2": "",
        "Norm @ neck.3": "",
    }


def test_runs_of_one_class_in_a_mixed_container_are_chains() -> None:
    kinds = ["A", "A", "B", "A", "A", "A"]
    classes = {"layers": "ModuleList", **{f"layers.{n}": name for n, name in enumerate(kinds)}}
    view = group(made(classes, lambda run, x: run.chain([f"layers.{n}" for n in range(6)], x)))
    assert drawn(view) == {"A @ layers.[0-1]": "for 2", "B @ layers.2": "", "A @ layers.[3-5]": "for 3"}


def test_two_chains_side_by_side_in_one_container() -> None:
    classes = {"layers": "ModuleList", **{f"layers.{n}": "Linear" for n in range(4)}}

    def forward(run: MadeRun, x: Token) -> Token:
        run.chain(["layers.0", "layers.1"], x)
        return run.chain(["layers.2", "layers.3"], x)

    assert drawn(group(made(classes, forward))) == {"Linear @ layers.[0-1]": "for 2", "Linear @ layers.[2-3]": "for 2"}


def test_a_layer_that_was_skipped_does_not_break_the_family() -> None:
    view = group(made(THREE, lambda run, x: run.chain(["layers.0", "layers.2"], x)))
    assert drawn(view) == {"Linear @ layers.[0-2]": "for 2 of 3"}
    assert box_at(view, "layers.[0-2]").calls_per_instance == (0, 1)


def test_roles_in_series_are_a_chain_only_if_their_weights_are_alike_and_nothing_is_between() -> None:
    classes = {"fc1": "Linear", "act": "ReLU", "fc2": "Linear"}
    view = group(made(classes, lambda run, x: run.chain(list(classes), x)))
    assert drawn(view) == {"Linear @ fc1": "", "ReLU @ act": "", "Linear @ fc2": ""}


def test_an_op_between_two_roles_keeps_them_apart() -> None:
    def attention(run: MadeRun, x: Token) -> Token:
        return run.call("o_proj", run.op(ADD, run.call("v_proj", x), x))

    view = group(made({"v_proj": "Linear", "o_proj": "Linear"}, attention))
    assert drawn(view) == {"Linear @ v_proj": "", "Linear @ o_proj": ""}


def block(run: MadeRun, path: str, x: Token, parts: tuple[str, ...]) -> Token:
    return run.call(path, x, lambda token: run.chain([f"{path}.{part}" for part in parts], token))


def test_a_chain_splits_by_structure_at_every_level() -> None:
    classes = {"layers": "ModuleList"}
    parts = {0: ("dense",), 1: ("gate", "expert"), 2: ("gate", "expert")}
    for n, names in parts.items():
        classes |= {f"layers.{n}": "Layer", **{f"layers.{n}.{name}": name.title() for name in names}}

    def forward(run: MadeRun, x: Token) -> Token:
        for n, names in parts.items():
            x = block(run, f"layers.{n}", x, names)
        return x

    assert drawn(group(made(classes, forward))) == {
        "Layer @ layers.0": "",
        "Dense @ layers.0.dense": "",
        "Layer @ layers.[1-2]": "for 2",
        "Gate @ layers.[1-2].gate": "",
        "Expert @ layers.[1-2].expert": "",
    }


def test_a_chain_splits_by_cost_at_a_finer_level() -> None:
    classes = {"blocks": "ModuleList", **{f"blocks.{n}": "Block" for n in range(4)}}

    def forward(run: MadeRun, x: Token) -> Token:
        for n in range(4):
            times = 2 if n % 2 else 1

            def body(token: Token, times: int = times) -> Token:
                for _ in range(times):
                    token = run.op(PROJECT, token, token)
                return token

            x = run.call(f"blocks.{n}", x, body)
        return x

    view = group(made(classes, forward))
    assert drawn(view) == {
        "Block @ blocks.[0-3]": "for 4",
        "Block @ blocks.[0,2]": "for 2",
        "Block @ blocks.[1,3]": "for 2",
    }
    whole, cheap, costly = (box_at(view, path) for path in ("blocks.[0-3]", "blocks.[0,2]", "blocks.[1,3]"))
    assert whole.is_split
    assert whole.children == (cheap, costly)
    assert (whole.own.flops, cheap.figures.flops, costly.figures.flops) == (0, 2 * PROJECT_FLOPS, 4 * PROJECT_FLOPS)
    assert {(arrow.source, arrow.target): arrow.calls for arrow in whole.arrows} == {
        (cheap.id, costly.id): 2,
        (costly.id, cheap.id): 1,
    }
