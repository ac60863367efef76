"""Communication in a predicted stage: bytes, overlap at both edges, and what has no time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import calibrated_work_of, kernels_of
from llm_perf_opt.timing.collective_time import (
    NO_CLUSTER,
    NO_GROUP,
    collective_time,
    communication_of,
    overlapped,
    sent_bytes,
)
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.lower_bound import BoundBy
from llm_perf_opt.timing.predict import stage_time
from llm_perf_opt.timing.prediction_report import bound_claim
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.timing.stage_work import work_of

CLUSTER = parse_cluster("8x h100-sxm")
MIB16 = 2**24


def collective(kind: str, payload_bytes: int = MIB16, ranks: int = 8) -> Collective:
    return Collective(kind=CollectiveKind(kind), payload_bytes=payload_bytes, group=group_of(range(ranks)))


def kernel(found: Collective | None) -> Kernel:
    return Kernel(
        kind=KernelKind.COMMUNICATION,
        dtype="bfloat16",
        flops=0,
        skippable_flops=0,
        bytes_moved=2 * MIB16,
        collective=found,
    )


def all_reduce_op(**arguments: object) -> OpKind:
    meta = TensorMeta((1024, 8192), "bfloat16", "cuda:0")
    return OpKind(name="c10d.allreduce_.default", inputs=(meta,), outputs=(meta,), mutates=True, arguments=arguments)


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all-reduce", 2 * 7 / 8),
        ("all-gather", 7 / 8),
        ("reduce-scatter", 7 / 8),
        ("all-to-all", 7 / 8),
        ("broadcast", 1),
        ("send", 1),
        ("recv", 0),
    ],
)
def test_bytes_that_one_of_eight_ranks_sends(kind: str, share: float) -> None:
    assert sent_bytes(collective(kind)) == share * MIB16


def test_a_collective_is_one_kernel_of_its_own_kind() -> None:
    (found,) = kernels_of(all_reduce_op(group_size=8, group_ranks="0-7"))
    assert (found.kind, found.flops, found.bytes_moved) == (KernelKind.COMMUNICATION, 0, 2 * MIB16)
    assert found.collective == collective("all-reduce")


def test_a_calibration_of_one_machine_has_no_time_for_it() -> None:
    assert calibrated_work_of(all_reduce_op(group_size=8, group_ranks="0-7")) is None


def test_the_time_of_160_collectives_is_160_times_that_of_one() -> None:
    found = communication_of({kernel(collective("all-reduce")): 160}, CLUSTER)
    one = collective_time(collective("all-reduce"), CLUSTER)
    assert found is not None
    assert found.band is not None
    assert one.low_ns is not None
    assert found.band.low == pytest.approx(160 * one.low_ns * 1e-9)
    assert (found.collectives, found.payload_bytes) == (160, 160 * MIB16)
    assert found.sent_bytes == 160 * 2 * 7 * MIB16 // 8


@pytest.mark.parametrize(
    ("found", "cluster", "why"),
    [(collective("all-reduce"), None, NO_CLUSTER), (None, CLUSTER, NO_GROUP)],
    ids=["no cluster", "no group"],
)
def test_what_has_no_time_is_listed_and_never_zero(found: Collective | None, cluster: object, why: str) -> None:
    communication = communication_of({kernel(found): 3}, cluster)  # type: ignore[arg-type]
    assert communication is not None
    assert communication.band is None
    assert communication.exposed(Band(1.0, 1.0)) is None
    assert communication.unknown == {why: 3}


def test_ranks_that_the_cluster_does_not_have_are_unknown() -> None:
    beyond = replace(collective("all-reduce"), group=group_of(range(16)))
    communication = communication_of({kernel(beyond): 1}, CLUSTER)
    assert communication is not None
    assert communication.band is None


def test_no_collectives_no_communication() -> None:
    assert communication_of({replace(kernel(None), kind=KernelKind.VECTOR): 4}, CLUSTER) is None


def test_the_low_edge_overlaps_and_the_high_edge_adds() -> None:
    assert overlapped(Band(2.0, 3.0), Band(1.0, 5.0)) == Band(2.0, 8.0)
    assert overlapped(Band(2.0, 3.0), Band(4.0, 5.0)) == Band(4.0, 8.0)


def test_a_stage_with_an_all_reduce() -> None:
    op = all_reduce_op(group_size=8, group_ranks="0-7")
    work = work_of("decode", {op: 2})
    rates = DataSheetRates(CLUSTER.device, cluster=CLUSTER)
    found = stage_time(work, tuple(work.kernels.items()), rates)
    one = collective_time(collective("all-reduce"), CLUSTER)
    assert one.low_ns is not None
    assert one.high_ns is not None
    assert found.device_time.low == pytest.approx(2e-9 * one.low_ns)
    assert found.device_time.high == pytest.approx(2e-9 * one.high_ns)
    assert found.busy_time == Band(0.0, 0.0, 0.0)
    assert found.bound_by is BoundBy.COMMUNICATION
    assert [time.source for piece in found.pieces for time in piece.times] == ["links"]


def test_one_device_gives_no_time_and_says_so() -> None:
    work = work_of("decode", {all_reduce_op(group_size=8, group_ranks="0-7"): 2})
    found = stage_time(work, tuple(work.kernels.items()), DataSheetRates(CLUSTER.device))
    assert found.untimed == {"communication": 2}
    assert found.exposed is None


def test_the_claim_of_a_bound_keeps_every_reservation() -> None:
    """A rank of a plan, experts and measured rates each weaken it, also together."""
    device = CLUSTER.device
    rank: Any = SimpleNamespace(communication=object())
    alone: Any = SimpleNamespace(communication=None)
    assert bound_claim(device, [alone]) == "No run is faster than the lower bound"
    claim = bound_claim(device, [alone, rank], with_experts=True)
    assert "as traced" in claim and "touch fewer experts" in claim and "shards what the plan replicates may be" in claim
    assert "measured rates" in bound_claim(replace(device, is_measured=True), [rank])
