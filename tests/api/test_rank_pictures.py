"""What a rank exchanges with others, where people look: on boxes, in tables, in files and notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.tracing import load_phase
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import Box
from llm_perf_opt.costs.collectives import family_collectives
from tests.api.tiny_folders import BF16, HIDDEN, LAYERS, TOKENS, VOCABULARY, llama_folder, mixtral_folder

HANDED_ON = TOKENS * HIDDEN * BF16  # what an all-reduce of a layer sums: one row per token
PLANS_OF_TWO: tuple[dict[str, Any], ...] = ({"fsdp": 2}, {"tp": 2})
LAYER_WEIGHTS = 64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 128 + 2 * 64  # q and o, k and v, the three of the MLP, two norms


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def split(folder: Path) -> lpo.Trace:
    return lpo.trace(folder, prompt_tokens=TOKENS, tp=2)


def boxes(picture: lpo.GraphAnswer) -> dict[str, Box]:
    return {box.path: box for root in picture.view.roots for box in root.walk()}


def asked(box: Box) -> list[tuple[str, int, int, int]]:
    return [(part.kind, part.payload_bytes, part.ranks, part.count) for part in box.collectives]


def test_fully_sharded_weights_are_gathered_by_the_module_they_belong_to(folder: Path) -> None:
    traced = lpo.trace(folder, prompt_tokens=TOKENS, fsdp=2)
    prefill = traced.graphs[0]
    gathered = {part.family: (part.count, part.collective.payload_bytes) for part in family_collectives(prefill)}
    assert gathered == {
        "model.embed_tokens": (1, VOCABULARY * HIDDEN * BF16),
        "model.layers.[0-2]": (LAYERS, LAYER_WEIGHTS * BF16),
        "model.norm": (1, (HIDDEN + VOCABULARY * HIDDEN) * BF16),  # shared with the head, which runs after it
    }
    assert prefill.module_types["model.layers.0"] == "LlamaDecoderLayer"
    assert set(prefill.call_counts.values()) == {1}
    assert prefill.problems() == []


def test_a_box_tells_which_collectives_one_call_of_it_runs(split: lpo.Trace) -> None:
    found = boxes(split.graph("prefill"))
    assert asked(found["model.layers.[0-2].self_attn.o_proj"]) == [("all-reduce", HANDED_ON, 2, LAYERS)]
    assert asked(found["model.layers.[0-2]"]) == [("all-reduce", HANDED_ON, 2, 2 * LAYERS)]
    assert asked(found["lm_head"]) == [("all-gather", VOCABULARY * BF16, 2, 1)]
    assert asked(found[""]) == [("all-reduce", HANDED_ON, 2, 2 * LAYERS + 1), ("all-gather", VOCABULARY * BF16, 2, 1)]
    assert found["model.layers.[0-2].self_attn.q_proj"].collectives == ()


@pytest.mark.parametrize("drawing", ["text", "markdown", "mermaid", "dot", "svg", "html"])
def test_every_drawing_writes_it_on_the_box_and_nothing_where_there_is_one_device(
    drawing: str, split: lpo.Trace, folder: Path
) -> None:
    times = "\u00d7" if drawing == "svg" else "x"
    picture = str(split.graph("prefill").draw(drawing))
    assert f"all-reduce 2.00 KiB {times} 2" in picture
    assert f"all-reduce 2.00 KiB {times} 7, all-gather 512 B" in picture
    assert "Rank 0 of 2: tp2" in picture
    alone = str(lpo.trace(folder, prompt_tokens=TOKENS).graph("prefill").draw(drawing))
    assert "all-reduce" not in alone
    assert "collectives" not in alone


def test_a_filter_keeps_what_it_leaves_out(split: lpo.Trace) -> None:
    left_out = [
        box
        for root in split.graph("prefill", only="norm").view.roots
        for box in root.walk()
        if box.is_left_out and box.collectives
    ]
    assert sum(part.count for box in left_out for part in box.own_collectives) == 2 * LAYERS + 2


def test_the_file_of_a_picture_holds_them_and_that_of_one_device_does_not(split: lpo.Trace, folder: Path) -> None:
    rows = {row["path"]: row for row in json.loads(str(split.graph("prefill").draw("json")))["boxes"]}
    assert rows["lm_head"]["own_collectives"] == [
        {"kind": "all-gather", "payload_bytes": VOCABULARY * BF16, "ranks": 2, "count": 1}
    ]
    assert "collectives" not in rows["model.norm"]
    assert '"collectives"' not in str(lpo.trace(folder, prompt_tokens=TOKENS).graph("prefill").draw("json"))


def test_stages_and_costs_list_collectives_apart_from_flops(split: lpo.Trace) -> None:
    prefill = split.stages().stages[0].cost
    assert (prefill.collectives, prefill.collective_bytes) == (8, 7 * HANDED_ON + VOCABULARY * BF16)
    tables = {table.title: table for table in split.stages().report().tables}
    kinds = [(row[0], row[2], row[3], row[6]) for row in tables["Collectives"].rows]
    assert ("prefill", "all-reduce", "model.layers.[0-2].mlp.down_proj", LAYERS) in kinds
    assert [column.name for column in tables["Cost by stage"].columns][-2:] == ["collectives", "collective payload"]
    document = json.loads(split.cost().to_json())
    assert sum(row["count"] * row["payload_bytes"] for row in document["collectives"] if row["phase"] == "prefill") == (
        prefill.collective_bytes
    )


def test_the_whole_report_answers_what_ranks_communicate(split: lpo.Trace) -> None:
    report = split.report().report()
    answers = dict(report.tables[0].rows)
    assert answers["What do the ranks communicate?"].startswith("prefill 8 collectives of 14.5 KiB")
    chapter = next(one for one in report.chapters if one.title == "What do the ranks communicate?")
    assert chapter.notes[0].text.startswith("Rank 0 of 2: tp2, the model's own plan.")


def test_one_device_has_no_column_and_no_chapter_for_it(folder: Path) -> None:
    alone = lpo.trace(folder, prompt_tokens=TOKENS)
    assert "Collectives" not in [table.title for table in alone.stages().report().tables]
    assert "collectives" not in json.loads(alone.cost().to_json())


def test_sources_that_count_the_whole_model_are_not_asked_of_a_rank(split: lpo.Trace) -> None:
    assert split.cost("all").sources == ("counted",)
    with pytest.raises(UsageError, match="One rank of tp2 has no figures from torch-counter"):
        split.cost(["counted", "torch-counter"])
    with pytest.raises(UsageError, match="one rank of tp2 are not exported"):
        split.export()


def test_integers_of_ranks_with_other_tokens_are_noted_as_answered_by_symmetry(tmp_path: Path) -> None:
    """Two layers ask once in the prefill and once in the decode. Ranks of one tensor-parallel group know the answer."""
    folder = mixtral_folder(tmp_path / "mixtral")
    own_tokens, same_tokens = (
        " ".join(note.text for note in lpo.trace(folder, prompt_tokens=TOKENS, ep=2, **plan).stages().report().notes)
        for plan in PLANS_OF_TWO
    )
    assert "Rank 0 of 2: ep2 fsdp2, the model's own plan." in own_tokens
    assert "answered by symmetry (4 all-to-all)" in own_tokens
    assert "by symmetry" not in same_tokens


def test_one_of_several_ranks_is_drawn(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lpo.trace(folder, prompt_tokens=TOKENS, pp=2, out=tmp_path / "run")
    last = load_phase(tmp_path / "run", rank=1)
    assert last._plan is not None
    assert last._plan.rank == 1
    assert "recv" in str(last.graph().draw())
    with caplog.at_level("INFO"):
        assert "send" in str(load_phase(tmp_path / "run").graph().draw())
    assert "Rank 0; --rank chooses another: 0, 1" in caplog.text
    with pytest.raises(UsageError, match="There is no rank 7 in"):
        load_phase(tmp_path / "run", rank=7)
    with pytest.raises(UsageError, match="This is not the trace of rank 1"):
        load_phase(tmp_path / "run" / "rank-0", rank=1)


def test_what_a_stage_sends_is_needed_at_every_position(folder: Path) -> None:
    """Of the first stage only hidden pairs are spared: 120 of 256 in one layer, 4 x 4 heads x 16 FLOPs each."""
    stage = lpo.trace(folder, prompt_tokens=TOKENS, pp=2, rank=0).stages().stages[0]
    assert stage.necessary is not None
    hidden_pairs = TOKENS * (TOKENS - 1) // 2
    assert stage.cost.flops is not None
    assert stage.necessary.flops == stage.cost.flops - hidden_pairs * 4 * 4 * 16


@pytest.mark.parametrize("plan", [{"tp": 2}, {"fsdp": 2}])
def test_the_function_of_a_rank_is_its_trace_at_every_point(plan: dict[str, Any], folder: Path) -> None:
    function = lpo.trace(folder, prompt_tokens=TOKENS, **plan).over(batch=(2, 3), context=(8, 64))
    rebuilt = function.at(batch=3, context=40)
    traced = lpo.trace(folder, prompt_tokens=40, batch=3, **plan)
    assert rebuilt.stages().flops == traced.stages().flops
    assert rebuilt.stages().total.collective_bytes == traced.stages().total.collective_bytes
