"""Ops that change nothing about a shape: aliases and dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost
from llm_perf_opt.weightless.recipes import Fresh, GhostView, SameAs, Several
from llm_perf_opt.weightless.rules.registry import argument, shape_rule
from llm_perf_opt.weightless.spec import contiguous_spec


@shape_rule("detach", "alias", "lift_fresh", "detach_", "lift")
def alias(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return GhostView(args[0].spec, (0,)) if type(args[0]) is Ghost else NotImplemented


@shape_rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(engine: Any, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Outside training, and with probability 0, the input itself."""
    is_active = argument(args, kwargs, 2, "train", False) and argument(args, kwargs, 1, "p", 0.5) > 0
    return Fresh(args[0].spec) if is_active else SameAs((0,))


@shape_rule("native_dropout")
def native_dropout(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    mask = contiguous_spec(args[0].shape, torch.bool)
    return Several((Fresh(args[0].spec), Fresh(mask)), tuple)


@shape_rule("bernoulli.default", "bernoulli.p")
def bernoulli(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return Fresh(args[0].spec)
