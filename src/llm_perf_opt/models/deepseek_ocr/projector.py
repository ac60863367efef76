"""The bridge from vision features to the decoder's width."""

from __future__ import annotations

from torch import Tensor, nn


class MlpProjector(nn.Module):
    """One linear map; the released family knows other kinds, the released model uses this one."""

    def __init__(self, input_dim: int, n_embed: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.n_embed = n_embed
        self.layers = nn.Linear(input_dim, n_embed)

    def forward(self, x: Tensor) -> Tensor:
        """`[views, tokens, input_dim]` to `[views, tokens, n_embed]`."""
        output: Tensor = self.layers(x)
        return output
