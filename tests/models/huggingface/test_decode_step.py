"""A decode step works on one token, whatever the architecture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, write_folder

transformers = pytest.importorskip(
    "transformers", reason="a Hugging Face folder is run by transformers, an optional extra"
)

IS_OLDER = int(transformers.__version__.split(".")[0]) < 5
PROMPT = 24
STATES = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 200}
MAMBA = {"model_type": "mamba", **STATES}
FALCON_MAMBA = {"model_type": "falcon_mamba", **STATES}
MAMBA2 = {"model_type": "mamba2", "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 8, **STATES}
RWKV = {"model_type": "rwkv", "attention_hidden_size": 64, "context_length": 256, **STATES}
WHISPER = {
    "model_type": "whisper",
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": 200,
    "max_source_positions": 50,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EVERYWHERE = [LLAMA, MIXTRAL, LLAVA, T5, WHISPER, RWKV]
NEWER = [MAMBA, FALCON_MAMBA, MAMBA2]  # earlier versions want the position of the token, which no step carries
CONFIGS = [
    *EVERYWHERE,
    *(pytest.param(config, marks=pytest.mark.skipif(IS_OLDER, reason="does not decode there")) for config in NEWER),
]


def name_of(config: dict[str, Any]) -> str:
    return str(config["model_type"])


def targets_of(folder: Path, config: dict[str, Any], dtype: str = "bfloat16") -> tuple[Target, ...]:
    workload = Workload(prompt_tokens=PROMPT, dtype=dtype)
    return HuggingFaceAdapter(write_folder(folder, config), False).targets(workload)


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_a_step_gives_one_position(tmp_path: Path, config: dict[str, Any]) -> None:
    prefill, decode = targets_of(tmp_path, config, dtype="float32")
    with torch.no_grad():
        output: Any = decode.run(prefill.build())
    assert output.logits.shape[:2] == (1, 1)


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_every_linear_layer_of_a_step_sees_one_row(tmp_path: Path, config: dict[str, Any]) -> None:
    """An output of one position is not enough: a mask may stretch the token inside a layer that cuts it again."""
    *_, decode = targets_of(tmp_path, config)
    graph = WeightlessTracer().trace(decode)
    linear = [
        path for path, kind in graph.module_types.items() if kind.endswith("Linear") and path in graph.call_counts
    ]
    rows = {math.prod(seen.tensors[0].shape[:-1]) for path in linear for seen in graph.input_metadata[path]}
    assert linear
    assert max(rows) == 1  # an idle expert may be called with none


@pytest.mark.skipif(IS_OLDER, reason="does not decode there")
@pytest.mark.parametrize("config", [MAMBA, FALCON_MAMBA], ids=name_of)
def test_a_step_of_mamba_costs_what_its_sizes_say(tmp_path: Path, config: dict[str, Any]) -> None:
    """The convolution runs over its state of 4 positions and the token: two results, of which one is kept."""
    width, inner, rank, state, kernel = 64, 128, 4, 16, 4
    weights = width * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * width
    layer = weights + 2 * kernel * inner + inner * state
    *_, decode = targets_of(tmp_path, config)
    stages = stage_costs(WeightlessTracer().trace(decode)).stages
    assert [stage.flops for stage in stages] == [2 * (2 * layer + width * 200)]
