"""A library's own `generate`, unmodified: prefill, a growing cache, several decode steps, greedy and sampled."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.weightless import Engine

transformers = pytest.importorskip("transformers", reason="needs the extra trace: pip install llm-perf-opt[trace]")


def tiny(name: str) -> object:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 9000,
        "num_local_experts": 4,
    }
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["Llama", "Mixtral"])
def test_generate_runs_every_step(name: str, sampled: bool) -> None:
    engine = Engine()
    with engine:
        model = tiny(name)
    lengths = []
    attention = model.model.layers[0].self_attn  # type: ignore[attr-defined]
    handle = attention.k_proj.register_forward_hook(lambda module, args, output: lengths.append(output.shape[1]))
    try:
        tokens = engine.run(
            lambda: model.generate(torch.arange(7)[None] + 5, max_new_tokens=5, do_sample=sampled)  # type: ignore[attr-defined]
        )
    finally:
        handle.remove()
    assert tokens.shape == (1, 12)
    assert lengths == [7, 1, 1, 1, 1]
    assert int(tokens[0, 7:].min()) > 100  # no special token ends the text early
