"""The three tables of rules, by op.

A *value rule* runs at every occurrence, because it needs values: real ones, or the oracle's. A *shape rule* runs once
per distinct key and returns a recipe that is cached. A *real rule* serves ops that have no ghost among their arguments.
Each may return `NotImplemented` to leave the op to the general way.

Tables are keyed by `id` of the overload: hashing an `OpOverload` is a Python-level call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llm_perf_opt.weightless.propagation import overloads

Rule = Callable[..., Any]

VALUE_RULES: dict[int, Rule] = {}
SHAPE_RULES: dict[int, Rule] = {}
REAL_RULES: dict[int, Rule] = {}
_OPS_WITH_RULES: list[Any] = []  # keeps the overloads alive, so that an id stays theirs


def _register(table: dict[int, Rule], names: tuple[str, ...]) -> Callable[[Rule], Rule]:
    def decorate(rule: Rule) -> Rule:
        for func in overloads(*names):
            if id(func) in table:
                raise ValueError(f"{func} has two rules in one table")
            _OPS_WITH_RULES.append(func)
            table[id(func)] = rule
        return rule

    return decorate


def value_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the named aten ops that needs values."""
    return _register(VALUE_RULES, names)


def shape_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the named aten ops that gives a recipe."""
    return _register(SHAPE_RULES, names)


def real_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the named aten ops without ghost arguments."""
    return _register(REAL_RULES, names)


def argument(args: Sequence[Any], kwargs: Any, index: int, name: str, default: Any) -> Any:
    """An op argument that may come by position or by name."""
    return args[index] if len(args) > index else kwargs.get(name, default)
