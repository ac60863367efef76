"""Which passes count, and what of a run is kept."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.harness.environment import environment
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.measurements.timed.operator_pass import PeakMemory, resident_bytes
from llm_perf_opt.measurements.timed.stage_clock import StageClock
from llm_perf_opt.measurements.timed.timed_runs import PageRun, TimedRuns
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrTinyAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession
from tests.measurements.timed.made_pages import Pretends, made_page, on_cpu


def test_the_first_pass_is_cold_then_warm_up_then_the_passes_that_count() -> None:
    model = Pretends()
    page = TimedRuns(on_cpu(), warmup=2, repeats=3, watch=model).measure(made_page(model, 100))
    assert model.passes == ["timed 100", *["untimed 100"] * 2, *["timed 100"] * 3]
    assert len(page.passes) == 3
    assert page.cold is not None
    assert page.cold not in page.passes


def test_only_the_first_page_has_a_cold_pass_and_only_a_new_shape_is_warmed_up() -> None:
    model = Pretends()
    runs = TimedRuns(on_cpu(), warmup=1, repeats=2, watch=model)
    pages = [made_page(model, 100), made_page(model, 100, "100x2"), made_page(model, 200)]
    assert [runs.measure(page).cold is not None for page in pages] == [True, False, False]
    timed, untimed = "timed", "untimed"
    assert [line.split()[0] for line in model.passes] == [
        *(timed, untimed, timed, timed),  # cold, warm-up, two that count
        *(timed, timed),  # a shape that was met before
        *(timed, untimed, timed, timed),  # a new shape: its first pass counts as no sample either
    ]


def test_threads_of_torch_are_put_back(one_thread: None) -> None:
    threads: list[int] = []

    class Counts(Pretends):
        def stage(self, name: str) -> AbstractContextManager[object]:
            threads.append(torch.get_num_threads())
            return super().stage(name)

    model = Counts()
    runs = TimedRuns(on_cpu(), warmup=0, repeats=1, threads=2, watch=model)
    runs.measure(made_page(model, 100))
    assert set(threads) == {2}
    assert runs.environment()["torch"]["threads"] == 2
    assert torch.get_num_threads() == 1


def test_a_clock_that_fails_ends_the_stages_of_others() -> None:
    class Fails:
        def now(self) -> int:
            raise MemoryError

        def nanoseconds(self, notes: Sequence[int]) -> list[int]:
            return list(notes)

    open_stages: list[str] = []

    class Other:
        @contextmanager
        def stage(self, name: str) -> Iterator[None]:
            open_stages.append(name)
            try:
                yield
            finally:
                open_stages.remove(name)

    with pytest.raises(MemoryError), StageClock(Fails(), Other()).stage("decode"):
        pass
    assert open_stages == []


def test_samples_are_kept_one_per_time_a_stage_ran() -> None:
    model = Pretends(pause_s=0.001)
    page = TimedRuns(on_cpu(), warmup=0, repeats=2).measure(made_page(model, 100))
    for timed in page.passes:
        assert {name: len(samples) for name, samples in timed.stages_ns.items()} == {
            "preprocess": 1,
            "sam": 1,
            "prefill": 1,
            "sampling": 3,
            "decode": 2,
        }
        assert min(timed.stages_ns["decode"]) >= 1_000_000
    assert (page.decode_steps, page.context_tokens, page.cache_tokens) == (2, 100, 102)
    assert page.input_shapes == ((1, 100),)
    assert page.token_ids == (0, 0, 0)


def test_passes_of_different_length_are_no_samples_of_one_page() -> None:
    model = Pretends(steps_of_pass=(2, 2, 2, 1))
    runs = TimedRuns(on_cpu(), warmup=0, repeats=3)
    with pytest.raises(PerfOptError, match=r"decoded \[1, 2\] steps"):
        runs.measure(made_page(model, 100))


def test_a_phase_that_never_calls_the_model_is_refused() -> None:
    model = Pretends()
    page = made_page(model, 100)
    silent = replace(page.run.targets[0], invoke=lambda module, ids: module.sam(ids))
    with pytest.raises(PerfOptError, match="The prefill of pretends never called forward"):
        TimedRuns(on_cpu()).measure(replace(page, run=replace(page.run, targets=(silent,))))


def touch_fresh_pages(mebibytes: int) -> None:
    """Straight from the system, so that nothing which an allocator kept is used again."""
    with mmap.mmap(-1, mebibytes * 2**20) as pages:
        for start in range(0, len(pages), mmap.PAGESIZE):
            pages[start] = 1


def growth_of_the_peak(mebibytes: int) -> int:
    before = resident_bytes()
    memory = PeakMemory("cpu")
    touch_fresh_pages(mebibytes)
    peak = memory.process_bytes()
    assert before is not None and peak is not None
    assert memory.device_bytes() is None
    return peak - before


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system lets no peak be reset")
def test_the_peak_is_that_of_the_stretch_and_not_of_the_past() -> None:
    """The median of five: a system may take idle pages of a process back at any time."""
    touch_fresh_pages(240)
    assert 60 * 2**20 <= median(growth_of_the_peak(64) for _ in range(5)) <= 80 * 2**20


def test_the_environment_can_be_written_and_names_no_place() -> None:
    found = environment("cpu")
    text = json.dumps(found)
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["libraries"]["torch"] == torch.__version__
    assert str(Path.home()) not in text


def twin_page(max_new_tokens: int) -> PageRun:
    workload = DeepSeekOcrWorkload(
        image="90x130", mode="gundam", prompt_tokens=4, decode_steps=max_new_tokens - 1, dtype="float32"
    )
    return PageRun(image="90x130", run=DeepSeekOcrTinyAdapter().real_run(workload, None))


def test_operators_belong_to_stages_and_the_trace_can_be_opened(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    found = TimedRuns(on_cpu()).operators(twin_page(max_new_tokens=3), file, modules=True)
    by_stage = {one.stage for one in found}
    assert {"preprocess", "sam", "clip", "projector", "prefill", "decode", "sampling"} <= by_stage
    calls = {(one.stage, one.operator): one.calls for one in found}
    assert calls["sampling", "aten::argmax"] == 3
    assert calls["projector", "aten::addmm"] == 2  # the tiles, and the whole page
    assert calls["sam", "aten::convolution"] == 10  # patches, neck and two halvings, for both
    assert all(0 <= one.self_ns <= one.total_ns for one in found)
    assert all(one.device_ns is None for one in found)
    names = [event.get("name") for event in json.loads(file.read_text("utf-8"))["traceEvents"]]
    assert names.count("stage: decode") == 2
    assert names.count("module: model.layers.1.mlp.gate") == 3
    assert list(tmp_path.iterdir()) == [file]


def test_timing_changes_no_token() -> None:
    page = TimedRuns(on_cpu(), warmup=0, repeats=2).measure(twin_page(max_new_tokens=5))
    session = DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny(), weights="random", dtype="float32")
    plain = session.run_inference("90x130", 4, 5, mode="gundam")
    assert page.token_ids == plain.token_ids
    assert sum(one.unattributed_ns for one in page.passes) < 0.2 * sum(one.wall_ns for one in page.passes)


def test_a_device_that_is_not_there_is_told_before_anything_runs() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(PerfOptError, match="no CUDA device"):
        RealModels(weights="random", device="cuda")


def test_the_allocators_peak_is_asked_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of the device that the run is on, which need not be the current one."""
    resets: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
        patch.setattr(torch.cuda, "max_memory_allocated", {"cuda": 1, "cuda:1": 12345}.__getitem__)
        memory = PeakMemory("cuda:1")
        assert memory.device_bytes() == 12345
    assert resets == ["cuda:1"]
