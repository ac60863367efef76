"""What a model is run with: the workload, and the deployment it is analysed for.

A field declared here is an option of every verb, of `profile` (`workload.NAME=...`) and of `trace()` in Python, and is
read back from saved traces. What only one model understands is declared in that model's folder. The guide to both is
`docs/contributing/add-an-option.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import OptionRecord, option
from llm_perf_opt.core.tensor_formats import CACHE_NAMES, WHAT_IF_NAMES, cache_dtype, stored_dtype

ANSWER_TOKENS = 500  # of a request to a server, where nobody says
DTYPES = ("bfloat16", "float16", "float32")
_Count = TypeVar("_Count", int, float)


def steps_after_prompt(output_tokens: _Count) -> _Count:
    """Decode steps of an answer: the prompt's own forward gives the first token."""
    return max(output_tokens - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(OptionRecord):
    """The fields that every model understands; `None` means the model's own default.

    A model that takes more declares a record that inherits from this one.
    """

    taken_by: ClassVar[str] = "The model"

    prompt_tokens: int | None = option(None, at_least=0, help="Text tokens in the prompt; image tokens come on top.")
    decode_steps: int = option(1, at_least=0, help="Tokens to decode after the prefill.")
    new_tokens: int = option(
        1,
        at_least=1,
        help="Tokens that the step after the prefill computes for each sequence. More than one: a chunk of a prefill.",
    )
    batch: int = option(1, at_least=1, help="Sequences run together.")
    dtype: str = option("bfloat16", choices=DTYPES, help="Type of weights and activations.")
    autocast: str | None = option(
        None,
        choices=("bfloat16", "float16"),
        help="Run the model inside torch.autocast with this type, as the released inference of DeepSeek-OCR does.",
    )
    attention: str | None = option(
        None,
        choices=("eager", "sdpa", "flash"),
        header_none=("model default",),
        help="Attention code; flash in deepseek-ocr alone. Default: the model's own.",
    )

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """The same workload as this record; a field that is set and not declared here is refused."""
        return workload if isinstance(workload, cls) else cls.make(**workload.changed())

    @classmethod
    def from_header(cls, header: Mapping[str, object]) -> Self:
        """The workload that a trace was made with, with the defaults that were filled in then."""
        given = {name: header[name] for name in cls.options() if name in header}
        return cls.make(
            **{name: None if value in cls.options()[name].header_none else value for name, value in given.items()}
        )

    def header(self, ran: Mapping[str, Any]) -> dict[str, Any]:
        """The workload for the header of a trace: `ran`, with the model's defaults filled in, and what else is set."""
        rest = {name: value for name, value in self.changed().items() if name not in ran}
        return {**ran, **{name: list(value) if isinstance(value, tuple) else value for name, value in rest.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode(OptionRecord):
    """Which code of a model runs: its own, or the classes that an engine has for it."""

    taken_by: ClassVar[str] = "The code of a model"

    code: str = option(
        "reference",
        choices=("reference", "vllm"),
        help="Which code runs: the model's own, or vLLM's classes for it (a folder; needs vLLM's environment).",
    )


def _weight_format(given: object) -> str:
    """The name of a stored format, as it was given."""
    stored_dtype(str(given))
    return str(given)


def _cache_format(given: object) -> str:
    cache_dtype(str(given))
    return str(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(OptionRecord):
    """How a model is served, apart from its workload; `None` means as the checkpoint says.

    `device` is the hardware, by its id in the table of devices. The torch device that code sees is another thing:
    `cuda` or `cpu`.
    """

    taken_by: ClassVar[str] = "A deployment"

    device: str | None = option(
        None, metavar="ID", help="Hardware it runs on: llm-perf-opt devices list. Several: 8x ID."
    )
    weights: str | None = option(
        None,
        metavar="FORMAT",
        read=_weight_format,
        help=f"Stored format of the weights: {', '.join(WHAT_IF_NAMES)}, ... Default: as the checkpoint says.",
    )
    cache: str | None = option(
        None,
        metavar="FORMAT",
        read=_cache_format,
        help=f"Type of the cached keys and values: {', '.join(CACHE_NAMES)}. Default: as traced.",
    )


_MM_PER_INCH = 25.4
_PAPER_MM = {
    "a3": (297.0, 420.0),
    "a4": (210.0, 297.0),
    "a5": (148.0, 210.0),
    "letter": (215.9, 279.4),
    "legal": (215.9, 355.6),
}  # width, height of an upright sheet
_PIXELS = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_PAPER = re.compile(r"([a-z]+\d?)(-landscape)?@([1-9]\d{1,3})(?:dpi)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSize:
    """A page in pixels; `name` is how it was written."""

    name: str
    width: int
    height: int

    @property
    def pixels(self) -> int:
        """Its area."""
        return self.width * self.height

    @property
    def text(self) -> str:
        """`1240x1754`, as the option `--image` takes it."""
        return f"{self.width}x{self.height}"


def read_page_size(given: str) -> PageSize:
    """`640x480`, `A4@150dpi`, `letter-landscape@300dpi`. A sheet has `round(mm / 25.4 * dpi)` pixels a side."""
    word = given.strip()
    if (match := _PIXELS.fullmatch(word)) is not None:
        return PageSize(name=word, width=int(match[1]), height=int(match[2]))
    paper = _PAPER.fullmatch(word.lower())
    if paper is None or paper[1] not in _PAPER_MM:
        raise UsageError(
            f"{given[:60]!r} is not the size of a page.",
            why=f"a page is WIDTHxHEIGHT in pixels, or a sheet at a resolution: {', '.join(_PAPER_MM)}",
            fix="write it like 1240x1754, A4@150dpi or letter-landscape@300dpi",
        )
    width, height = (round(side / _MM_PER_INCH * int(paper[3])) for side in _PAPER_MM[paper[1]])
    if paper[2]:
        width, height = height, width
    return PageSize(name=word, width=width, height=height)
