from __future__ import annotations

import pytest

from llm_perf_opt.core.callgraph import OpKind, TensorMeta
from llm_perf_opt.core.collectives import CollectiveKind, collective_kind, collective_of, group_of, read_group


def tensor(*shape: int) -> TensorMeta:
    return TensorMeta(shape, "bfloat16", "cuda:0")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d.allreduce_.default", CollectiveKind.ALL_REDUCE),
        ("_c10d_functional.all_reduce.default", CollectiveKind.ALL_REDUCE),
        ("c10d._allgather_base_.default", CollectiveKind.ALL_GATHER),
        ("c10d._reduce_scatter_base_.default", CollectiveKind.REDUCE_SCATTER),
        ("_c10d_functional.all_to_all_single.default", CollectiveKind.ALL_TO_ALL),
        ("_dtensor.shard_dim_alltoall.default", CollectiveKind.ALL_TO_ALL),
        ("c10d.recv_.default", CollectiveKind.RECV),
        ("_c10d_functional.wait_tensor.default", None),
        ("c10d.barrier.default", None),
        ("aten.broadcast_tensors.default", None),
    ],
)
def test_the_name_tells_the_kind(name: str, kind: CollectiveKind | None) -> None:
    assert collective_kind(name) is kind


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2, 3], [1, 9, 17], [0, 1, 5]])
def test_a_group_is_read_back_as_it_was_written(ranks: list[int]) -> None:
    assert read_group(str(group_of(ranks)), len(ranks)) == group_of(ranks)


@pytest.mark.parametrize(("text", "size"), [("", 2), ("a-b", 2), ("0-7", None), ("0-7", 0), ("0-7:x", 8), (None, 8)])
def test_an_unreadable_group_is_unknown(text: object, size: object) -> None:
    assert read_group(text, size) is None


def test_the_payload_is_the_larger_side() -> None:
    group = {"group_size": 8, "group_ranks": "0-7"}
    reduced = OpKind(
        name="c10d.allreduce_.default",
        inputs=(tensor(4, 8),),
        outputs=(tensor(4, 8),),
        arguments=group,
        output_aliases=(0,),
        mutates=True,
    )
    gathered = OpKind(
        name="c10d._allgather_base_.default",
        inputs=(tensor(4), tensor(32)),
        outputs=(tensor(32),),
        arguments={**group, "axis": "fsdp"},
        output_aliases=(1,),
        mutates=True,
    )
    found = collective_of(reduced), collective_of(gathered)
    assert [(record.kind, record.payload_bytes, record.axis) for record in found if record is not None] == [
        (CollectiveKind.ALL_REDUCE, 64, None),
        (CollectiveKind.ALL_GATHER, 64, "fsdp"),
    ]


def test_an_op_without_a_group_is_no_collective_that_can_be_timed() -> None:
    assert collective_of(OpKind(name="c10d.allreduce_.default", inputs=(tensor(2),), outputs=())) is None
