"""Classes with the vendor's names and habits, a few values wide: what the patches look for, and a scripted function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


@torch.jit.script
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


class NoTPFeedForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return quick_gelu(x)


class ImageEncoderViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = NoTPFeedForward()

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp.forward(x).flatten(1).mean(1)


class DeepseekV2DecoderLayer(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + 1


class TextModel(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DeepseekV2DecoderLayer() for _ in range(depth))

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        for layer in self.layers:
            inputs_embeds = layer(inputs_embeds)
        return inputs_embeds


class DeepseekOCRModel(TextModel):
    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.sam_model = ImageEncoderViT()

    def forward(self, input_ids: Tensor, past_key_values: Any = None, images: Any = None) -> Tensor:
        embeds = input_ids.float()
        if input_ids.shape[1] != 1:
            for crops, page in images or ():
                if crops.sum() != 0:
                    self.sam_model(crops)
                embeds = embeds + self.sam_model(page)
        return super().forward(inputs_embeds=embeds)


class DeepseekOCRForCausalLM(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.model = DeepseekOCRModel(depth)

    def forward(self, input_ids: Tensor, past_key_values: Any = None, images: Any = None) -> Tensor:
        return self.model(input_ids, past_key_values=past_key_values, images=images)  # type: ignore[no-any-return]
