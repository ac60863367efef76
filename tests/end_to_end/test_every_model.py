"""Every verb that needs no weights, on every model there is."""

from __future__ import annotations

import pytest

from llm_perf_opt.api.costing import CostRequest, run_cost
from llm_perf_opt.api.tracing import TraceRequest, run_trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import MODELS, Workload


@pytest.mark.parametrize("model", MODELS.names())
def test_its_cost_is_known_with_memory_and_nothing_unexplained(model: str) -> None:
    run = run_cost(CostRequest(model=model, workload=Workload(), sources=("counted", "torch-counter")))
    assert {graph.phase for graph in run.graphs} == {"prefill", "decode"}
    assert run.static.flops is not None
    assert run.static.ledger.unexplained == ()
    assert run.memory is not None and run.memory.total_bytes is not None


def test_an_attention_that_the_library_refuses_is_told_in_words() -> None:
    pytest.importorskip("transformers", minversion="5.0", reason="the code of the model is in transformers 5")
    with pytest.raises(UsageError, match=r"cannot build GOT-OCR 2\.0 with sdpa attention"):
        run_trace(TraceRequest(model="got-ocr2", workload=Workload(attention="sdpa")))
