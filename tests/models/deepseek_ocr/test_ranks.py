"""DeepSeek-OCR over several ranks: who encodes which views, what is refused, and full-size figures by arithmetic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan, replicated_in
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.costs.stage_costs import module_costs
from llm_perf_opt.graphs.call_checks import call_checks
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.formulas import Views, clip_work, projector_work, sam_work, total_flops
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.ranks import PageShare, distinct, kinds_of_rank, require_plan, share_views

AREAS = {"global_pixels": 1024**2, "tile_pixels": 640**2}
CONFIG = DeepSeekOcrConfig()
TOKENS = 924  # of a page of 1240x1754 in 2x3 tiles, with 20 tokens of text
EXPERT, LAYERS, SPARSE = 3 * 1280 * 896, 12, 11
VOCABULARY, WIDTH = 129_280, 1280


def share(first: int, last: int, has_global: bool) -> PageShare:
    return PageShare(first=first, last=last, has_global=has_global)


def collectives(graph: CallGraph) -> Counter[tuple[str, int]]:
    found = (collective_of(graph.op_kinds[kind]) for kind in graph.ops.kind)
    return Counter((str(record.kind), record.payload_bytes) for record in found if record is not None)


def weight_bytes(trace: Trace) -> int | None:
    return run_memory(trace.graphs).phases[0].weight_bytes


def flops(graph: CallGraph) -> int:
    return module_costs(graph).by_path[""].inclusive.flops


def vision_flops(*, tiles: int, pages: int) -> int:
    views = [Views(pixels=640, views=tiles, calls=1)] * (tiles > 0) + [Views(pixels=1024, views=1, calls=1)] * pages
    return sum(
        total_flops(list(work))
        for view in views
        for work in (sam_work(CONFIG.sam, view), clip_work(CONFIG, view), projector_work(CONFIG, view))
    )


def test_the_large_view_weighs_as_much_as_its_pixels() -> None:
    """1024 x 1024 pixels are those of 2.56 tiles: with it go two tiles, and four to the other rank."""
    assert share_views([6], 2, **AREAS) == ((share(0, 2, True),), (share(2, 6, False),))
    assert share_views([6], 4, **AREAS)[0] == (share(0, 0, True),)
    assert [pages[0].tiles for pages in share_views([6], 4, **AREAS)] == [0, 2, 2, 2]


def test_every_view_of_every_page_has_one_rank() -> None:
    for ranks in (2, 3, 4, 8, 16):
        shares = share_views([6, 0, 9, 2], ranks, **AREAS)
        for page, tiles in enumerate([6, 0, 9, 2]):
            own = [pages[page] for pages in shares]
            assert [tile for one in own for tile in range(one.first, one.last)] == list(range(tiles))
            assert sum(one.has_global for one in own) == 1


def test_ranks_with_other_views_are_of_another_kind() -> None:
    page = DeepSeekOcrWorkload(image="1240x1754")
    assert kinds_of_rank(ParallelPlan(tp=2), page) == (0, 1)
    assert kinds_of_rank(ParallelPlan(tp=4), page) == (0, 1)
    assert kinds_of_rank(ParallelPlan(tp=8), page) == (0, 1, 7)  # the page, one tile each, and one rank without any
    assert kinds_of_rank(ParallelPlan(tp=8, rank=5), page) == (5,)
    assert distinct(share_views([6] * 8, 8, **AREAS)) == (0,)  # eight pages for eight ranks: one and six tiles each


def test_one_view_is_encoded_by_every_rank() -> None:
    assert kinds_of_rank(ParallelPlan(tp=8), DeepSeekOcrWorkload(image="1240x1754", mode="base")) == (0,)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (ParallelPlan(tp=2, pp=2), "its code has no stages: one forward runs vision and all layers"),
        (ParallelPlan(tp=2, fsdp=2), "its plan splits matrices and experts, not stored weights alone"),
        (ParallelPlan(tp=3), "the vocabulary of 129,280 cannot be split by 3"),
        (ParallelPlan(tp=5), "the width of the dense MLP of 6,848 cannot be split by 5"),
    ],
)
def test_what_the_plan_cannot_split_is_refused_with_the_reason(plan: ParallelPlan, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        require_plan(DecoderConfig(), plan)
    assert refused.value.why == why


def test_a_plan_file_chooses_how_views_are_encoded_and_takes_no_rules_of_modules(tmp_path: Path) -> None:
    chosen = tmp_path / "plan.toml"
    chosen.write_text('[vision]\nviews = "replicated"\n')
    page = DeepSeekOcrWorkload(image="1240x1754")
    assert kinds_of_rank(ParallelPlan(tp=2, plan=str(chosen)), page) == (0,)
    chosen.write_text('[tp]\n"lm_head" = "colwise"\n')
    with pytest.raises(UsageError, match="takes no rules of modules"):
        kinds_of_rank(ParallelPlan(tp=2, plan=str(chosen)), page)
    chosen.write_text('[vision]\nviews = "some"\n')
    with pytest.raises(UsageError, match="plan file"):
        kinds_of_rank(ParallelPlan(tp=2, plan=str(chosen)), page)


def test_calls_are_those_of_the_views_and_layers_of_the_rank() -> None:
    for trace in lpo.trace("deepseek-ocr-tiny", image="90x130", tp=2, ep=2).ranks:
        checks = call_checks(trace.graphs)
        assert [check for check in checks if not check.is_as_expected] == []
        assert {check.what for check in checks} >= {"SAM blocks", "projector", "decoder layers"}
        assert [graph.runtime["crops_per_image"] for graph in trace.graphs] == [[6], []]


def test_heads_that_cannot_be_shared_evenly_run_on_every_rank_and_a_note_says_so() -> None:
    (prefill, decode) = lpo.trace("deepseek-ocr-tiny", image="90x130", tp=4).graphs
    (note,) = prefill.notes
    replicated = replicated_in(prefill.deployment) or frozenset()
    assert "model.layers.*.self_attn.q_proj.weight" in replicated
    assert not {name for name in replicated if name.startswith("model.layers.*.mlp.")} - {
        "model.layers.*.mlp.gate.weight"
    }
    assert note.startswith("Attention runs whole on each of 4 ranks: 2 heads cannot be shared evenly.")
    # The embedding, one dense layer and two blocks of experts, each on 1 token of 32 values in 2 bytes; no attention.
    assert collectives(decode) == {("all-reduce", 64): 4, ("all-gather", 320): 1}


def decoder_flops(tokens: int, pairs: int, *, ranks: int, ep_rows: float, splits_heads: bool) -> int:
    """Matrix FLOPs of one rank; `ep_rows` are rows of whole experts that it runs."""
    attention = 2 * tokens * LAYERS * 4 * WIDTH**2 + 4 * pairs * WIDTH * LAYERS
    linear = 2 * tokens * (3 * WIDTH * 6848 + SPARSE * 2 * EXPERT + WIDTH * VOCABULARY) // ranks
    router, angles = 2 * tokens * SPARSE * 64 * WIDTH, 2 * tokens * LAYERS * 64
    return attention // (ranks if splits_heads else 1) + linear + int(2 * ep_rows * EXPERT) + router + angles


@pytest.mark.slow
def test_full_size_on_two_ranks_is_arithmetic() -> None:
    first, second = lpo.trace("deepseek-ocr", tp=2).ranks
    split = 2 * VOCABULARY * WIDTH + LAYERS * 4 * WIDTH**2 + 3 * WIDTH * 6848 + SPARSE * (64 + 2) * EXPERT
    whole = SPARSE * 64 * WIDTH + 25 * WIDTH  # routers and norms
    vision = 3_336_106_240 - split - whole
    assert weight_bytes(first) == weight_bytes(second) == 2 * (split // 2 + whole + vision) == 3_738_411_520
    states, logits = TOKENS * WIDTH * 2, TOKENS * VOCABULARY * 2
    views = 2 * 456 * WIDTH * 2  # 256 tokens of the page and 2 x 100 of tiles; the other rank pads its 400
    for rank, (tiles, pages) in zip((first, second), ((2, 1), (4, 0)), strict=True):
        prefill, decode = rank.graphs
        assert collectives(prefill) == {("all-reduce", states): 25, ("all-gather", views): 1, ("all-gather", logits): 1}
        assert collectives(decode) == {("all-reduce", 2560): 25, ("all-gather", 258_560): 1}
        rows = TOKENS * 6 * SPARSE / 2  # each expert has half its width
        decoder = decoder_flops(TOKENS, TOKENS**2, ranks=2, ep_rows=rows, splits_heads=True)
        assert flops(prefill) == decoder + vision_flops(tiles=tiles, pages=pages)
        assert flops(decode) == decoder_flops(1, TOKENS + 1, ranks=2, ep_rows=3 * SPARSE, splits_heads=True)
        cache = run_memory(rank.graphs).cache
        assert cache is not None and cache.bytes_per_token == 2 * LAYERS * WIDTH * 2 // 2
    assert (states, views, logits) == (2_365_440, 2_334_720, 238_909_440)


@pytest.mark.slow
def test_full_size_experts_on_four_ranks_are_arithmetic() -> None:
    trace = lpo.trace("deepseek-ocr", tp=4, ep=4, rank=1)
    prefill, decode = trace.graphs
    # Everything but attention, routers, norms and vision is a quarter.
    quarter = 2 * VOCABULARY * WIDTH + 3 * WIDTH * 6848 + SPARSE * (64 + 2) * EXPERT
    whole = 3_336_106_240 - quarter
    assert weight_bytes(trace) == 2 * (quarter // 4 + whole) == 2_389_475_840
    views = 4 * 256 * WIDTH * 2  # the rank that encodes the page has 256 tokens, the others 200 of two tiles
    states, logits = TOKENS * WIDTH * 2, TOKENS * VOCABULARY * 2
    assert collectives(prefill) == {("all-reduce", states): 13, ("all-gather", views): 1, ("all-gather", logits): 1}
    assert collectives(decode) == {("all-reduce", 2560): 13, ("all-gather", 258_560): 1}
    # All 64 experts are chosen by 924 tokens, evenly within one row; of 6 x 924 rows experts 1, 5, ... get a quarter.
    rows = SPARSE * sum(1 for row in range(6 * TOKENS) if row % 64 % 4 == 1)
    decoder = decoder_flops(TOKENS, TOKENS**2, ranks=4, ep_rows=rows, splits_heads=False)
    assert flops(prefill) == decoder + vision_flops(tiles=2, pages=0)
    # One token chooses experts 0 to 5: numbers 1 and 5 are here.
    assert flops(decode) == decoder_flops(1, TOKENS + 1, ranks=4, ep_rows=2 * SPARSE, splits_heads=False)
