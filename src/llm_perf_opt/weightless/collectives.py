"""Collectives of `torch.distributed`: what one rank sends and receives while no other rank exists.

Three families reach the engine. `c10d.*` is what `dist.all_reduce` dispatches: it writes into its tensors and carries
its process group as a script object, so it is no `OpOverload` and has no meta kernel. `_c10d_functional.*` returns new
tensors and names its group; torch propagates its shapes. `_dtensor.*` is the same for another sharded dimension.

Values that another rank would have sent are not known. Floats are ghosts anyway. Integers steer control flow: how many
rows each rank sends to each expert, which shape comes next. They are answered by what the world says of other ranks,
and otherwise by symmetry: every other rank does what this one does. That is the truth under balanced routing, a model
of it under any other, and noted as an answer of the oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import _resolve_process_group

from llm_perf_opt.core.collectives import NAMESPACES, SYMMETRY, CollectiveKind, collective_kind, group_of
from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost
from llm_perf_opt.weightless.recording import flat_tensors

_OWN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, Ghost})
_KNOWN_TYPES: dict[Any, bool] = {}
_SIZES = CollectiveKind.ALL_TO_ALL  # ranks tell each other their row counts before they send rows


def takes_ops_apart(kind: Any) -> bool:
    """Whether tensors of this type run their ops on other tensors that they hold, as a DTensor does."""
    known = _KNOWN_TYPES.get(kind)
    if known is None:
        own = kind in _OWN_TYPES or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        known = _KNOWN_TYPES[kind] = not own
    return known


def is_collective(func: Any) -> bool:
    """Whether the op carries a process group as a script object."""
    return isinstance(func, torch._ops.TorchBindOpOverload) and func.namespace == "c10d"


def run_collective(engine: Dispatcher, func: Any, args: Sequence[Any]) -> Any:
    """Record the collective and return what its schema promises: the written tensors, and work that is done."""
    kind = collective_kind(str(func))
    written, read = _written_and_read(func, args, kind)
    group = _group_in(args)
    if group is not None and kind is not None:
        for target in written:
            if type(target) is not Ghost and not target.is_floating_point():
                _answer(engine, kind, target, read, group)
        if engine.recorder is not None:
            engine.recorder.observe_collective(func, [*read, *written], written, group_facts(group))
    return _returns(func, args, written)


def functional_facts(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, int | str] | None:
    """Of a functional collective, which names its group: the facts of that group; None for any other op."""
    if func.namespace not in NAMESPACES:
        return None
    names = [argument.name for argument in func._schema.arguments]
    if "group_name" not in names:
        return None
    place = names.index("group_name")
    name = args[place] if place < len(args) else kwargs.get("group_name")
    return None if name is None else group_facts(_resolve_process_group(name))


def group_facts(group: Any) -> dict[str, int | str]:
    """Size and ranks of a process group, and the axis of the mesh that it belongs to."""
    ranks = torch.distributed.get_process_group_ranks(group)
    facts: dict[str, int | str] = {"group_size": len(ranks), "group_ranks": str(group_of(ranks))}
    described = str(group.group_desc)
    if described.startswith("mesh_"):
        facts["axis"] = described.removeprefix("mesh_").replace("efsdp", "fsdp")
    return facts


def _written_and_read(
    func: Any, args: Sequence[Any], kind: CollectiveKind | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """By the schema's names: `output*` and a lone `tensors` are written, `input*` is read; a send writes nothing."""
    written: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if "input" in argument.name or (kind is CollectiveKind.SEND and argument.name.startswith("tensor")):
            read += flat_tensors(value)
        elif argument.name.startswith(("output", "tensor")):
            written += flat_tensors(value)
    return written, read


def _answer(
    engine: Dispatcher, kind: CollectiveKind, target: torch.Tensor, read: Sequence[torch.Tensor], group: Any
) -> None:
    """Integers from other ranks: what the world knows of them, or what this rank would have sent in their place."""
    values = engine.other_ranks(kind, tuple(target.shape)) if engine.other_ranks is not None else None
    if values is not None:
        engine.oracle.note(str(kind), "what the other rank would say")
        target.copy_(torch.as_tensor(values, dtype=target.dtype).view(target.shape))
        return
    source = next((tensor for tensor in read if type(tensor) is not Ghost), None)
    if source is None:
        return  # an all-reduce or a broadcast of equal values: every rank holds the same
    engine.oracle.note(str(kind), SYMMETRY)
    if kind is _SIZES and source.ndim > 1:
        # Row r of what is sent goes to rank r; this rank is the same row of everybody else's.
        target.copy_(source[group.rank()].expand_as(target))
    elif target.numel() == source.numel():
        target.copy_(source.view(target.shape))
    else:
        target.copy_(source.reshape(-1).repeat(target.numel() // source.numel()).view(target.shape))


def _group_in(args: Sequence[Any]) -> Any:
    for value in args:
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return torch.distributed.ProcessGroup.unbox(value)
    return None


def _returns(func: Any, args: Sequence[Any], written: Sequence[torch.Tensor]) -> Any:
    from torch._C._distributed_c10d import FakeWork

    results: list[Any] = []
    for result in func._schema.returns:
        text = str(result.type)
        if "Work" in text:
            results.append(FakeWork().boxed())
        else:
            results.append(args[0] if text.startswith("List") else written[0])
    return tuple(results) if len(results) > 1 else results[0] if results else None
