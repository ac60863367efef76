"""Which plans a model type is tried with, and where it is kept so that both sides read the same configuration."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.models.huggingface.folder import class_names, load_class
from llm_perf_opt.models.huggingface.parallel import uneven_heads

from .full_size_configs import full_size_config

MESSAGE_LENGTH = 300
PLANS = {
    "tp2": ParallelPlan(tp=2, rank=0),
    "tp8": ParallelPlan(tp=8, rank=0),
    "tp8 ep8": ParallelPlan(tp=8, ep=8, rank=0),
    "fsdp8 ep8": ParallelPlan(fsdp=8, ep=8, rank=0),
    "pp2 first": ParallelPlan(pp=2, rank=0),
    "pp2 last": ParallelPlan(pp=2, rank=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedType:
    """A model type at its default sizes: class, configuration, and a folder with that configuration."""

    model_type: str
    model_class: Any
    config: Any
    folder: Path


@contextmanager
def planned_type(model_type: str) -> Iterator[PlannedType]:
    """The type, with a folder that lives as long as the context."""
    chosen = full_size_config(model_type)
    name = chosen.class_name or class_names(model_type)[0]
    with tempfile.TemporaryDirectory() as scratch:
        fields = json.loads(chosen.config.to_json_string(use_diff=False)) | {"architectures": [name]}
        (Path(scratch) / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        yield PlannedType(
            model_type=model_type, model_class=load_class(model_type, name), config=chosen.config, folder=Path(scratch)
        )


def plans_of(rules: Mapping[str, object], only: Collection[str] = PLANS) -> dict[str, ParallelPlan]:
    """The plans among `only` to try, by name: those for which the built model has rules."""
    return {name: plan for name, plan in PLANS.items() if name in only and rules[_needed_rules(plan)]}


def _needed_rules(plan: ParallelPlan) -> str:
    return "ep" if plan.ep > 1 else "pp" if plan.pp > 1 else "tp"


def cause(config: Any, plan: ParallelPlan, message: str) -> str:
    """Why a plan is refused, in a few words: heads that do not divide, or what the library said."""
    return uneven_heads(config, plan) or re.sub(r"\s+", " ", message)[:MESSAGE_LENGTH]
