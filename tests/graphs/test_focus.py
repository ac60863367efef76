"""`--focus` takes whatever a picture prints: labels of families, whole or by their end."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.graphs.view import group
from tests.graphs.made_runs import ADD, MadeRun, Token, boxes, made

CLASSES = {
    **dict.fromkeys(("sam", "clip"), "Tower"),
    **{f"{tower}.blocks": "ModuleList" for tower in ("sam", "clip")},
    **{f"{tower}.blocks.{n}": "Block" for tower in ("sam", "clip") for n in range(4)},
    **{f"{tower}.blocks.{n}.attn": "Attention" for tower in ("sam", "clip") for n in range(4)},
    **{f"{tower}.blocks.{n}.attn.qkv": "Linear" for tower in ("sam", "clip") for n in range(4)},
    "sam.blocks.1.attn.rel_pos": "Linear",
    "neck": "Linear",
}


def two_towers() -> CallGraph:
    """Two stacks of four blocks; block 1 of the first has one module more in its attention, and costs more."""

    def attention(run: MadeRun, path: str, token: Token) -> Token:
        token = run.call(f"{path}.qkv", token)
        return run.call(f"{path}.rel_pos", token) if f"{path}.rel_pos" in CLASSES else token

    def block(run: MadeRun, path: str, token: Token) -> Token:
        return run.op(ADD, run.call(f"{path}.attn", token, lambda inner: attention(run, f"{path}.attn", inner)), token)

    def tower(run: MadeRun, name: str, token: Token) -> Token:
        for n in range(4):
            path = f"{name}.blocks.{n}"
            token = run.call(path, token, lambda inner, path=path: block(run, path, inner))
        return token

    def forward(run: MadeRun, token: Token) -> Token:
        for name in ("sam", "clip"):
            token = run.call(name, token, lambda inner, name=name: tower(run, name, inner))
        return run.call("neck", token)

    return made(CLASSES, forward)


def focused(focus: str) -> list[str]:
    return [box.path for box in group(two_towers(), focus=focus).roots]


def test_every_label_that_the_picture_prints_can_be_given() -> None:
    graph = two_towers()
    for box in boxes(group(graph))[1:]:
        for text in (box.path, box.label):
            roots = group(graph, focus=text).roots
            assert [root.path for root in roots] == [box.path]
            assert sum(root.figures.flops or 0 for root in roots) == box.figures.flops


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        ("neck", ["neck"]),
        ("clip.blocks.[0-3].attn", ["clip.blocks.[0-3].attn"]),
        (".rel_pos", ["sam.blocks.1.attn.rel_pos"]),
        ("attn.rel_pos", ["sam.blocks.1.attn.rel_pos"]),
        ("blocks.[0,2,3].attn", ["sam.blocks.[0,2,3].attn"]),
        ("clip.blocks.2", ["clip.blocks.2"]),
        ("clip.blocks", ["clip.blocks.[0-3]"]),
    ],
)
def test_the_end_of_a_label_is_enough_where_it_names_one_family(ending: str, found: list[str]) -> None:
    assert focused(ending) == found


def test_a_label_may_take_families_together_that_the_picture_keeps_apart() -> None:
    assert focused("sam.blocks.[0-3].attn") == ["sam.blocks.[0,2,3].attn", "sam.blocks.1.attn"]
    members = {path for root in group(two_towers(), focus="sam.blocks.*.attn").roots for path in root.members}
    assert members == {f"sam.blocks.{n}.attn" for n in range(4)}


def test_an_end_that_several_labels_have_is_refused_with_all_of_them() -> None:
    with pytest.raises(UsageError, match="several labels") as refused:
        focused("qkv")
    assert "clip.blocks.[0-3].attn.qkv" in str(refused.value.why)
    assert "sam.blocks" in str(refused.value.fix)


def test_a_label_with_more_members_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="no module or family") as refused:
        focused("clip.blocks.[0-7].attn")
    assert "clip.blocks.[0-3].attn" in str(refused.value.fix)


def test_a_label_that_was_cut_short_is_found_again() -> None:
    assert focused("Attention @ clip.bl...3].attn") == ["clip.blocks.[0-3].attn"]
