"""What an expert cannot know by itself: how many there are in its layer, and how many of them each token takes.

An expert is built from its own sizes alone. The block around it, or the router in that block, keeps the two numbers
under one of several names; they are read from there and kept apart from what the expert itself holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.module_families import family_of

# Names under which released models keep the two numbers; the first that is there decides.
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "n_experts")
_CHOSEN = ("num_experts_per_tok", "top_k", "moe_top_k", "moe_topk", "moe_k", "num_selected_experts")
_MOST_CHILDREN = 16  # a block holds a router, experts and shared experts; a longer list is the experts themselves


class LayerContexts:
    """Looks the two numbers up; each block of experts is read once."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._of_block: dict[str, tuple[int, int] | None] = {}

    def of(self, members: Iterable[str]) -> Mapping[str, Any]:
        """`num_experts` and `top_k` of the layers that the members sit in, if they are experts and all layers agree."""
        found = {self._of_member(path) for path in members}
        if len(found) != 1:
            return {}
        numbers = found.pop()
        return {} if numbers is None else {"num_experts": numbers[0], "top_k": numbers[1]}

    def _of_member(self, path: str) -> tuple[int, int] | None:
        """Up from the module to the first one that stands in a block of experts, if that is an expert."""
        while path:
            above = path.rpartition(".")[0]
            numbers = self._block(above)
            if numbers is None and above and above not in self._graph.call_counts:  # a list, as `mlp.experts`
                numbers = self._block(above.rpartition(".")[0])
            if numbers is not None:
                return numbers if self._is_expert(path, above, numbers[0]) else None
            path = above
        return None

    def _is_expert(self, path: str, above: str, experts: int) -> bool:
        """Whether the module is one of that many siblings, or holds all experts stacked."""
        family = family_of(self._graph.module_types.get(path, ""), self._graph.constructor_params.get(path))
        if path.rpartition(".")[2].isdecimal():
            return len(self._graph.module_children.get(above, ())) == experts and family != "block"
        return family == "experts" and self._block(path) is None  # the block itself keeps the numbers

    def _block(self, path: str) -> tuple[int, int] | None:
        if path not in self._of_block:
            tables = [self._graph.constructor_params.get(path, {})]
            children = self._graph.module_children.get(path, ())
            tables += [self._graph.constructor_params.get(child, {}) for child in children[:_MOST_CHILDREN]]
            experts, chosen = _first(tables, _EXPERTS), _first(tables, _CHOSEN)
            self._of_block[path] = None if experts is None or chosen is None else (experts, chosen)
        return self._of_block[path]


def _first(tables: Iterable[Mapping[str, Any]], names: Iterable[str]) -> int | None:
    """The first positive whole number under one of the names."""
    values = (table.get(name) for table in tables for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)
