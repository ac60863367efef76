"""What a decoder costs, from its sizes alone, and how a figure is read out of a printed sentence."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from llm_perf_opt.cli.app import app
from llm_perf_opt.core.errors import BrokenBudgetError

BF16 = 2
_PREFIXES = {"": 0, "k": 1, "M": 2, "G": 3, "B": 3, "T": 4, "P": 5}
_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0, "%": 0.01}
FIGURE = r"([\d.,]*\d(?:e[+-]?\d+)?(?: ?(?:[kMGTP]?FLOP|[KMGT]iB|[kMGTP]?MAC|B\b|ms|us|ns|s\b|%|[kMBT]\b))?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder as llama's: gated feed-forward of `inner`, `experts` of which `chosen` run, heads that share keys."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    width: int
    words: int
    experts: int = 0
    chosen: int = 0
    is_tied: bool = False

    @property
    def attention(self) -> int:
        """Elements of the four projections of a layer."""
        return self.hidden * self.width * 2 * (self.heads + self.key_heads)

    @property
    def expert(self) -> int:
        """Elements of one feed-forward network."""
        return 3 * self.hidden * self.inner

    def layer(self, experts: int = 1) -> int:
        """Elements of the matrices of a layer of which this many experts count, its router among them."""
        return self.attention + experts * self.expert + self.hidden * self.experts

    @property
    def head(self) -> int:
        return self.words * self.hidden

    @property
    def norms(self) -> int:
        return (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer(self.experts or 1) + self.norms + (1 if self.is_tied else 2) * self.head

    def active(self, experts: int | None = None) -> int:
        """Elements of matrices that one token meets; of a batch whose tokens reach this many experts all of them."""
        return self.layers * self.layer(experts or self.chosen or 1) + self.head

    def attention_flops(self, pairs: int) -> int:
        """Scores and weighted sums of this many pairs of query and key, in one layer."""
        return 4 * self.heads * self.width * pairs

    def prefill_flops(self, batch: int, tokens: int) -> int:
        """As written: every position in every layer, every pair, logits of the last position; rotary angles."""
        matrices = 2 * (self.layers * self.layer(self.chosen or 1) * tokens + self.head)
        return batch * (matrices + self.layers * self.attention_flops(tokens**2)) + self.width * tokens

    def unused_flops(self, batch: int, tokens: int) -> int:
        """Of the last layer all but keys and values, for all positions but the last."""
        keys = 2 * self.hidden * self.key_heads * self.width
        return batch * (tokens - 1) * 2 * (self.layer(self.chosen or 1) - keys)

    def hidden_flops(self, batch: int, tokens: int) -> int:
        """Pairs above the diagonal, and in the last layer all queries but one."""
        below = tokens * (tokens + 1) // 2
        pairs = (self.layers - 1) * (tokens**2 - below) + tokens**2 - tokens
        return batch * self.attention_flops(pairs)

    def step_flops(self, batch: int, context: int) -> int:
        """One token for each sequence, which sees `context` others and itself."""
        seen = self.layers * self.attention_flops(context + 1)
        return batch * (2 * self.active() + seen) + self.width

    @property
    def cache_per_token(self) -> int:
        return 2 * self.layers * self.key_heads * self.width * BF16

    @property
    def calls(self) -> int:
        """Of modules in one forward: per layer itself, two norms, attention with four and feed-forward with four."""
        return self.layers * (3 + 5 + 5) + 6  # and the model, its body, embedding, angles, last norm, head

    def write(self, folder: Path, **changed: Any) -> Path:
        fields: dict[str, Any] = {
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.width,
            "vocab_size": self.words,
            "tie_word_embeddings": self.is_tied,
            "max_position_embeddings": 4096,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**fields, **changed}))
        return folder


class Twin(torch.nn.Module):
    """Two layers of one class, of which one has three times the work of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(64, 300), torch.nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x).sum() + self.narrow(x).sum()


@cache
def printed(*words: str) -> str:
    """What a command prints on stdout, in one line; also where a budget is broken."""
    log = logging.getLogger("llm_perf_opt")
    before = log.handlers, log.propagate, log.level
    ran = CliRunner().invoke(app, list(words))
    log.handlers, log.propagate, log.level = before  # those of the command write to a stream that is closed by now
    if ran.exception is not None and not isinstance(ran.exception, BrokenBudgetError):
        raise AssertionError(ran.output) from ran.exception
    return " ".join(ran.stdout.split())


def told(text: str, pattern: str) -> tuple[str, ...]:
    """The figures of the sentence that fits: `#` stands for one with its unit, `~` for one that is not asked for."""
    found = re.search(pattern.replace("#", FIGURE).replace("~", FIGURE.replace("(", "(?:", 1)), text)
    assert found is not None, f"no sentence fits {pattern!r} in: {text}"
    return found.groups()


def shows(figure: str, value: float) -> bool:
    """Whether a printed figure is that value, rounded to the digits that are shown."""
    shown, half = read(figure)
    return abs(value - shown) <= half * (1 + 1e-9)


def read(figure: str) -> tuple[float, float]:
    """Its value in base units, and half of what its last digit stands for: nothing of a count that is not rounded."""
    match = re.fullmatch(r"([\d.,]+(?:e[+-]?\d+)?)( ?)(\D*)", figure)
    assert match is not None, figure
    digits, unit = match[1].replace(",", ""), match[3]
    scale = 1e9 if unit == "B" and not match[2] else _scale(unit)  # `1.10B` are parameters, `12 B` bytes
    decimals = len(digits.partition(".")[2])
    is_exact = not decimals and scale == 1 and unit != "s"
    return float(digits) * scale, 0.0 if is_exact else 0.5 * 10.0**-decimals * scale


def _scale(unit: str) -> float:
    if unit in _UNITS:
        return _UNITS[unit]
    if unit.endswith("iB"):
        return 1024.0 ** _PREFIXES[unit[0].replace("K", "k")]
    return 1.0 if unit in ("", "B", "FLOP") else 1000.0 ** _PREFIXES[unit[0]]
