"""Nsight's command lines and exports. The exports in `tests/facts/nsight` are hand-made in the programs' layout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import MeasuredKernel
from llm_perf_opt.core.plugins import OUTSIDE_PROFILERS
from llm_perf_opt.measurements.profile.profiled_model import ranged_program
from llm_perf_opt.measurements.profile.request import (
    ModelChoice,
    ProfileRequest,
    RunChoice,
    WorkloadChoice,
    read_request,
)
from llm_perf_opt.measurements.timed.nsight import (
    ncu_command,
    nsys_command,
    read_kernels_by_stage,
    read_ncu,
    read_ranges,
    run_ncu,
    run_nsys,
    table_rows,
)

FACTS = Path(__file__).parents[2] / "facts" / "nsight"


def fact(name: str) -> str:
    return (FACTS / name).read_text("utf-8")


def test_stages_are_found_among_the_ranges() -> None:
    found = read_ranges(fact("nvtx_gpu_proj_trace.csv"))
    assert [one.stage for one in found] == ["preprocess", "prefill", "sam", "clip", "sampling", "decode", "decode"]
    assert (found[1].start_ns, found[1].end_ns) == (1_100_000, 6_100_000)


def test_a_kernel_belongs_to_the_innermost_stage() -> None:
    kernels = read_kernels_by_stage(fact("cuda_gpu_trace.csv"), read_ranges(fact("nvtx_gpu_proj_trace.csv")))
    found = {(kernel.stage, kernel.name.split("<")[0]): (kernel.calls, kernel.total_ns) for kernel in kernels}
    assert found == {
        ("sam", "void flash_fwd_kernel"): (1, 800_000),
        ("sam", "gemm_bf16_128x128"): (1, 1_500_000),
        ("clip", "gemm_bf16_128x128"): (1, 900_000),
        ("prefill", "gemm_bf16_128x128"): (1, 1_000_000),
        ("prefill", "softmax_warp_forward"): (1, 400_000),
        ("sampling", "reduce_argmax"): (1, 20_000),
        ("decode", "gemv_bf16"): (3, 1_950_000),
        (None, "copy_kernel"): (1, 50_000),
    }
    assert kernels[0].total_ns == max(kernel.total_ns for kernel in kernels)


def test_metrics_of_single_launches() -> None:
    first, second, outside = read_ncu(fact("ncu_raw.csv"))
    assert (first.stage, first.name, first.total_ns) == ("decode", "gemv_bf16", 612_480)
    assert first.metrics["dram__bytes.sum"] == 21_495_808
    assert first.metrics["dram__throughput.avg.pct_of_peak_sustained_elapsed"] == 61.2
    assert second.stage == "decode"
    assert outside.stage is None
    assert all("__" in name for name in first.metrics)  # no grid, no device number


def test_another_unit_is_another_scale() -> None:
    text = fact("ncu_raw.csv").replace('"byte","%","ns","inst","%"', '"byte","%","us","inst","%"')
    assert read_ncu(text)[0].total_ns == 612_480_000


@pytest.mark.parametrize("unit", ["cycle", ""])
def test_a_unit_that_is_not_known_is_refused(unit: str) -> None:
    text = fact("ncu_raw.csv").replace('"byte","%","ns","inst","%"', f'"byte","%","{unit}","inst","%"')
    with pytest.raises(PerfOptError, match=f"the time of its kernels in {unit or 'no unit'}"):
        read_ncu(text)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(PerfOptError, match="not a table of Nsight"):
        list(table_rows("SKIPPED: no CUDA data\n", ("Name", "Start (ns)")))
    with pytest.raises(PerfOptError, match="no time of its kernels"):
        read_ncu('"ID","Kernel Name","dram__bytes.sum"\n"","","byte"\n"0","k","5"\n')


def test_captures_are_limited_to_our_ranges() -> None:
    words = nsys_command(["python", "x.py"], Path("report"))
    assert words[:2] == ["nsys", "profile"]
    assert words[-2:] == ["python", "x.py"]
    assert "--nvtx-capture=llm-perf-opt pass" in words
    assert "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0" in words  # torch's ranges are not registered strings
    assert "--nvtx-include=stage: decode/" in ncu_command(["python"], Path("log.csv"), "decode")


@pytest.mark.parametrize("name", OUTSIDE_PROFILERS.names())
def test_a_program_that_is_not_there_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfOptError, match=f"{name} is not installed"):
        OUTSIDE_PROFILERS.get(name)(["python"], tmp_path, "decode")


def stand_in(folder: Path, name: str, body: str) -> None:
    """A program of that name on the path, which writes what the real one would."""
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport pathlib, sys\nfacts = pathlib.Path({str(FACTS)!r})\n{body}")
    program.chmod(0o755)


def both_stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nsys and ncu on the path, which write what the facts hold."""
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    stand_in(
        folder,
        "nsys",
        "table = [word for word in sys.argv if word.startswith('--report=')]\n"
        "print((facts / (table[0].removeprefix('--report=') + '.csv')).read_text() if table else 'Generated')\n",
    )
    stand_in(
        folder,
        "ncu",
        "log = [word for word in sys.argv if word.startswith('--log-file=')][0].removeprefix('--log-file=')\n"
        "pathlib.Path(log).write_text((facts / 'ncu_raw.csv').read_text())\n",
    )


def test_both_are_launched_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_stand_in(tmp_path, monkeypatch)
    kernels = run_nsys(["true"], tmp_path, "decode")
    assert sum(kernel.calls for kernel in kernels if kernel.stage == "decode") == 3
    assert isinstance(run_ncu(["true"], tmp_path, "decode")[0], MeasuredKernel)


def test_a_failing_program_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    stand_in(tmp_path, "nsys", "sys.exit('the driver is too old')\n")
    with pytest.raises(PerfOptError, match="the driver is too old"):
        run_nsys(["true"], tmp_path, "decode")


def test_the_watched_process_makes_one_pass_with_ranges(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Under torch's own profiler here, which sees the same names that NVTX gets on CUDA."""
    import dataclasses

    from torch.profiler import ProfilerActivity, profile

    from llm_perf_opt.measurements.profile.profiled_model import make_ranged_pass

    request = ProfileRequest(
        model=ModelChoice(name="deepseek-ocr-tiny", dtype="float32"),
        workload=WorkloadChoice(image="40x40", mode="base", max_new_tokens=3),
        run=RunChoice(warmup=1),
    )
    file = tmp_path / "request.json"
    file.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
    assert ranged_program(file)[1:] == ["-m", "llm_perf_opt.measurements.profile.profiled_model", str(file)]
    assert read_request(file) == request
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        make_ranged_pass(request)
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["llm-perf-opt pass"] == 1
    assert (counts["stage: prefill"], counts["stage: decode"]) == (1, 2)  # the warm-up has no ranges
