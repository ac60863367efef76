"""Collectives as ops of a call graph: which kind, how many bytes, between which ranks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.tensor_formats import tensor_bytes

NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"})

# How integers that another rank would have sent are answered where nothing is known of that rank.
SYMMETRY = "every rank sends what this one would"


class CollectiveKind(StrEnum):
    """What it sends and receives."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    SEND = "send"
    RECV = "recv"


# Words in the names of ops, the first that is found decides: `reduce_scatter` before `scatter` and `reduce`.
_WORDS = (
    ("reduce_scatter", CollectiveKind.REDUCE_SCATTER),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("all_reduce", CollectiveKind.ALL_REDUCE),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("all_gather", CollectiveKind.ALL_GATHER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("all_to_all", CollectiveKind.ALL_TO_ALL),
    ("shard_dim_alltoall", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("recv", CollectiveKind.RECV),
    ("send", CollectiveKind.SEND),
)


@dataclass(frozen=True, slots=True)
class GroupRanks:
    """Ranks that are evenly spaced, as on a mesh axis: `size` of them from `first` on, `stride` apart.

    A group that is not evenly spaced has no stride, and `first` and `last` alone are known of it.
    """

    size: int
    first: int
    last: int
    stride: int | None

    def __str__(self) -> str:
        if self.size == 1:
            return str(self.first)
        step = "" if self.stride == 1 else f":{self.stride}" if self.stride is not None else ":uneven"
        return f"{self.first}-{self.last}{step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective: `payload_bytes` is its largest tensor on this rank.

    That is the tensor of an all-reduce, the gathered result of an all-gather, the whole input of a reduce-scatter, and
    of an all-to-all the larger of what is sent and received.
    """

    kind: CollectiveKind
    payload_bytes: int
    group: GroupRanks
    axis: str | None = None  # of the plan: tp, ep, pp, fsdp; None: not told


def group_of(ranks: Sequence[int]) -> GroupRanks:
    """The record of a list of ranks."""
    steps = {after - before for before, after in itertools.pairwise(ranks)}
    stride = 1 if not steps else steps.pop() if len(steps) == 1 else None
    return GroupRanks(len(ranks), ranks[0], ranks[-1], stride)


def read_group(text: object, size: object) -> GroupRanks | None:
    """The group as an op's arguments hold it: `0-7`, `0-56:8`, `0-9:uneven`; None where that is not readable."""
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}|uneven))?)?", str(text))
    if match is None or type(size) is not int or size < 1:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    stride = None if match[3] == "uneven" else int(match[3] or 1)
    return GroupRanks(size, first, last, stride)


def collective_kind(name: str) -> CollectiveKind | None:
    """By the name of the op; None: it is no collective, or only waits for one."""
    namespace, _, op = name.partition(".")
    if namespace not in NAMESPACES:
        return None
    return next((kind for word, kind in _WORDS if word in op), None)


def collective_of(op: OpKind) -> Collective | None:
    """The collective that an op is; None for any other op, and where the record does not name its group."""
    kind = collective_kind(op.name)
    group = None if kind is None else read_group(op.arguments.get("group_ranks"), op.arguments.get("group_size"))
    if kind is None or group is None:
        return None
    axis = op.arguments.get("axis")
    return Collective(kind=kind, payload_bytes=_payload(op), group=group, axis=axis if isinstance(axis, str) else None)


def _payload(op: OpKind) -> int:
    """The largest of what goes in and what comes out; the tensors of a list belong together."""
    sides: Iterable[int] = (sum(map(tensor_bytes, op.inputs)), sum(map(tensor_bytes, op.outputs)))
    if op.mutates:  # what is written is among the inputs as well
        written = sum(tensor_bytes(meta) for meta in op.outputs)
        sides = (sum(map(tensor_bytes, op.inputs)) - written, written)
    return max(sides)
