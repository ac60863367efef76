"""The blueprint computes what the released code computes, number by number."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import Tensor

from llm_perf_opt.models.deepseek_ocr.attention import LlamaRotaryEmbedding
from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from tests.models.deepseek_ocr.facts import fact

pytestmark = pytest.mark.slow  # 1.2 billion float32 weights, two real forwards: 5 GB and more than a minute


@pytest.fixture(scope="module")
def model() -> DeepseekOCRForCausalLM:
    """Three decoder layers, every weight drawn from a generator seeded with the checksum of its name."""
    config = DeepSeekOcrConfig(decoder=DecoderConfig(num_hidden_layers=3))
    with torch.device("meta"):
        model = DeepseekOCRForCausalLM(config)
    model.load_state_dict({name: initial(name, entry) for name, entry in model.state_dict().items()}, assign=True)
    for module in model.modules():
        if isinstance(module, LlamaRotaryEmbedding):
            module.inv_freq = LlamaRotaryEmbedding(module.head_dim, module.base).inv_freq
    return model.eval()


def initial(name: str, entry: Tensor) -> Tensor:
    if not entry.is_floating_point():
        return torch.arange(entry.numel()).view(entry.shape)
    noise = torch.randn(entry.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))).mul_(0.02)
    return noise.add_(1) if entry.dim() == 1 and name.endswith(".weight") else noise


@pytest.mark.parametrize("case", fact("parity")["cases"], ids=lambda case: "x".join(map(str, case["crops"])))
def test_outputs_equal_the_released_code(model: DeepseekOCRForCausalLM, case: dict[str, Any]) -> None:
    columns, rows = case["crops"]
    generator = torch.Generator().manual_seed(1234)
    page = torch.rand(1, 3, 1024, 1024, generator=generator) * 2 - 1
    tiles = torch.zeros_like(page)
    if columns * rows > 1:
        tiles = torch.rand(columns * rows, 3, 640, 640, generator=generator) * 2 - 1
    ids = torch.tensor([[0, *[128815] * (case["seq_len"] - 21), *range(5, 25)]])
    images = {
        "images": [(tiles, page)],
        "images_seq_mask": ids == 128815,
        "images_spatial_crop": torch.tensor([case["crops"]]),
    }
    vision: dict[str, Tensor] = {}  # the global view comes last and stays
    hooks = [
        model.model.sam_model.register_forward_hook(lambda _, __, output: vision.update(sam=output)),
        model.model.vision_model.register_forward_hook(lambda _, __, output: vision.update(clip=output)),
    ]
    with torch.no_grad():
        prefill = model(ids, **images)
        token = prefill.logits[0, -1].argmax()
        decode = model(token.view(1, 1), past_key_values=prefill.past_key_values, **images)
    for hook in hooks:
        hook.remove()
    assert_like(vision["sam"], case["sam"])
    assert_like(vision["clip"], case["clip"])
    assert_like(prefill.logits, case["logits"])
    assert_like(prefill.logits[0, -1], case["last_logits"])
    assert int(token) == case["argmax"]
    assert_like(decode.logits, case["decode_logits"])


def assert_like(output: Tensor, released: dict[str, Any]) -> None:
    """Shape, mean, deviation and 16 evenly spaced values, within a thousandth.

    Of the value, or of a hundredth of the deviation where a value happens to lie near zero.
    """
    values = output.flatten()
    assert list(output.shape) == released["shape"]
    near_zero = 1e-5 * released["std"]
    assert values.double().mean().item() == pytest.approx(released["mean"], rel=1e-3, abs=near_zero)
    assert values.double().std().item() == pytest.approx(released["std"], rel=1e-3)
    sample = values[:: (len(values) - 1) // 15][:16].tolist()
    assert sample == pytest.approx(released["sample"], rel=1e-3, abs=near_zero)
