"""How many values per token a forward holds at its widest moments, read from one traced decode step.

Attention and elementwise work are taken as fused, and products of one input as one product, as serving engines run
them. So a moment is the results of one product and what is made of them for the next, beside the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from llm_perf_opt.analyses.necessary.anatomy import Anatomy, WeightProduct, anatomy_of
from llm_perf_opt.callgraph.dtypes import tensor_bytes
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import ops_of, tensor_offsets

_MATRICES_OF_AN_EXPERT = 3  # gate, up, down


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardWidths:
    """Values per token on one device.

    `between_products` is the widest pair of a product's results and the next product's input: in a gated MLP gate, up
    and the activated values. `routed` are the two buffers of all experts that one token takes.
    """

    hidden: int
    vocabulary: int
    between_products: int
    routed: int = 0
    value_bytes: int = 2


@dataclass(slots=True)
class _Group:
    """Products of one input."""

    storage: int
    in_width: int
    out_widths: list[int]


def forward_widths(graph: CallGraph, *, ranks: int = 1) -> ForwardWidths | None:
    """The widths of a decoder whose step `graph` is, on one of `ranks` tensor-parallel devices; None without a head.

    The last product is the head. What is as wide as the residual stream is whole on every rank, everything else is
    divided. Experts are taken as gated: three matrices of equal size.
    """
    anatomy = anatomy_of(graph)
    groups = list(_groups(graph, anatomy))
    if not groups:
        return None
    *layers, head = groups
    hidden = head.in_width

    def share(width: int) -> int:
        return width if width == hidden else -(-width // ranks)

    pairs = [
        sum(map(share, group.out_widths)) + share(following.in_width) for group, following in pairwise([*layers, head])
    ]
    return ForwardWidths(
        hidden=hidden,
        vocabulary=max(head.out_widths),
        between_products=max(pairs, default=0),
        routed=max(_routed(anatomy, hidden, ranks), default=0),
        value_bytes=_value_bytes(graph, anatomy),
    )


def _groups(graph: CallGraph, anatomy: Anatomy) -> Iterator[_Group]:
    """The products of the first forward in order, those of one input together."""
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    current: _Group | None = None
    for product in _first_products(anatomy):
        kind = graph.op_kinds[ops.kind[product.row]]
        storages = ops.input_storages[starts[product.row] : starts[product.row + 1]]
        place = next((place for place, storage in enumerate(storages) if storage not in anatomy.weights), None)
        if place is None or not kind.inputs[place].shape or not kind.outputs:
            continue
        out_width = kind.outputs[0].shape[-1]
        if current is not None and current.storage == storages[place]:
            current.out_widths.append(out_width)
            continue
        if current is not None:
            yield current
        current = _Group(storages[place], kind.inputs[place].shape[-1], [out_width])
    if current is not None:
        yield current


def _first_products(anatomy: Anatomy) -> Sequence[WeightProduct]:
    return [
        product for product in anatomy.products if anatomy.forward_of_ops[product.row] == 1 and not product.is_expansion
    ]


def _routed(anatomy: Anatomy, hidden: int, ranks: int) -> Iterator[int]:
    """For each chosen expert gate and up in one buffer, activated values in the other, none below the hidden width.

    The same buffers hold the experts' inputs and results. Source: `workspace_shapes` of vLLM's Triton experts.
    """
    for block in anatomy.experts:
        intermediate = block.matrix_elements_each // (_MATRICES_OF_AN_EXPERT * hidden)
        narrow = -(-intermediate // ranks)
        yield block.chosen * (max(2 * narrow, hidden) + max(narrow, hidden))


def _value_bytes(graph: CallGraph, anatomy: Anatomy) -> int:
    head = _first_products(anatomy)[-1]
    logits = graph.op_kinds[ops_of(graph).kind[head.row]].outputs[0]
    return tensor_bytes(replace(logits, shape=(1,)))
