"""Measurements and costs made up for tests, with round numbers."""

from __future__ import annotations

from collections.abc import Mapping

from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import PageMeasurement, TimedPass
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork
from llm_perf_opt.measurements.profile import WorkloadCosts
from llm_perf_opt.timing.stage_work import StageWork

MS = 1_000_000


def made_pass(sam_ms: int, prefill_ms: int, steps_ms: tuple[int, ...], gap_ms: int = 1) -> TimedPass:
    stages = {
        "preprocess": (2 * MS,),
        "sam": (sam_ms * MS,),
        "prefill": (prefill_ms * MS,),
        "sampling": (MS,) * (len(steps_ms) + 1),
        "decode": tuple(step * MS for step in steps_ms),
    }
    return TimedPass(wall_ns=sum(map(sum, stages.values())) + gap_ms * MS, stages_ns=stages)


def made_page(*passes: TimedPass, image: str = "page.png", cold: TimedPass | None = None) -> PageMeasurement:
    steps = len(passes[0].stages_ns.get("decode", ()))
    return PageMeasurement(
        image=image,
        workload={"image": "100x100", "crops": None, "decode_steps": steps},
        context_tokens=100,
        decode_steps=steps,
        cache_tokens=100 + steps,
        token_ids=(1,) * (steps + 1),
        text=None,
        passes=passes,
        cold=cold,
        peak_process_bytes=3000,
        peak_device_bytes=None,
        start_process_bytes=2000,
    )


def made_needs(flops_by_dtype: Mapping[str, int], must_read_bytes: int | None) -> NecessaryWork:
    """Work that has no experts and reads nothing but weights."""
    nothing = None if must_read_bytes is None else 0
    return NecessaryWork(
        flops_by_dtype=flops_by_dtype,
        weight_bytes=must_read_bytes,
        expert_bytes=nothing,
        fewest_expert_bytes=nothing,
        cache_bytes=nothing,
        other_bytes=nothing,
    )


def made_work(name: str, flops: int, bytes_moved: int, must_read_bytes: int | None = 10**6) -> StageWork:
    return StageWork(
        name=name,
        ops=10,
        launches=8,
        flops=flops,
        flops_by_dtype={"float32": flops},
        bytes_moved=bytes_moved,
        kernels={},
        unpriced_ops=0,
        necessary=made_needs({"float32": flops}, must_read_bytes),
    )


def made_costs(*works: StageWork) -> WorkloadCosts:
    return WorkloadCosts(workload={"image": "100x100"}, works={work.name: work for work in works})


DEVICE = Device(
    id="made",
    name="Made-up device",
    vendor="nobody",
    arch="none",
    peak_flops_per_s={"fp32": 10**12, "bf16": 2 * 10**12},
    bandwidth_bytes_per_s=10**11,
    memory_bytes=10**10,
    launch_overhead_ns=1000,
    sources=("made up for a test",),
)
