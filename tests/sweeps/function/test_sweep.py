"""A sweep against single traces, closed forms worked out by hand, and made-up phases with known bends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.number_ranges import read_range
from llm_perf_opt.core.report import LineChart
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage
from llm_perf_opt.sweeps import run_function as function_module
from llm_perf_opt.sweeps.sweep_points import Bend, LargestBatch, PointOrigin, SweepPoint, bends, largest_batch
from llm_perf_opt.sweeps.sweep_report import bend_chart, charts_over, fit_chart
from llm_perf_opt.tracing.deployed_traces import redeployed
from tests.models.huggingface.folders import TEXT, write_folder

HIDDEN, INNER, HEADS, KV_HEADS, WORDS = 32, 48, 4, 2, 100
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": WORDS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny-llama"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return place


@pytest.fixture(scope="module")
def answer(folder: Path) -> lpo.SweepAnswer:
    return lpo.sweep(folder, users="2..9", input="16..70", points=4, gpus="h100-sxm")


def weights_per_token() -> int:
    """Of the matrices that every token passes, the head apart."""
    kv = HIDDEN * HIDDEN * KV_HEADS // HEADS
    return 2 * HIDDEN * HIDDEN + 2 * kv + 3 * HIDDEN * INNER


def flops_by_hand(point: SweepPoint) -> int:
    """Two for each weight and token, four for each pair of query and key and channel, and the head on one position."""
    queries, keys = (point.context, point.context) if point.phase == "prefill" else (1, point.context + 1)
    return point.batch * (2 * queries * weights_per_token() + 4 * queries * keys * HIDDEN + 2 * HIDDEN * WORDS)


def test_every_point_costs_what_a_hand_count_says(answer: lpo.SweepAnswer) -> None:
    assert len(answer.points) == 2 * len(answer.batches.values) * len(answer.contexts.values) == 18
    for point in answer.points:
        assert point.origin is PointOrigin.FUNCTION
        assert point.flops == flops_by_hand(point)
        assert point.cache_bytes == point.batch * point.context * 2 * 2 * HIDDEN * KV_HEADS // HEADS


@pytest.mark.parametrize("place", [1, 8])
def test_a_point_is_what_a_trace_of_it_says(answer: lpo.SweepAnswer, folder: Path, place: int) -> None:
    for point in (answer.points[place], answer.points[9 + place]):
        traced = lpo.trace(folder, batch=point.batch, prompt_tokens=point.context, device="h100-sxm")
        graph = traced.graphs[traced.phases.index(point.phase)]
        one = lpo.Trace(name="one", graphs=(graph,))
        predicted = one.predict("h100-sxm", execution="fused")
        assert point.flops == one.cost(["counted"]).flops
        assert point.needed_bytes == predicted.needed_bytes
        assert point.launches == sum(stage.launches or 0 for stage in predicted.stages)
        assert point.low_s == pytest.approx(predicted.low_s, rel=1e-9)
        assert point.high_s == pytest.approx(predicted.high_s, rel=1e-9)
        assert point.lower_bound_s == pytest.approx(predicted.lower_bound_s, rel=1e-9)
        assert point.bound_by == predicted.stages[0].bound_by


def test_one_more_sequence_and_one_more_token(answer: lpo.SweepAnswer) -> None:
    by_name = {(one.what, one.phase): one for one in answer.added}
    sequence, token = by_name["sequence", "decode"], by_name["token of context", "decode"]
    assert sequence.flops == 2 * weights_per_token() + 4 * (sequence.context + 1) * HIDDEN + 2 * HIDDEN * WORDS
    assert token.flops == token.batch * 4 * HIDDEN
    assert token.cache_bytes == token.batch * 2 * 2 * HIDDEN * KV_HEADS // HEADS


def test_the_terminal_gets_answers_points_and_proof(answer: lpo.SweepAnswer) -> None:
    titles = [table.title for table in answer.summary().tables]
    assert titles == ["At a glance", "Every point", "Proven cells"]
    glance = {row[0]: row[1] for row in answer.summary().tables[0].rows}
    assert set(glance) == {
        "What does one more sequence add to prefill?",
        "What does one more sequence add to decode?",
        "What does one more token of context add to prefill?",
        "What does one more token of context add to decode?",
        "Which batch fits on NVIDIA H100 80GB SXM5?",
        "What is the bottleneck of decode?",
    }
    assert "kernel starts throughout" in str(glance["What is the bottleneck of decode?"])
    assert any("op by op" in note.text for note in answer.summary().notes)
    assert all(cell.checked_points > 0 for cell in answer.cells)


def test_points_become_a_data_frame_and_one_csv_table(answer: lpo.SweepAnswer, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = answer.to_pandas()
    assert list(frame["FLOPs"]) == [point.flops for point in answer.points]
    read = pandas.read_csv(answer.save_points(tmp_path / "points.csv"), comment="#")
    assert list(read["flops"]) == [point.flops for point in answer.points]
    low = "data_sheet_low_seconds" if answer.points[0].expected_s is None else "low_seconds"
    assert list(read[low]) == [point.low_s for point in answer.points]
    with pytest.raises(Exception, match="overwrite"):
        answer.save_points(tmp_path / "points.csv")


def test_the_page_draws_every_figure_over_batch_and_over_context(answer: lpo.SweepAnswer) -> None:
    report = answer.report()
    titles = {chart.title for chapter in report.chapters for chart in chapter.charts}
    for figure in ("FLOPs", "Bytes moved", "KV cache", "Memory needed"):
        assert {f"{figure} over batch", f"{figure} over context"} <= titles
    assert [chart.title for chart in report.charts] == [
        "Where decode bends on NVIDIA H100 80GB SXM5, context 32",
        "Time per token on NVIDIA H100 80GB SXM5: prefill against decode",
        "Largest batch that fits on NVIDIA H100 80GB SXM5",
    ]
    assert "&lt;svg" in answer._repr_html_()
    assert json.dumps(answer.to_dict())


def test_without_a_device_there_are_no_times(folder: Path) -> None:
    found = lpo.sweep(folder, users=2, input=[16, 24])
    assert {point.high_s for point in found.points} == {None}
    assert (found.bends, found.largest_batches) == ((), ())
    assert found.report().charts == ()
    assert [one.what for one in found.added] == ["token of context", "token of context"]


def test_points_that_no_cell_proves_are_traced_if_few_and_unknown_if_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = lpo.trace(folder, batch=2, prompt_tokens=16)
    function = traced.over(batch=(2, 2), context=(16, 70), traces=1)  # too few to prove anything
    assert function.phases[0].open_regions
    few = function.sweep(batch=2, context=[20, 70])
    assert {point.origin for point in few.points} == {PointOrigin.TRACE}
    assert [point.flops for point in few.points] == [flops_by_hand(point) for point in few.points]
    monkeypatch.setattr("llm_perf_opt.api.sweep.MOST_TRACED", 1)
    many = function.sweep(batch=2, context=[20, 70])
    assert {point.flops for point in many.points} == {None}
    assert any("not known" in note.text for note in many.summary().notes)
    assert "Not proven" in [table.title for table in many.summary().tables]


def test_a_point_that_fails_is_named_with_its_reason_next_to_the_points_that_are_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced, asked = function_module.trace_targets, list[tuple[int, int, str]]()

    def fails_beyond_four(tracer: Any, adapter: Any, targets: Any, deployment: Any) -> Any:
        workload = targets[0].workload
        if workload["batch"] > 4:
            asked.append((workload["batch"], workload["prompt_tokens"], targets[0].phase))
            raise PerfOptError("The model raised RuntimeError.", why="five is too many", fix="take fewer")
        return traced(tracer, adapter, targets, deployment)

    monkeypatch.setattr(function_module, "trace_targets", fails_beyond_four)
    found = lpo.sweep(folder, users=[2, 4, 9], input=[16, 24])
    failed = [point for point in found.points if point.batch == 9]
    assert [point.flops for point in found.points if point.batch < 9] == [
        flops_by_hand(point) for point in found.points if point.batch < 9
    ]
    assert {(point.origin, point.flops) for point in failed} == {(PointOrigin.FAILED, None)}
    assert len(failed) == 4
    assert len(asked) == len(set(asked)), "a point that failed is not run again"
    text = "\n".join(note.text for note in found.summary().notes)
    assert "prefill at batch 9 and context 24" in text
    assert "five is too many" in text
    assert "4 failed" in found.answer[-1]


def test_a_saved_function_is_swept_without_the_model(
    answer: lpo.SweepAnswer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = answer.save_function(tmp_path / "tiny.function.json")
    again = lpo.sweep(file, points=4, gpus="h100-sxm")
    assert again.points == answer.points
    assert (again.bends, again.largest_batches, again.added) == (answer.bends, answer.largest_batches, answer.added)
    beyond = lpo.sweep(file, users=[2, 99], input=16)
    assert [point.origin for point in beyond.points] == [PointOrigin.FUNCTION, PointOrigin.OPEN] * 2
    with pytest.raises(UsageError, match="takes no weights"):
        lpo.sweep(file, weights="fp8")


def test_the_command_prints_writes_and_refuses(
    answer: lpo.SweepAnswer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = answer.save_function(tmp_path / "tiny.function.json")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "sweep", str(file), "--points", "4", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    code, out, err = run("--gpus", "h100-sxm")
    assert code == 0
    assert out.startswith("tiny-llama, decode, +1 sequence: ")
    assert "On NVIDIA H100 80GB SXM5, engine kernels (fused, CUDA graphs), the largest batch: context 16:" in out
    assert "\n\ntiny-llama: batch 2 to 9, context 16 to 70\n\nAt a glance\n" in out
    assert "--csv sweep.csv" in err
    page, table = tmp_path / "sweep.html", tmp_path / "points.csv"
    code, out, err = run("--out", str(page), "--csv", str(table), "--input", "16,40")
    assert (code, out) == (0, "")
    assert "FLOPs over batch" in page.read_text("utf-8")
    assert table.read_text("utf-8").count("\n") == 2 + 1 + 1 + 2 * 3 * 2
    assert run("--csv", str(table))[0] == 1  # never overwritten without --force
    assert run("--json", "--input", "9..1")[0] == run("--out", "sweep.xyz")[0] == run("--weights", "fp8")[0] == 2
    assert json.loads(run("--json")[1])["title"] == "tiny-llama: batch 2 to 9, context 16 to 70"


def test_the_page_of_a_model_has_it_as_a_chapter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.api.sweep.DEFAULT_USERS", "2")
    monkeypatch.setattr("llm_perf_opt.api.sweep.DEFAULT_INPUT", "16..19")
    page = lpo.trace(folder, prompt_tokens=16).report(sweep=True)
    assert page.sweep is not None
    title = "How does it change with batch and context?"
    answers = {row[0]: row[1] for row in page.report().tables[0].rows}
    assert str(answers[title]).startswith("decode at batch 2 and context 17: one more token of context adds 256 FLOP, ")
    (chapter,) = [chapter for chapter in page.report().chapters if chapter.title == title]
    assert "Over context" in [part.title for part in chapter.chapters]


@pytest.mark.parametrize("given", [{"prompt_tokens": 7}, {"decode_steps": 2}, {"users": "8..1"}, {"points": 1}])
def test_a_workload_that_is_no_grid_is_refused_before_any_trace(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        lpo.sweep("no-such-model", **given)


def test_a_context_shorter_than_its_images_is_refused() -> None:
    with pytest.raises(UsageError, match="too short"):
        lpo.sweep("deepseek-ocr-tiny", users=1, input="8..16", mode="base")


class MadePhase:
    """A step that takes 100 us to launch, then 1 us a sequence by bandwidth, then 3 us by compute beyond 300."""

    phase, is_by_form, gpu = "decode", True, None

    def __init__(self, bytes_each: int = 0) -> None:
        self.bytes_each = bytes_each
        self.asked = 0

    def at(self, pairs: list[tuple[int, int]], *, traced: bool = False, timed: bool = True) -> list[SweepPoint]:
        self.asked += len(pairs)
        return [self._point(*pair) for pair in pairs]

    def _point(self, batch: int, context: int) -> SweepPoint:
        times = {"launches": 100e-6, "bandwidth": batch * 1e-6, "compute": batch * 3e-6 - 601e-6}
        limit = max(times, key=lambda name: times[name])
        return SweepPoint(
            phase="decode",
            batch=batch,
            context=context,
            origin=PointOrigin.FUNCTION,
            tokens=batch,
            needed_bytes=batch * context * self.bytes_each,
            lower_bound_s=times[limit] / 2,
            low_s=times[limit],
            high_s=2 * times[limit],
            bound_by=limit,
        )


def test_bends_are_found_to_the_last_batch() -> None:
    phase: Any = MadePhase()
    found = list(bends(phase, read_range("1..512", "batch"), 1024))
    assert [(bend.last_batch, bend.batch, bend.before, bend.bound_by) for bend in found] == [
        (100, 101, "launches", "bandwidth"),
        (300, 301, "bandwidth", "compute"),
    ]
    phase.is_by_form = False
    coarse = list(bends(phase, read_range("1..512", "batch"), 1024))
    assert [(bend.last_batch, bend.batch) for bend in coarse] == [(64, 128), (256, 512)]


@pytest.mark.parametrize(
    ("bytes_each", "expected"), [(10**6, (84, 85)), (1, (512, None)), (10**9, (0, 1)), (166_790, (512, None))]
)
def test_the_largest_batch_is_found_to_the_last_sequence(bytes_each: int, expected: tuple[int, int | None]) -> None:
    device = find_device("h100-sxm", None)
    phase: Any = MadePhase(bytes_each)
    found = largest_batch([phase], read_range("1..512", "batch"), 1000, device, None)
    largest = device.memory_bytes // (1000 * bytes_each)
    by_hand = (min(largest, 512), None if largest >= 512 else largest + 1)
    assert (found.batch, found.next_batch) == by_hand
    if bytes_each != 10**6:
        assert by_hand == expected
    assert phase.asked < 60


def test_a_chart_marks_where_something_else_begins_to_limit() -> None:
    device = find_device("h100-sxm", None)
    phase = MadePhase(10**6)
    curves = phase.at([(batch, 1000) for batch in (1, 10, 101, 301, 512)])
    bent = [
        Bend(phase="decode", context=1000, last_batch=100, batch=101, before="launches", bound_by="bandwidth"),
        Bend(phase="decode", context=1000, last_batch=300, batch=301, before="bandwidth", bound_by="compute"),
    ]
    (chart,) = bend_chart(curves, bent, 1000, device)
    assert isinstance(chart, LineChart)
    assert [(mark.x, mark.text) for mark in chart.marks] == [
        (1, "bottleneck: launches"),
        (101, "bandwidth from batch 101"),
        (301, "compute from batch 301"),
    ]
    assert chart.marks[1].y == pytest.approx(2e-6)
    (memory,) = [chart for chart in charts_over("batch", curves, device) if chart.title.startswith("Memory")]
    assert isinstance(memory, LineChart)
    assert [line.name for line in memory.lines] == ["decode, context 1,000", f"memory of {device.name}"]
    largest = [LargestBatch(context=one, batch=10, next_batch=11, served=None) for one in (1000, 2000)]
    (fit,) = fit_chart(largest, device)
    assert isinstance(fit, LineChart)
    assert [line.name for line in fit.lines] == ["as traced"]


def test_a_sweep_of_several_new_tokens_is_a_sweep_of_chunks(folder: Path, one_thread: None) -> None:
    """Five new tokens of each sequence see what is cached and each other: 5 x (context + 5) pairs as written."""
    found = lpo.sweep(folder, users="2,3", input="16..40", points=3, new_tokens=5)
    chunks = [point for point in found.points if point.phase == "chunk"]
    assert {(point.batch, point.context) for point in chunks} >= {(2, 16), (3, 40)}
    for point in chunks:
        pairs = 5 * (point.context + 5)
        expected = point.batch * (2 * 5 * weights_per_token() + 4 * pairs * HIDDEN + 2 * HIDDEN * WORDS)
        assert point.flops == expected
        fresh = lpo.trace(folder, batch=point.batch, prompt_tokens=point.context, new_tokens=5)
        assert point.flops == sum(stage.flops for stage in fresh.cost().stages if stage.phase == "chunk")


def test_a_point_in_another_cache_format_needs_what_it_needed(folder: Path) -> None:
    """With a batch of one, tensors of the program have equal sizes that differ elsewhere."""
    phases = lpo.sweep(folder, users="1..9", input="16..70", points=2)._function.phases
    graphs = [phase.graph_at({"batch": 1, "context": 32}) for phase in phases]
    changed = redeployed(graphs, Deployment(cache="fp8"))
    assert all(len(set(graph.tensor_metas)) == len(graph.tensor_metas) for graph in graphs)
    for graph, other in zip(graphs, changed, strict=True):
        flops = [{name: work.flops for name, work in necessary_by_stage(g).items()} for g in (graph, other)]
        assert flops[0] == flops[1]


def test_one_cell_holds_choices_of_experts_that_are_held_and_those_that_are_too_large(tmp_path: Path) -> None:
    """Two layers, four of eight experts: 262,144 tokens choose as many experts as a trace holds, twice that do not."""
    config = {
        **TEXT,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "max_position_embeddings": 40960,
    }
    run = lpo.trace(write_folder(tmp_path, config), batch=16, prompt_tokens=32768)
    grouped = [kind for kind in run.graphs[0].op_kinds if kind.name == "aten._grouped_mm.default"]
    assert {kind.arguments["groups_used"] for kind in grouped} == {8}
    function = run.over(batch=(2, 16), context=(16384, 32768))
    prefill = function.phase("prefill")
    assert [cell.region for cell in prefill.cells] == [{"batch": (2, 16), "context": (16384, 32768)}]
    assert prefill.open_regions == ()
