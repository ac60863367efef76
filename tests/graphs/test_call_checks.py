"""Calls expected and found: worked out from configuration, page and steps, and able to fail."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph, write_callgraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.target import KEY
from llm_perf_opt.graphs.call_checks import CallCheck, call_checks
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.targets import build_blueprint, make_targets

TINY = DeepSeekOcrConfig.tiny()
FACTS = Path(__file__).parents[1] / "facts" / "deepseek_ocr"
BLOCKS, LAYERS, DEPTH, SPARSE = 3, 2, 3, 2  # of the tiny model: SAM, CLIP, decoder, and of it with experts


def by_name(checks: tuple[CallCheck, ...]) -> dict[tuple[str, str], CallCheck]:
    return {(check.phase, check.what): check for check in checks}


@pytest.mark.parametrize(("crops", "views", "tiles"), [((2, 3), 2, 6), ((1, 1), 1, 0)])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_calls_of_a_page_follow_from_images_crops_layers_and_steps(
    crops: tuple[int, int], views: int, tiles: int, batch: int
) -> None:
    trace = lpo.trace("deepseek-ocr-tiny", crops=crops, batch=batch, decode_steps=3, routing="balanced")
    checks = by_name(trace.stages().call_checks)
    expected = {
        ("prefill", "crops"): batch * tiles,
        ("prefill", "SAM blocks"): BLOCKS * views * batch,
        ("prefill", "CLIP layers"): LAYERS * views * batch,
        ("prefill", "projector"): views * batch,
        ("prefill", "decoder layers"): DEPTH,
        ("prefill", "routed experts"): SPARSE * 8,
        ("prefill", "output head"): 1,
        ("decode", "SAM blocks"): 0,
        ("decode", "decoder layers"): 3 * DEPTH,
        ("decode", "routed experts"): 3 * SPARSE * min(8, 3 * batch),
        ("decode", "output head"): 3,
    }
    assert {name: check.at_least for name, check in checks.items()} == expected
    assert {name: check.at_most for name, check in checks.items()} == expected
    assert {name: check.found for name, check in checks.items()} == expected
    assert trace.stages().calls_as_expected is True


def test_the_formula_is_told_in_words() -> None:
    checks = by_name(lpo.trace("deepseek-ocr-tiny", crops=(2, 3)).stages().call_checks)
    assert checks["prefill", "SAM blocks"].formula == "3 blocks x (1 global view + 1 batch of 6 crops)"
    assert checks["decode", "routed experts"].formula == (
        "2 layers x 1 step x experts touched: 3 of 8 (1 token choosing 3)"
    )


@pytest.mark.parametrize(
    ("routing", "least", "most"),
    [
        ("uniform", 8, 8),  # 8 * (1 - (5 / 8) ** 105) is 8
        ("one", 3, 3),
        ("random:1", 3, 8),  # which experts are drawn is not foreseen
    ],
)
def test_experts_touched_follow_the_routing_policy(routing: str, least: int, most: int) -> None:
    check = by_name(lpo.trace("deepseek-ocr-tiny", routing=routing).stages().call_checks)["prefill", "routed experts"]
    assert (check.at_least, check.at_most) == (SPARSE * least, SPARSE * most)
    assert check.is_as_expected


def test_a_model_with_a_block_too_few_is_found_out() -> None:
    """The page and the configuration say three SAM blocks; the model that runs has two."""
    smaller = replace(TINY, sam=replace(TINY.sam, num_layers=2, global_attn_indexes=(1,)))
    build = partial(build_blueprint, smaller, "eager", torch.bfloat16)
    targets = make_targets(TINY, DeepSeekOcrWorkload(crops=(2, 3), decode_steps=0), build=build)
    graphs = tuple(WeightlessTracer().trace(target) for target in targets)
    wrong = [check for check in call_checks(graphs) if not check.is_as_expected]
    assert [(check.what, check.at_least, check.found, check.difference) for check in wrong] == [
        ("SAM blocks", 6, 4, -2)
    ]
    answer = lpo.Trace(name="smaller", graphs=graphs).stages()
    assert answer.calls_as_expected is False
    assert any("SAM blocks: 6 expected" in note.text for note in answer.report().notes)
    assert "Calls expected and found" in [table.title for table in answer.summary().tables]


def test_a_page_that_the_model_cuts_otherwise_is_found_out() -> None:
    (graph,) = lpo.trace("deepseek-ocr-tiny", crops=(2, 3), decode_steps=0).graphs
    other = replace(graph, runtime={**graph.runtime, "crops_per_image": [4]})
    assert [check.what for check in call_checks([other]) if not check.is_as_expected] == ["crops"]


def test_a_fact_that_is_only_claimed_is_no_evidence() -> None:
    (graph,) = lpo.trace("deepseek-ocr-tiny", decode_steps=0).graphs
    claimed = replace(graph, runtime={name: fact for name, fact in graph.runtime.items() if name != "observed"})
    assert "crops" not in [check.what for check in call_checks([claimed])]


def test_a_saved_run_is_checked_without_the_model(tmp_path: Path) -> None:
    lpo.trace("deepseek-ocr-tiny", out=tmp_path)
    saved = lpo.load(tmp_path).stages()
    assert len(saved.call_checks) == 11 and saved.calls_as_expected


def test_the_terminal_gets_a_line_and_everything_else_the_table() -> None:
    answer = lpo.trace("deepseek-ocr-tiny").stages()
    assert "Calls expected and found" in answer.tables
    assert "Calls expected and found" not in [table.title for table in answer.summary().tables]
    assert any(note.text.startswith("Calls: 11 of 11 kinds of module ran as often") for note in answer.summary().notes)


def test_no_rule_no_table() -> None:
    linear = torch.nn.Linear(4, 4)
    answer = lpo.trace(linear, (torch.zeros(2, 4),)).stages()
    assert answer.call_checks == () and answer.calls_as_expected is None
    assert not any("Calls" in note.text for note in answer.report().notes)


@pytest.mark.parametrize("entry", [7, [{"what": "x"}], [{"formula": 3}], [{"what": "x", "formula": "y", "evil": 1}]])
def test_a_file_with_a_malformed_list_is_refused(tmp_path: Path, entry: object) -> None:
    graph = CallGraph(model="any", phase="prefill", runtime={"images": 1})
    file = tmp_path / "prefill.callgraph.json"
    write_callgraph(replace(graph, runtime={**graph.runtime, KEY: entry}), file, overwrite=False)
    with pytest.raises(PerfOptError, match="list of expected calls"):
        call_checks([read_callgraph(file)])


@pytest.mark.parametrize("mode", ["base", "gundam-2x3"])
def test_the_rule_gives_the_calls_that_the_released_code_made(mode: str) -> None:
    """Against calls recorded from a real run of the released code, of which no routing policy decided the experts."""
    recorded = json.loads((FACTS / f"callgraph-{mode}.json").read_text())
    workload = DeepSeekOcrWorkload(mode="base") if mode == "base" else DeepSeekOcrWorkload(crops=(2, 3))
    prefill, decode = make_targets(DeepSeekOcrConfig(), workload)
    for target, phase in ((prefill, "prefill"), (decode, "decode_step")):
        calls = recorded[phase]["call_counts"]
        graph = CallGraph(phase=target.phase, runtime=target.runtime, call_counts=calls)
        checks = call_checks([graph])
        assert len(checks) >= 4
        assert [check for check in checks if not check.is_as_expected] == []
