"""The first table of the one report, on runs small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace

import llm_perf_opt as lpo
from llm_perf_opt.api.cost import ask_sources
from llm_perf_opt.api.prediction import prediction_answer
from llm_perf_opt.api.whole_report import does_it_fit, does_it_serve, how_fast, what_it_costs, what_runs
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.plugins import MODELS, TRACERS
from llm_perf_opt.core.units import format_parameters, format_seconds
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.serving.fit import traced_fit
from tests.costs.memory.made_decode import made_decode
from tests.costs.small_run import small_run

H100 = find_device("h100-sxm")


def test_what_runs_counts_a_module_once_and_a_call_every_time() -> None:
    graphs = (small_run(), small_run(phase="decode"))
    cost = ask_sources(graphs, None)
    told = "4 modules in 14 calls, 192 parameters"  # the head is tied
    assert what_runs(cost, graphs) == f"{told}, 128 active per token"  # encoder and decoder, 64 each


def test_parameters_that_are_active_per_token_do_not_grow_with_the_batch() -> None:
    """What a step of a larger batch uses does: its tokens choose more experts."""
    costs = [lpo.trace("deepseek-ocr-tiny", mode="tiny", batch=batch).cost(["counted"]) for batch in (1, 8)]
    one, eight = ([cost.active_per_token, cost.active_parameters] for cost in costs)
    assert one[0] == one[1] == eight[0]
    assert eight[0] < eight[1]
    assert "used by a decode step" not in costs[0].answer[0]
    per_token, used = map(format_parameters, eight)
    assert f"{per_token} active per token, {used} used by a decode step of batch 8" in costs[1].answer[0]


def test_without_a_decode_nothing_is_active_per_token() -> None:
    graphs = (small_run(),)
    cost = ask_sources(graphs, None)
    told = what_runs(cost, graphs)
    assert told == "4 modules in 7 calls, 192 parameters"
    assert what_runs(cost, graphs, ["decode"]) == f"{told}, decode not known"


def test_costs_are_told_by_phase_and_an_unknown_part_makes_a_phase_unknown() -> None:
    stages = ask_sources((small_run(), small_run(phase="decode")), None).stages
    assert what_it_costs(stages) == "prefill 1.54 kFLOP, decode 1.54 kFLOP"  # three matmuls of 4x8 with 8x8 each
    unknown = [replace(stage, sources=()) for stage in stages]
    assert what_it_costs(unknown) == "prefill not known, decode not known"


def test_memory_is_that_of_the_worst_phase_and_held_against_the_device() -> None:
    memory = run_memory((small_run(),))
    needed = 3 * 256 + 256 + 128 + 4 * 128  # weights, a buffer, the input, the live tensors at the peak
    assert does_it_fit(memory, None) == f"{needed / 1024:.2f} KiB at the peak, of which 768 B are weights"
    tight = replace(H100, memory_bytes=needed)
    assert does_it_fit(memory, tight).startswith("yes: ")
    assert does_it_fit(memory, replace(tight, memory_bytes=needed - 1)).startswith("no: ")
    assert does_it_fit(run_memory((replace(small_run(), ops=None),)), H100) == "not known"


def test_what_the_driver_reports_decides_and_not_the_nominal_figure() -> None:
    """77 GiB of weights and a little more: an H100 has 79.6 GiB, and 80 * 10^9 bytes would be 74.5."""
    small = run_memory((small_run(),))
    large = replace(small, phases=(replace(small.phases[0], weight_bytes=77 * 2**30),))
    assert does_it_fit(large, H100).startswith("yes: ")
    assert H100.nominal_memory_bytes is not None
    assert does_it_fit(large, replace(H100, memory_bytes=H100.nominal_memory_bytes)).startswith("no: ")


def test_a_phase_that_is_not_known_may_need_more() -> None:
    memory = run_memory((small_run(),))
    needed = memory.total_bytes or 0
    told = does_it_fit(memory, replace(H100, memory_bytes=needed), ["decode"])
    assert told.startswith("not known: ") and told.endswith(", decode not known")
    assert does_it_fit(memory, replace(H100, memory_bytes=needed - 1), ["decode"]).startswith("no: ")
    prediction = prediction_answer((small_run(),), H100)
    assert how_fast((small_run(),), [prediction], ["decode"]).endswith(", decode not known")


def test_a_decode_is_told_by_the_token() -> None:
    graph = replace(made_decode(steps=4), runtime={"decode_steps": 4})
    on_h100, on_l4 = (prediction_answer((graph,), find_device(name), "fused") for name in ("h100-sxm", "l4"))
    low, high = format_seconds(on_h100.low_s / 4), format_seconds(on_h100.high_s / 4)
    assert how_fast((graph,), [on_h100]) == f"decode of one token {low} to {high}"
    told = how_fast((graph,), [on_l4, on_h100])
    assert told == f"fastest of 2 is {H100.name}: decode of one token {low} to {high}"


def test_the_answer_about_a_server_names_what_was_asked_and_the_most_that_fits() -> None:
    targets = MODELS.get("deepseek-ocr")().targets(DeepSeekOcrWorkload(mode="tiny"))
    graphs = tuple(TRACERS.get("weightless")().trace(target) for target in targets)
    told = does_it_serve(traced_fit(graphs, H100))
    assert told is not None
    (context,) = {graph.workload["context_tokens"] for graph in graphs}
    found = traced_fit(graphs, H100)
    assert found is not None
    assert told == f"a server holds 1 x {context + 1:,} tokens: yes, at most {found[1].largest_batch:,} at once"
    assert does_it_serve(traced_fit(graphs, replace(H100, memory_bytes=10**9))) == (
        f"a server holds 1 x {context + 1:,} tokens: no, at most 0 at once"
    )
    assert does_it_serve(traced_fit(graphs[:1], H100)) is None, "nothing was decoded"
