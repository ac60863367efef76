"""A parallel plan in a file: which modules are spread how, by rules like those that transformers' models carry.

    [tp]
    "model.layers.*.self_attn.q_proj" = "colwise"
    "model.layers.*.self_attn.o_proj" = "rowwise"

    [ep]
    "model.layers.*.mlp.experts" = "ep_dispatch_experts"

A `*` stands for the number of a layer. The styles are those of the transformers that is installed. A model whose plan
is part of its folder here takes no such rules. DeepSeek-OCR takes how the views of a page are encoded:

    [vision]
    views = "split"      # or "replicated": every rank encodes all of them
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, parse_foreign_json, parse_toml, read_bytes

PLAN_FILE = FileKind(
    name="plan file",
    fix='write tables [tp] and [ep] of rules like "model.layers.*.mlp.down_proj" = "rowwise"',
    max_bytes=2**20,
    max_elements=2**14,
    max_levels=4,
    error=UsageError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRules:
    """How the views of a page are encoded; None: as the model's own plan says."""

    views: Literal["split", "replicated"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """The rules of a file, by kind of parallelism."""

    tp: dict[str, str] = field(default_factory=dict)
    ep: dict[str, str] = field(default_factory=dict)
    vision: VisionRules = field(default_factory=VisionRules)


def read_plan_rules(path: Path) -> PlanRules:
    """The rules of a TOML file, or of a JSON file where the name ends so."""
    with naming_file(path):
        raw = read_bytes(path, PLAN_FILE)
        document = parse_foreign_json(raw, PLAN_FILE) if path.suffix == ".json" else parse_toml(raw, PLAN_FILE)
        rules = as_record(document, PlanRules, PLAN_FILE)
    if not rules.tp and not rules.ep and rules.vision.views is None:
        raise UsageError(f"The plan file {path} has no rule in it.", why="it would change nothing", fix=PLAN_FILE.fix)
    return rules
