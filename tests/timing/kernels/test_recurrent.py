"""Gated delta rules: work by hand, rows that were measured, shapes between them, and kernels that nobody measured."""

from __future__ import annotations

import numpy as np
import pytest

from llm_perf_opt.timing.kernels.kernel_tables import kernel_tables
from llm_perf_opt.timing.kernels.recurrent import RecurrentQuery, recurrent_work
from llm_perf_opt.timing.kernels.tables import newest, read_rows
from llm_perf_opt.timing.kernels.times import TimeOrigin
from tests.timing.kernels.measured_tables import needs_tables


def query(sequences: float, queries: float, key_heads: float = 2, value_heads: float = 8) -> RecurrentQuery:
    columns = (np.array([float(number)]) for number in (sequences, queries, key_heads, value_heads))
    return RecurrentQuery(**dict(zip(("sequences", "queries", "key_heads", "value_heads"), columns, strict=True)))


def test_a_state_is_moved_once_and_updated_for_every_token() -> None:
    one, many = (recurrent_work(query(1, tokens)) for tokens in (1, 100))
    states = 8 * 128 * 128
    assert one[0][0] == 6 * states
    assert many[0][0] == 100 * one[0][0]
    assert many[1][0] - one[1][0] == 99 * 2 * (2 * 2 + 2 * 8) * 128 * 2, "rows grow, the state does not"


@needs_tables
@pytest.mark.parametrize(("phase", "queries"), [("generation", 1), ("context", 1024)])
def test_a_measured_shape_is_the_sum_of_its_two_kernels(phase: str, queries: int) -> None:
    file = newest("h200_sxm", "gdn", "vllm")
    assert file is not None
    where = f"phase = '{phase}' and seq_len = {queries} and batch_size = 8 and num_k_heads = 2 and num_v_heads = 8"
    rows = read_rows(file, ("kernel_source",), where=where)
    assert len(rows["seconds"]) == 2
    times = kernel_tables("h200-sxm", "vllm").recurrent(query(8, queries))
    assert times.origins == [TimeOrigin.MEASURED]
    assert times.seconds[0] == pytest.approx(rows["seconds"].sum(), rel=1e-3)


@needs_tables
def test_between_measured_lengths_time_lies_between() -> None:
    tables = kernel_tables("b200-sxm", "sglang")
    shorter, between, longer = (float(tables.recurrent(query(1, length)).seconds[0]) for length in (512, 900, 1024))
    assert shorter < between < longer


@needs_tables
def test_half_of_a_rule_is_no_rule() -> None:
    """On an A100 the convolution of prompts was measured and the rule was not; steps have both."""
    tables = kernel_tables("a100-sxm-80g", "sglang")
    assert tables.recurrent(query(4, 1, 16, 32)).is_known.all()
    assert not tables.recurrent(query(1, 1024, 16, 32)).is_known.any()
