"""The models whose functions are compared with fresh traces, one of each kind at least, and their workloads.

Sizes are the released ones. Where one trace would take more than about three seconds the depth is reduced: layers
repeat, so nothing is lost but time. The table says which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIGURATIONS = Path(__file__).parents[2] / "tests/facts/deployment/configs"
EAGER_EXPERTS = {"experts_implementation": "eager"}  # a Python loop over the experts
_DEPTHS = frozenset(
    ("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layer", "depth", "encoder_layers", "decoder_layers")
)
OCR_MODES = ("tiny", "small", "base", "large")
OCR_GRIDS = tuple((columns, rows) for columns in (1, 2, 3) for rows in (1, 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and the ranges over which its function is made.

    `source` is a folder of `CONFIGURATIONS`, or a model type whose default configuration is taken, or a registered
    model. `changes` are fields of its configuration that are set; `depth` those that make it shallower.
    """

    name: str
    kind: str
    source: str
    is_default: bool = False
    is_registered: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    depth: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: tuple[int, int] = (1, 16)
    context: tuple[int, int] = (1, 8192)
    layers: int | None = None  # at most, of each stack; None: as released

    @property
    def is_reduced(self) -> bool:
        """Whether it has fewer layers than were released."""
        return bool(self.depth) or self.layers is not None

    def model(self, folder: Path) -> str:
        """The name or folder to trace; a configuration is written to `folder`."""
        if self.is_registered:
            return self.source
        path = folder / self.name
        path.mkdir(parents=True, exist_ok=True)
        fields = _default_fields(self.source) if self.is_default else _read(self.source)
        for name, value in {**self.changes, **self.depth}.items():
            part, _, leaf = name.rpartition(".")
            (fields[part] if part else fields)[leaf] = value
        if self.layers is not None:
            fields = _shallow(fields, self.layers)
        (path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        return str(path)


def _read(source: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGURATIONS / source / "config.json").read_text(encoding="utf-8"))
    return fields


def _default_fields(model_type: str) -> dict[str, Any]:
    from benchmarks.breadth.full_size import full_size_config

    fields: dict[str, Any] = json.loads(full_size_config(model_type).config.to_json_string(use_diff=False))
    return fields


def _shallow(fields: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The same configuration with stacks of at most so many layers."""
    stacks = {name: value for name, value in fields.items() if name in _DEPTHS and isinstance(value, int)}
    deep = set(stacks.values())
    return {
        name: min(value, layers)
        if name in stacks
        else _shallow(value, layers)
        if isinstance(value, dict)
        else value[:layers]
        if isinstance(value, list) and len(value) in deep
        else value
        for name, value in fields.items()
    }


def _released(kind: str, *sources: str, **given: Any) -> Iterator[Subject]:
    for source in sources:
        yield Subject(name=source, kind=kind, source=source, **given)


def _default(kind: str, *model_types: str, **given: Any) -> Iterator[Subject]:
    for model_type in model_types:
        yield Subject(name=model_type, kind=kind, source=model_type, is_default=True, **given)


def _in_a_loop(name: str, **given: Any) -> Subject:
    return Subject(name=f"{name}, experts in a loop", kind="MoE, experts in a loop", changes=EAGER_EXPERTS, **given)


def _hugging_face() -> Iterator[Subject]:
    yield from _default("dense", "gpt2", context=(1, 1000))
    yield from _released("dense", "bert-large", context=(1, 512))
    yield from _released("GQA", "llama32-1b", "llama31-8b", "llama31-70b", "qwen3-8b")
    yield from _default("GQA", "phi3")
    yield from _released("sliding window", "mistral-7b-v0.1", "gemma3-27b-text")
    yield from _default("sliding window", "gemma2")
    yield from _released("chunked attention", "llama4-scout", context=(1, 16384))
    yield from _released("MLA", "kimi-k2", depth={"num_hidden_layers": 6})
    yield from _released("MLA", "deepseek-v3", depth={"num_hidden_layers": 6})
    yield from _released("MoE", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")
    yield from _released("MoE", "glm-4.5", depth={"num_hidden_layers": 8})
    yield from _default("MoE", "olmoe")
    yield _in_a_loop("mixtral-8x7b", source="mixtral-8x7b", depth={"num_hidden_layers": 4})
    yield _in_a_loop("qwen3-30b-a3b", source="qwen3-30b-a3b", depth={"num_hidden_layers": 2})
    yield _in_a_loop("olmoe", source="olmoe", is_default=True, depth={"num_hidden_layers": 2})
    yield from _released("hybrid", "jamba-v0.1", depth={"num_hidden_layers": 8}, context=(1, 512))
    yield from _released("hybrid", "qwen3-next", depth={"num_hidden_layers": 8}, context=(1, 4096))
    yield from _default("hybrid", "bamba", context=(1, 4096))
    yield from _released("state space", "mamba2-2.7b", depth={"num_hidden_layers": 16}, context=(1, 4096))
    yield from _default("state space", "mamba", depth={"num_hidden_layers": 4}, context=(1, 512))
    image = {"image": "448x448"}
    yield from _released("VLM", "qwen3-vl-8b", "qwen25-vl-7b", options=image)
    yield from _released("VLM", "mistral-small-3.2-24b", options=image)
    yield from _released("VLM", "gemma3-27b", options={"image": "896x896"}, depth={"text_config.num_hidden_layers": 12})
    yield from _released("encoder-decoder", "t5-3b", "flan-t5-xl", context=(1, 4096))
    yield from _default("encoder-decoder", "bart", context=(1, 1000))
    yield from _released("audio", "whisper-large-v3", context=(1, 440))
    yield from _default("audio", "qwen2_audio")


def _deepseek_ocr() -> Iterator[Subject]:
    whole = {"source": "deepseek-ocr", "kind": "OCR", "is_registered": True}
    for mode in OCR_MODES:
        yield Subject(name=f"deepseek-ocr, {mode}", options={"mode": mode}, **whole)
    for columns, rows in OCR_GRIDS:
        options = {"mode": "gundam", "crops": (columns, rows)}
        yield Subject(name=f"deepseek-ocr, gundam {columns}x{rows}", options=options, **whole)


SUBJECTS = {subject.name: subject for subject in (*_hugging_face(), *_deepseek_ocr())}
