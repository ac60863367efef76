"""The tiny twin part by part: what has a static graph costs what the trace says, what has none says where it stops."""

from __future__ import annotations

from functools import cache

import pytest

from llm_perf_opt.api.export import ExportAnswer, export_parts
from llm_perf_opt.core.export_outcome import Check, PartOutcome, Verdict
from llm_perf_opt.exports.export_matrix import PartFlops
from llm_perf_opt.tracing.origin import Origin
from tests.exports.tiny_lab import ADAPTER, FAILING, PARTS, STATIC, WORKLOAD, examined


@cache
def run() -> ExportAnswer:
    return export_parts(Origin(name="tiny", source=ADAPTER, workload=WORKLOAD), checks=("export",))


def part(name: str) -> PartOutcome:
    return next(outcome for outcome in run().parts if outcome.name == name)


def flops(name: str) -> PartFlops:
    return next(figure for figure in run().flops if figure.name == name)


@pytest.mark.parametrize("name", STATIC)
def test_a_static_part_exports(name: str) -> None:
    assert part(name).outcome(Check.EXPORT).verdict is Verdict.OK


@pytest.mark.parametrize("name", [name for name in STATIC if not name.startswith("moe-layer")])
def test_exported_traced_and_eager_agree_to_the_flop(name: str) -> None:
    found = flops(name)
    assert found.exported is not None
    assert found.exported > 0
    assert found.exported == found.traced == found.eager
    assert (found.causes, dict(found.unpriced)) == ((), {})


def test_the_vision_encoder_is_the_sum_of_its_parts() -> None:
    parts = [flops(name).exported or 0 for name in ("sam", "clip", "projector")]
    assert flops("vision").exported == sum(parts)


def test_grouped_experts_do_the_work_of_the_loop() -> None:
    grouped, loop = flops("moe-layer-grouped"), flops("moe-layer")
    assert grouped.exported == loop.traced
    assert loop.exported is None
    (cause,) = grouped.causes
    assert "no formula for aten._grouped_mm (3 calls)" in cause


def test_all_experts_cost_more_for_a_reason_that_is_named() -> None:
    found = flops("moe-layer-all-experts")
    decoder = ADAPTER.config.decoder
    tokens, width = 94, decoder.hidden_size
    routed = 2 * tokens * 3 * width * decoder.moe_intermediate_size  # of one expert on every token
    assert found.exported is not None
    assert found.traced is not None
    surplus = decoder.n_routed_experts - decoder.num_experts_per_tok
    assert found.exported - found.traced == routed * surplus
    assert found.exported == found.eager
    assert found.causes == ("the trace ran the module as it is: AllExperts: every expert sees every token",)


@pytest.mark.parametrize("name", ["moe-layer", "full-model-decode"])
def test_the_expert_loop_fails_where_it_reads_counts(name: str) -> None:
    outcome = part(name).outcome(Check.EXPORT)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error == "RuntimeError"
    assert (outcome.site or "").startswith("moe.py:")
    assert (outcome.site or "").endswith("in moe_infer")
    assert outcome.source_line == "rows_per_expert = hits.sum(dim=0).cpu().numpy()"
    assert "values of a tensor" in (outcome.reason or "")


def test_the_full_model_fails_where_it_asks_for_images() -> None:
    outcome = part("full-model").outcome(Check.EXPORT)
    assert outcome.error == "GuardOnDataDependentSymNode"
    assert (outcome.site or "").startswith("blueprint.py:")
    assert ".item() != 0" in (outcome.source_line or "")


@pytest.mark.parametrize("name", FAILING)
def test_what_to_export_instead_does_export(name: str) -> None:
    outcome = part(name).outcome(Check.EXPORT)
    assert outcome.remedy == f"export instead: {', '.join(PARTS[name].instead)}"
    assert PARTS[name].instead
    assert set(PARTS[name].instead) <= set(STATIC)


def test_a_part_without_a_graph_is_not_tried_further() -> None:
    found = examined("moe-layer", Check.DYNAMIC, Check.ONNX, Check.PARITY)
    others = [found.outcome(check) for check in (Check.DYNAMIC, Check.ONNX, Check.PARITY)]
    assert {outcome.verdict for outcome in others} == {Verdict.SKIPPED}
    assert {outcome.detail for outcome in others} == {"there is no exported graph"}


def test_attention_takes_and_gives_its_own_keys_and_values() -> None:
    found = part("attention-with-kv")
    assert [text.partition(":")[0] for text in found.inputs] == [
        "hidden_states",
        "position_ids",
        "past_key_value.0",
        "past_key_value.3",
    ]
    assert "KvCache as key and value tensors, in and out" in found.adaptations
    assert "4 tensors of the cache that it never reads left out" in found.adaptations
