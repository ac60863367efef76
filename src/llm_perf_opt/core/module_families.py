"""What kind of module a class is: one table of families, decided from the class name and the constructor parameters.

The end of a class name says what the class is (`KimiLinearMoE`, `NoTPAttention`), so names are matched at their end and
without regard to case. A name that no row knows is decided by its parameters. A module is in one family or in none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

HEAVY = "heavy"  # a word for all families that hold weights or run matrix products


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFamily:
    """A word for `--only`, and what it means."""

    name: str
    meaning: str
    endings: str  # of class names, as a regular expression
    params: frozenset[str] = frozenset()  # a module of another name that keeps all of these is in the family too
    is_heavy: bool = False  # holds weights or runs matrix products: what a GPU spends its time on


FAMILIES = (
    ModuleFamily(
        name="linear",
        meaning="one product with a weight: Linear, its parallel and quantised kinds, transformers' Conv1D",
        endings=r"Linear(Layer|Projection|4bit|8bitLt|FP8)?|(?-i:^Conv1D)",
        params=frozenset({"in_features", "out_features"}),
        is_heavy=True,
    ),
    ModuleFamily(
        name="conv",
        meaning="convolutions and their transposes",
        endings=r"(?<!^)Conv(Transpose)?[123]d(Same|SamePadding)?|(?-i:^(Lazy)?Conv(Transpose)?[123]d)",
        params=frozenset({"in_channels", "out_channels", "kernel_size"}),
        is_heavy=True,
    ),
    ModuleFamily(
        name="attention",
        meaning="attention of any kind, with its projections",
        endings=r"Att(entio)?n\d?(\dd)?(Core|Wrapper)?",
        is_heavy=True,
    ),
    ModuleFamily(
        name="norm",
        meaning="normalisation: layer, RMS, batch and group norms",
        endings=r"(?<!Stable)(?<!StableLayer)Norm([123]d|fp32|Gated|Zero|Single)?",
        is_heavy=True,
    ),
    ModuleFamily(
        name="embedding",
        meaning="look-ups of tokens, and images cut into patches",
        endings=r"(?<!Rotary)(?<!Position)(?<!Positional)Embed(der|ding|dings|s)?(\dd|Table)?",
        params=frozenset({"num_embeddings", "embedding_dim"}),
        is_heavy=True,
    ),
    ModuleFamily(
        name="position",
        meaning="position encodings: rotary, sinusoidal, learned, relative",
        endings=r"(Rotary|Position|Positional)(Emb|Embed|Embedding|Embeddings|Encoder|Encoding|Bias)(\dd)?|(?-i:RoPE)",
    ),
    ModuleFamily(
        name="activation",
        meaning="elementwise functions: GELU, SiLU, ReLU, sigmoid, tanh; softmax",
        endings=r"(GELU|SiLU|Swish|ReLU6?|[PSC]?ELU|Sigmoid|Tanh|Softmax|Softplus|Mish|Activation|^GLU)(Tanh)?",
    ),
    ModuleFamily(
        name="experts",
        meaning="mixture-of-experts block, and experts stacked in one module",
        endings=r"(MoE(Block|Layer)?|Experts|SparseMLP|MixtureOfExperts)",
        is_heavy=True,
    ),
    ModuleFamily(
        name="mlp",
        meaning="feed-forward part of a layer; one expert by itself",
        endings=r"(MLP|FeedForward|FFN|ActDense|LayerFF|Expert|ExpertGLU)(Block|Layer|Network)?\d?",
        is_heavy=True,
    ),
    ModuleFamily(
        name="router",
        meaning="what sends tokens to experts",
        endings=r"(Router|MoEGate|TopKGate|TopKGating|ExpertGate)",
    ),
    ModuleFamily(
        name="recurrent",
        meaning="recurrent and state-space layers: LSTM, GRU, Mamba, delta nets",
        endings=r"(LSTM|GRU|RNN)(Cell)?|Mamba\d?(Mixer)?|SSM|DeltaNet|RecurrentBlock|Rglru",
        is_heavy=True,
    ),
    ModuleFamily(
        name="projector",
        meaning="what joins a vision or audio tower to a language model",
        endings=r"(Projector|Connector|Aligner|Merger)",
        is_heavy=True,
    ),
    ModuleFamily(name="pool", meaning="pooling", endings=r"Pool(er|ing)?([123]d)?"),
    ModuleFamily(name="dropout", meaning="dropout, idle in inference", endings=r"Drop(out|Path)\d?d?"),
    ModuleFamily(name="block", meaning="a whole layer of a stack", endings=r"(Layer|Block)"),
)
FAMILY_NAMES = tuple(family.name for family in FAMILIES)
HEAVY_NAMES = frozenset(family.name for family in FAMILIES if family.is_heavy)
_PATTERNS = [(family, re.compile(rf"(?:{family.endings})$", re.IGNORECASE)) for family in FAMILIES]


def family_of(class_name: str, constructor_params: Mapping[str, Any] | None = None) -> str | None:
    """The family of a module; None where no row of the table fits."""
    named = _family_of_name(class_name)
    if named is not None or not constructor_params:
        return named
    kept = constructor_params.keys()
    return next((family.name for family in FAMILIES if family.params and family.params <= kept), None)


@lru_cache(maxsize=4096)
def _family_of_name(class_name: str) -> str | None:
    return next((family.name for family, pattern in _PATTERNS if pattern.search(class_name)), None)


def is_heavy(class_name: str, constructor_params: Mapping[str, Any] | None = None) -> bool:
    """Whether the module holds weights or runs matrix products, by its family."""
    return family_of(class_name, constructor_params) in HEAVY_NAMES
