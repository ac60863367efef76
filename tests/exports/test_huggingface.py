"""The same lab on folders of transformers models: a dense layer, a mixture of experts, a vision tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.api.export import ExportAnswer, export
from llm_perf_opt.core.export_outcome import CHECKS_BY_NAME, Check, Verdict
from llm_perf_opt.core.plugins import FOLDERS
from tests.models.huggingface.folders import LLAMA, MIXTRAL, VISION, write_folder

pytest.importorskip("transformers", reason="a Hugging Face folder needs transformers")
pytestmark = pytest.mark.slow

SIGLIP: dict[str, Any] = {"model_type": "siglip_vision_model", **VISION}


def exported(folder: Path, config: dict[str, Any], part: str, *checks: Check) -> ExportAnswer:
    names = [name for name, check in CHECKS_BY_NAME.items() if check in (Check.EXPORT, *checks)]
    workload = {} if config is SIGLIP else {"prompt_tokens": 12}
    return export(write_folder(folder, config), part, checks=names, **workload)


def test_a_dense_layer(tmp_path: Path) -> None:
    run = exported(tmp_path, LLAMA, "model.layers.0", Check.DYNAMIC, Check.PARITY)
    (part,), (flops,) = run.parts, run.flops
    assert [part.outcome(check).verdict for check in (Check.EXPORT, Check.DYNAMIC, Check.PARITY)] == [Verdict.OK] * 3
    assert flops.exported == flops.traced == flops.eager
    assert {axis.axis: axis.verdict for axis in part.axes}["tokens"] is Verdict.OK
    assert part.parity is not None
    assert part.parity.max_abs_error < 1e-3
    assert part.parity.outputs == 3  # hidden states, keys, values
    assert any(text.startswith("DynamicCache as key and value tensors") for text in part.adaptations)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    run = exported(tmp_path, MIXTRAL, "model.layers.0.mlp")
    (part,), (flops,) = run.parts, run.flops
    assert part.outcome(Check.EXPORT).verdict is Verdict.OK
    hidden, inner, experts, chosen, tokens = 64, 96, 8, 2, 12
    assert flops.exported == flops.traced == 2 * tokens * hidden * (experts + chosen * 3 * inner)


def test_a_vision_tower(tmp_path: Path) -> None:
    run = exported(tmp_path, SIGLIP, "encoder", Check.DYNAMIC, Check.ONNX)
    (part,), (flops,) = run.parts, run.flops
    assert part.outcome(Check.ONNX).verdict is Verdict.OK
    assert flops.exported == flops.traced == flops.eager
    assert {axis.axis: axis.verdict for axis in part.axes}["batch"] is Verdict.OK


def test_without_a_part_the_first_of_each_kind_of_block_is_taken(tmp_path: Path) -> None:
    adapter: Any = FOLDERS.get("huggingface")(write_folder(tmp_path, LLAMA), False)
    assert [(part.name, part.path) for part in adapter.parts()] == [
        ("model.layers.0", "model.layers.0"),
        ("full-model", ""),
    ]
