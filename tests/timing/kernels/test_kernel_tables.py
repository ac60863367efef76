"""The entry: order, speed, spread, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, KernelShape, MatmulShape
from llm_perf_opt.timing.kernels.kernel_tables import Family, KernelTables, kernel_tables, load_spreads, spread_of
from llm_perf_opt.timing.kernels.tables import MEASURED_ON, system_named
from llm_perf_opt.timing.kernels.times import TimeOrigin
from tests.slowness import timed
from tests.timing.kernels.measured_tables import needs_tables

SHAPES: list[KernelShape] = [
    MatmulShape(rows=16, columns=4096, depth=4096),
    AttentionShape(
        sequences=16, queries=1, keys=3000, heads=32, key_heads=8, width=128, value_width=128, is_causal=True
    ),
    MatmulShape(rows=16, columns=4608, depth=3584, weight_format="fp8-block128"),
    ExpertsShape(tokens=64, hidden=4096, inner=14336, experts=8, chosen=2),
    MatmulShape(rows=16, columns=4096, depth=4096, weight_format="float32"),
]


@needs_tables
def test_times_come_in_the_order_of_the_shapes() -> None:
    tables = kernel_tables("h100-sxm", "vllm")
    together = tables.times(SHAPES)
    alone = [tables.times([shape]) for shape in SHAPES]
    assert np.array_equal(together.seconds, [one.seconds[0] for one in alone], equal_nan=True)
    assert together.origins == [one.origins[0] for one in alone]
    assert together.origins[-1] is TimeOrigin.ROOFLINE


@needs_tables
def test_no_shapes_no_times() -> None:
    assert len(kernel_tables("h100-sxm", "vllm").times([])) == 0


@needs_tables
def test_every_time_has_a_band_around_it() -> None:
    times = kernel_tables("h100-sxm", "vllm").times(SHAPES)
    known = times.is_known
    assert (times.spread_low[known] <= 1).all()
    assert (times.spread_high[known] >= 1).all()
    assert np.isnan(times.spread_low[~known]).all()


@needs_tables
def test_bands_widen_from_rows_to_what_lies_beyond() -> None:
    for family in (Family.MATMULS, Family.ATTENTION):
        widths = []
        for origin, dimensions in (
            (TimeOrigin.MEASURED, 0),
            (TimeOrigin.INTERPOLATED, 1),
            (TimeOrigin.EXTRAPOLATED, 0),
        ):
            spread = spread_of("h100_sxm", family, origin, dimensions)
            assert spread is not None
            widths.append(spread.high / spread.low)
        assert widths == sorted(widths), family


@pytest.mark.parametrize("system", MEASURED_ON)
def test_every_system_has_bands_of_its_own(system: str) -> None:
    families = {family for name, family, _, _ in load_spreads() if name == system}
    assert {Family.MATMULS, Family.ATTENTION} <= families


@needs_tables
def test_a_table_loads_in_well_under_a_second() -> None:
    tables = KernelTables(system_named("b200-sxm"), "trtllm")  # nothing read yet
    timed(0.5, lambda: tables.times(SHAPES[:1]))
    timed(0.5, lambda: tables.times(SHAPES[1:2]))


@needs_tables
def test_a_hundred_thousand_kernels_take_a_second() -> None:
    tables = kernel_tables("h100-sxm", "vllm")
    tables.times(SHAPES)
    random = np.random.default_rng(0)
    rows, columns, depth = (np.exp(random.uniform(0, np.log(end), 100_000)) for end in (8192, 90_000, 20_000))
    times = timed(1.0, lambda: tables.matmuls(rows, columns, depth, weight_format="bfloat16"))
    assert times.is_known.all()
    timed(1.0, lambda: tables.matmuls(rows, columns, depth, weight_format="fp8-block128"))
    timed(1.0, lambda: tables.times(SHAPES * 20_000))


@needs_tables
def test_the_package_of_the_tables_is_never_imported() -> None:
    code = (
        "import sys; from llm_perf_opt.timing.kernels.kernel_tables import kernel_tables; "
        "from llm_perf_opt.ops.kernel_shape import MatmulShape; "
        "kernel_tables('h100-sxm', 'vllm').times([MatmulShape(rows=1, columns=64, depth=64)]); "
        "assert 'aiconfigurator_core' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="no engine with measured kernels"):
        kernel_tables("h100-sxm", "llama.cpp")
