"""Real configurations, quantised ones too: FLOPs and bytes of every stage have two sources, and all is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.api.cost import cost_of
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.tracing.origin import Origin, find_adapter

pytest.importorskip("transformers", minversion="5", reason="the models come from transformers")

CONFIGS = Path(__file__).parents[2] / "facts" / "deployment" / "configs"
CAUSES = {
    "qwen3-30b-a3b": set(),
    "gpt-oss-20b-mxfp4": {"stored-format"},
    "llama31-8b-awq": {"stored-format"},
    "llama31-8b-bnb4": {"stored-format"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_two_sources_agree_on_a_deployed_model(name: str) -> None:
    origin = Origin(name=name, source=find_adapter(str(CONFIGS / name)), workload=Workload(prompt_tokens=64))
    ledger = cost_of(origin, ("counted", "torch-counter", "byte-counter")).ledger
    assert (ledger.differences, ledger.unexplained, ledger.missing) == ((), (), ())
    assert {figure.cause for figure in ledger.figures if figure.difference} == CAUSES[name]
    assert not {found.figure for found in ledger.single} & {"flops", "bytes_moved"}
