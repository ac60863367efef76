"""`parfor N` of a trace that sees calls and not the tensors of ops: what rules a chain out, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.graphs.view import group
from tests.costs.made_kinds import tensor
from tests.graphs.made_runs import ADD, MadeRun, Token, drawn, made, without_op_tensors

EXPERTS = {"experts": "ModuleList", **{f"experts.{n}": "Expert" for n in range(3)}}
LABEL = "Expert @ experts.[0-2]"


def loops(classes: dict[str, str], forward: Callable[[MadeRun, Token], Token]) -> dict[str, str]:
    return drawn(group(without_op_tensors(made(classes, forward))))


def fresh(run: MadeRun, x: Token) -> Token:
    """A tensor that the caller made from `x` with an op that the trace does not show."""
    return run.op(ADD, x, x)


def summed(run: MadeRun, outputs: Sequence[Token]) -> Token:
    return run.op(ADD, outputs[0], outputs[-1])


def of_rows(run: MadeRun, path: str, rows: int, returned_rows: int | None = None) -> Token:
    token, output = run.input(), run.fresh()
    run.builder.enter(path, [(tensor(rows, 8), token)])
    run.builder.allocate(output, 128)
    run.builder.leave([(tensor(returned_rows or rows, 8), output)])
    return output


def test_a_residual_sum_in_the_caller_is_no_parfor() -> None:
    def residual(run: MadeRun, x: Token) -> Token:
        for n in range(3):
            x = run.op(ADD, x, run.call(f"experts.{n}", x))
        return x

    assert drawn(group(made(EXPERTS, residual))) == {LABEL: "for 3"}
    assert loops(EXPERTS, residual) == {LABEL: ""}


def test_siblings_that_read_the_same_memory_are_side_by_side() -> None:
    assert loops(EXPERTS, lambda run, x: summed(run, [run.call(f"experts.{n}", x) for n in range(3)])) == {
        LABEL: "parfor 3"
    }


def test_memory_that_a_sibling_returned_is_not_the_same_memory() -> None:
    def fed(run: MadeRun, x: Token) -> Token:
        first = run.call("experts.0", x)
        run.call("experts.1", x)
        return run.call("experts.2", first)

    assert loops(EXPERTS, fed)[LABEL.replace("0-2", "0-1")] == "parfor 2"


def test_siblings_that_get_different_numbers_of_rows_are_side_by_side() -> None:
    def routed(run: MadeRun, x: Token) -> Token:
        return summed(run, [of_rows(run, f"experts.{n}", rows) for n, rows in enumerate((3, 5, 3))])

    assert loops(EXPERTS, routed) == {LABEL: "parfor 3"}


def test_a_chain_that_drops_rows_on_its_way_is_no_parfor() -> None:
    def merging(run: MadeRun, x: Token) -> Token:
        return summed(run, [of_rows(run, f"experts.{n}", rows, rows // 2) for n, rows in enumerate((8, 4, 2))])

    assert loops(EXPERTS, merging) == {LABEL: ""}


def test_a_sibling_that_was_never_called_makes_the_others_a_parfor() -> None:
    def routed(run: MadeRun, x: Token) -> Token:
        return summed(run, [run.call(f"experts.{n}", fresh(run, x)) for n in (0, 2)])

    assert loops(EXPERTS, routed) == {LABEL: "parfor 2 of 3"}


def test_a_sibling_that_one_call_of_the_caller_left_out() -> None:
    classes = {"mlp": "Moe", **{f"mlp.{path}": name for path, name in EXPERTS.items()}}

    def twice(run: MadeRun, x: Token) -> Token:
        for chosen in ((0, 1), (1, 2)):
            x = run.call(
                "mlp",
                x,
                lambda token, chosen=chosen: summed(  # type: ignore[misc]
                    run, [run.call(f"mlp.experts.{n}", fresh(run, token)) for n in chosen]
                ),
            )
        return x

    assert loops(classes, twice)["Expert @ mlp.experts.[0-2]"] == "parfor 2 of 3"


def test_what_one_layer_shows_holds_for_the_layers_like_it() -> None:
    classes = {"layers": "ModuleList"}
    for layer in range(2):
        classes[f"layers.{layer}"] = "Layer"
        classes |= {f"layers.{layer}.{path}": name for path, name in EXPERTS.items()}

    def forward(run: MadeRun, x: Token) -> Token:
        for layer, counts in enumerate(((3, 5, 4), (4, 4, 4))):

            def body(token: Token, layer: int = layer, counts: tuple[int, ...] = counts) -> Token:
                return summed(run, [of_rows(run, f"layers.{layer}.experts.{n}", rows) for n, rows in enumerate(counts)])

            x = run.call(f"layers.{layer}", x, body)
        return x

    assert loops(classes, forward) == {
        "Layer @ layers.[0-1]": "for 2",
        "Expert @ layers.[0-1].experts.[0-2]": "parfor 3",
    }


def towers(graph: CallGraph) -> dict[str, str]:
    return {label: text for label, text in drawn(group(without_op_tensors(graph))).items() if "Tower" in label}


def test_towers_in_roles_need_the_same_memory() -> None:
    classes = {path: name for side in ("a", "b") for path, name in ((side, "Tower"), (f"{side}.proj", "Linear"))}
    classes["norm"] = "Norm"  # with it the root is no container of towers

    def tower(run: MadeRun, side: str, x: Token) -> Token:
        return run.call(side, x, lambda token: run.call(f"{side}.proj", token))

    beside = made(classes, lambda run, x: summed(run, [tower(run, side, x) for side in ("a", "b")]))
    assert towers(beside) == {"Tower @ [a,b]": "parfor 2"}
    unknown = made(classes, lambda run, x: summed(run, [tower(run, side, fresh(run, x)) for side in ("a", "b")]))
    assert towers(unknown) == {"Tower @ a": "", "Tower @ b": ""}
