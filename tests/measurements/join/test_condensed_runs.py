"""Recordings of an H100 and an MI300X, condensed, read back and joined with a weightless trace of the same model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.harness.stage_ranges import MODULE_PREFIX
from llm_perf_opt.harness.tracers.chrome_trace import ProfiledOp, read_chrome_trace
from llm_perf_opt.measurements.join.attribution import join_recording
from llm_perf_opt.measurements.join.sides import Evidence
from llm_perf_opt.measurements.join.totals import join_totals
from tests.measurements.join.condensed_runs import condensed, facts, without_host
from tests.measurements.join.traced_models import traced

RUNS = [(gpu, model) for gpu in ("h100", "mi300") for model in ("vit-base-224", "qwen1.5-0.5b")]
MATMULS = {"vit-base-224": 12 * 6 + 1, "qwen1.5-0.5b": 24 * 7}  # linear layers; the pooler of the ViT


@pytest.mark.parametrize(("gpu", "model"), RUNS)
def test_every_kernel_returns_to_the_op_it_was_launched_by(gpu: str, model: str, tmp_path: Path) -> None:
    graph = traced(model)
    made = condensed(f"{gpu}-{model}", graph)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(made.document), "utf-8")
    joined = join_recording(read_recording(file).at_steps(None), graph)
    assert [work.ops for work in joined.work] == [(op,) for op in made.ops]
    assert {work.evidence for work in joined.work} <= {Evidence.OP_AND_SHAPES}
    assert joined.forwards == 1


@pytest.mark.parametrize(("gpu", "model"), RUNS)
def test_the_recorded_matmuls_are_the_traced_ones(gpu: str, model: str) -> None:
    """Two counts that know nothing of each other: launches in the recording, and linear layers in the trace."""
    _, rows = facts(f"{gpu}-{model}")
    counts = Counter({row: row.count for row in rows if row.op in ("aten::addmm", "aten::mm")})
    graph = traced(model)
    assert graph.ops is not None
    linear = [kind for kind in graph.ops.kind if graph.op_kinds[kind].name == "aten.linear.default"]
    assert counts.total() == len(linear) == MATMULS[model]


@pytest.mark.parametrize(("gpu", "model"), RUNS)
def test_names_and_times_alone_place_the_heavy_kernels(gpu: str, model: str, tmp_path: Path) -> None:
    """As a CUDA graph leaves them. The facts cut the names of small kernels: those are placed by their order alone."""
    graph = traced(model)
    made = condensed(f"{gpu}-{model}", graph)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(made.document), "utf-8")
    joined = join_recording(without_host(read_recording(file)), graph)
    both = list(zip(joined.work, made.ops, strict=True))
    heavy = [(work, op) for work, op in both if work.label in ("matmul", "attention")]
    assert len(heavy) > MATMULS[model]
    assert [work.ops for work, _ in heavy] == [(op,) for _, op in heavy]
    right = sum(work.duration_ns for work, op in both if work.ops == (op,))
    assert right >= 0.95 * sum(work.duration_ns for work in joined.work if work.ops)


@pytest.mark.parametrize(("gpu", "model"), RUNS)
def test_the_profilers_own_reader_gives_each_op_its_kernels(gpu: str, model: str) -> None:
    """By the id of the op and, on every third kernel, by the correlation of its launch."""
    made = condensed(f"{gpu}-{model}", traced(model))
    for event in made.document["traceEvents"]:
        if event["name"].startswith("module:"):
            event["name"] = f"{MODULE_PREFIX}(root)"
    run = read_chrome_trace(made.document)
    ops = [event for event in run.events if isinstance(event, ProfiledOp)]
    assert [op.device_ns for op in ops] == [round(kernel["dur"] * 1000) for kernel in made.kernels()]
    assert run.unattributed_device_ns == 0


def test_the_totals_are_those_of_the_facts(tmp_path: Path) -> None:
    """FLOPs by hand: 8,944 tokens through 24 layers of 4 square and 3 wide weights, and attention over 559 tokens."""
    graph = traced("qwen1.5-0.5b")
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(condensed("h100-qwen1.5-0.5b", graph).document), "utf-8")
    device = find_device("NVIDIA H100 80GB HBM3")
    totals = join_totals(join_recording(read_recording(file), graph), graph, device)
    matmuls = next(kind for kind in totals.op_kinds if kind.name == "matmul")
    assert matmuls.flops == 2 * 16 * 559 * 24 * (4 * 1024**2 + 3 * 1024 * 2816)
    attention = next(kind for kind in totals.op_kinds if kind.name == "attention")
    assert attention.flops == 4 * 16 * 559**2 * 1024 * 24
    _, rows = facts("h100-qwen1.5-0.5b")
    median_ns = sum(row.count * round(row.median_us * 1000) for row in rows if row.op in ("aten::addmm", "aten::mm"))
    assert matmuls.device_ns == median_ns
    assert matmuls.mfu == pytest.approx(matmuls.flops / (median_ns * 1e-9) / device.peak("bfloat16"))
    assert sum(stage.device_ns for stage in totals.stages) == totals.total.device_ns
    assert sum(module.device_ns for module in totals.modules) == totals.total.device_ns
    assert sum(kind.device_ns for kind in totals.op_kinds) == totals.total.device_ns
