"""`lpo.cluster` and the answers on devices: links, nodes, and the times of collectives."""

from __future__ import annotations

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import load_links


def test_a_cluster_tells_its_links_and_what_collectives_take() -> None:
    answer = lpo.cluster("4x8 h100-sxm")
    assert (answer.cluster.count, answer.cluster.device.id) == (32, "h100-sxm")
    frame = answer.to_pandas("Collectives").set_index(["collective", "payload"])
    row = frame.loc[("all-gather", 2**30)]
    assert row["lower bound"] == pytest.approx(31 / 32 * 2**30 / 500e9, rel=1e-6)
    assert row["lower bound"] < row["low"] < row["high"]
    assert set(frame["slowest link"]) == {"infiniband-ndr"}
    links = answer.to_pandas("Links").set_index("where")
    assert links.loc["inside a node", "each way, per GPU"] == 450 * 10**9
    assert links.loc["between nodes", "each way, per GPU"] == 50 * 10**9


def test_one_collective_over_some_ranks() -> None:
    answer = lpo.cluster("4x8 h100-sxm")
    inside = answer.time("all-reduce", 2**24, ranks=range(8))
    assert inside.link == "nvlink-4"
    assert inside == lpo.cluster("8x h100-sxm").time("all-reduce", 2**24)
    assert answer.time("all-reduce", 2**24, ranks=(0, 8, 16, 24)).link == "infiniband-ndr"


@pytest.mark.parametrize(
    ("kind", "payload", "ranks", "problem"),
    [
        ("allreduce", 1, None, "There is no collective 'allreduce'"),
        ("all-reduce", -1, None, "cannot be negative"),
        ("all-reduce", 1, (), "no ranks"),
    ],
)
def test_what_cannot_be_asked(kind: str, payload: int, ranks: tuple[int, ...] | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        lpo.cluster("8x h100-sxm").time(kind, payload, ranks)


def test_a_cluster_without_known_links_says_so_and_has_no_times() -> None:
    answer = lpo.cluster("4x tpu-v5e")
    assert {one.time.bound_ns for one in answer.collectives} == {None}
    assert "no link between the GPUs of a node of tpu-v5e is known" in repr(answer)


def test_one_gpu_has_no_collectives() -> None:
    answer = lpo.cluster("h100-sxm")
    assert {one.time.high_ns for one in answer.collectives} == {0}
    assert CollectiveKind.SEND not in {one.collective.kind for one in answer.collectives}


def test_the_list_of_devices_has_the_links_of_each() -> None:
    frame = lpo.devices().to_pandas().set_index("id")
    assert tuple(frame.loc["gb200", ["GPUs in a node", "joined by", "nodes joined by"]]) == (
        72,
        "nvlink-5",
        "infiniband-ndr",
    )
    assert frame.loc["tpu-v4", "joined by"] is None or frame.isna().loc["tpu-v4", "joined by"]


def test_a_device_shows_its_node_with_its_sources() -> None:
    shown = repr(lpo.device("b200-sxm"))
    node = load_links().nodes["b200-sxm"]
    assert "nvlink-5" in shown
    assert "gpus in a node" in shown
    assert node.disagreements
    assert "Disagrees about the node" in shown
    assert "The links between these devices are unknown" in repr(lpo.device("tpu-v4"))
