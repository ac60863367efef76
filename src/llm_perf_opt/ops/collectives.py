"""Collectives between ranks: what they read and write on this device. What goes over the links is another figure.

A reduction adds as it communicates; those additions are part of the collective and no FLOPs of the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.ops.cost import OpCost, bytes_of
from llm_perf_opt.ops.memory import copy, free
from llm_perf_opt.ops.op import CalibratedWork, Kernel, KernelKind, Op, compute_dtype, registered

_FUNCTIONAL = (
    "all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_out "
    "all_gather_into_tensor_coalesced reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast"
)
_C10D = (
    "allreduce allreduce_coalesced allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced "
    "reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced alltoall alltoall_base broadcast reduce "
    "gather scatter"
)


def collective_cost(kind: OpKind) -> OpCost:
    """Reads what this rank gives and writes what it gets; a tensor that is reduced in place is both."""
    written = bytes_of(kind.outputs)
    read = bytes_of(kind.inputs) - (written if kind.mutates else 0)
    return OpCost(bytes_moved=(read or written) + written)


def point_to_point(kind: OpKind) -> OpCost:
    """A send reads its tensor, a receive writes it."""
    return OpCost(bytes_moved=bytes_of(kind.outputs or kind.inputs))


def communication(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One kernel; the links decide its time."""
    return (
        Kernel(
            kind=KernelKind.COMMUNICATION,
            dtype=compute_dtype(kind),
            flops=0,
            skippable_flops=0,
            bytes_moved=cost.bytes_moved,
            collective=collective_of(kind),
        ),
    )


def unmeasured(kind: OpKind) -> Iterable[CalibratedWork]:
    """A calibration measures one device, so it has no time for a collective."""
    raise LookupError(kind.name)


def _named(namespace: str, names: str) -> str:
    return " ".join(f"{namespace}.{name}" for name in names.split())


OPS = registered(
    {
        f"{_named('_c10d_functional', _FUNCTIONAL)} {_named('c10d', _C10D)} _dtensor.shard_dim_alltoall "
        "_c10d_functional_autograd.all_to_all_single": Op(
            price=collective_cost, kernels=communication, calibrated=unmeasured
        ),
        "c10d.send c10d.recv": Op(price=point_to_point, kernels=communication, calibrated=unmeasured),
        "_c10d_functional.wait_tensor _c10d_functional._wrap_tensor_autograd": Op(price=free),
        "fsdp.split_with_sizes_copy fsdp.chunk_cat fsdp.copy": Op(price=copy),
        "fsdp.all_gather_copy_in": Op(price=copy),
    }
)
