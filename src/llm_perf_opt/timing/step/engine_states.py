"""Layers without attention, which carry a state from step to step: how many, and the heads of gated delta rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.target import Json
from llm_perf_opt.timing.kernels.recurrent import HEAD_WIDTH

_HEADS = ("num_k_heads", "num_v_heads")
_WIDTHS = ("head_k_dim", "head_v_dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStates:
    """The states of `layers` layers. Heads are those of a gated delta rule; 0: another rule, known by its bytes."""

    layers: int
    layer_bytes: int  # of one sequence
    key_heads: int = 0
    value_heads: int = 0


def engine_states(graph: CallGraph, layers: int, state_bytes: int) -> EngineStates | None:
    """Of so many layers with so many bytes in all; None: a model without them."""
    if layers <= 0:
        return None
    head_counts = {heads for params in graph.constructor_params.values() if (heads := _delta_heads(params)) is not None}
    key_heads, value_heads = head_counts.pop() if len(head_counts) == 1 else (0, 0)
    return EngineStates(layers=layers, layer_bytes=state_bytes // layers, key_heads=key_heads, value_heads=value_heads)


def _delta_heads(params: Mapping[str, Json]) -> tuple[int, int] | None:
    """Heads of keys and of values of a module that says both, in the one width that was measured."""
    keys, values = (params.get(name) for name in _HEADS)
    is_measured = all(params.get(name) == HEAD_WIDTH for name in _WIDTHS)
    return (keys, values) if is_measured and isinstance(keys, int) and isinstance(values, int) else None
