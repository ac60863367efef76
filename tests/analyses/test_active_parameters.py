"""Weights that enter a product: followed through casts, counted once per forward, without idle experts."""

from __future__ import annotations

import pytest

from llm_perf_opt.analyses.active_parameters import active_parameters
from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.plugins import Workload
from llm_perf_opt.tracers.weightless_tracer import WeightlessTracer
from tests.analyses.small_run import small_run


def test_each_weight_of_a_product_counts_once_in_its_stage() -> None:
    """The encoder's weight is used twice; a norm multiplies nothing."""
    assert active_parameters(small_run()) == {"vision": 64, "prefill": 64}


@pytest.fixture(scope="module", params=[1, 3])
def decode(request: pytest.FixtureRequest) -> CallGraph:
    *_, target = DeepSeekOcrAdapter().targets(Workload(mode="base", decode_steps=request.param))
    return WeightlessTracer().trace(target)


def test_a_decoded_token_of_deepseek_ocr_uses_574_million_weights(decode: CallGraph) -> None:
    """The router casts its weight to float32 before it multiplies; with it the sum is the published one."""
    assert active_parameters(decode)["decode"] == 574_095_360
