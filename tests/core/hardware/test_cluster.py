"""Clusters as people write them, and where the ranks of a group lie on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.collectives import GroupRanks, group_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import RankPlacement, parse_cluster


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "inside", "between"),
    [
        ("h100-sxm", 1, 1, "nvlink-4", "infiniband-ndr"),
        ("8x h100-sxm", 1, 8, "nvlink-4", "infiniband-ndr"),
        ("4x h100-sxm", 1, 4, "nvlink-4", "infiniband-ndr"),
        ("16xh100-sxm", 2, 8, "nvlink-4", "infiniband-ndr"),
        ("4x8 h100-sxm", 4, 8, "nvlink-4", "infiniband-ndr"),
        ("4X8  H100-SXM", 4, 8, "nvlink-4", "infiniband-ndr"),
        ("4 x 2 h100-sxm", 4, 2, "nvlink-4", "infiniband-ndr"),
        ("8\N{MULTIPLICATION SIGN} NVIDIA H200", 1, 8, "nvlink-4", "infiniband-ndr"),
        ("72x gb200", 1, 72, "nvlink-5", "infiniband-ndr"),
        ("144x gb200", 2, 72, "nvlink-5", "infiniband-ndr"),
        ("2x8 h100-sxm via roce-400", 2, 8, "nvlink-4", "roce-400"),
        ("2x gh200-96g", 2, 1, None, "infiniband-ndr"),
        ("4x h100-nvl", 2, 2, "nvlink-4-bridge", "pcie-5-x16"),
        ("8x rtx-4090", 1, 8, "pcie-4-x16", None),
        ("256x tpu-v5e", 1, 256, None, None),
    ],
)
def test_what_a_text_means(text: str, nodes: int, per_node: int, inside: str | None, between: str | None) -> None:
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.per_node, cluster.count) == (nodes, per_node, nodes * per_node)
    assert (cluster.inside and cluster.inside.id, cluster.between and cluster.between.id) == (inside, between)


@pytest.mark.parametrize("text", ["8x h100-sxm", "4x8 h100-sxm", "2x72 gb200", "2x1 gh200-96g"])
def test_a_cluster_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_cluster(text)) == text
    assert parse_cluster(str(parse_cluster(text))) == parse_cluster(text)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        (
            "12x h100-sxm",
            "12 GPUs do not fill whole nodes",
            "8x or 16x h100-sxm, or equal parts of nodes such as 2x6",
        ),
        ("9x h100-sxm", "9 GPUs do not fill whole nodes", "write 8x or 16x h100-sxm"),
        ("2x16 h100-sxm", "does not hold 16 GPUs", "write 32x h100-sxm"),
        ("0x h100-sxm", "cannot have 0 GPUs", "write 8x h100-sxm"),
        ("99999x8 h100-sxm", "cannot have 799,992 GPUs", "write 8x h100-sxm"),
        ("", "names no cluster", "write 8x h100-sxm"),
        ("8x", "There is no device named '8x'", "devices list"),
        ("8x H100", "'H100' may mean more than one device", "such as h100-pcie"),
        ("2x8 h100-sxm via infiniband", "There is no link named 'infiniband'", "[links.<id>]"),
    ],
)
def test_what_is_refused_says_what_to_write(text: str, what: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster(text)
    assert what in caught.value.what
    assert caught.value.why
    assert fix in caught.value.fix


def test_a_node_of_ones_own_decides(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[nodes.h100-sxm]\ngpus = 6\ninside = "pcie-5-x16"\nsources = ["our rack"]\n')
    cluster = parse_cluster("12x h100-sxm", file)
    assert (cluster.nodes, cluster.per_node, cluster.between) == (2, 6, None)
    assert cluster.inside is not None
    assert cluster.inside.id == "pcie-5-x16"


@pytest.mark.parametrize(
    ("group", "placement"),
    [
        (group_of(range(8)), RankPlacement(8, 1, 8)),
        (group_of(range(8, 16)), RankPlacement(8, 1, 8)),
        (group_of(range(4, 12)), RankPlacement(8, 2, 4)),
        (group_of(range(32)), RankPlacement(32, 4, 8)),
        (group_of(range(0, 32, 8)), RankPlacement(4, 4, 1)),
        (group_of(range(1, 32, 4)), RankPlacement(8, 4, 2)),
        (group_of(range(20)), RankPlacement(20, 3, 8)),
        (group_of((3, 1)), RankPlacement(2, 1, 2)),
        (group_of((9, 1)), RankPlacement(2, 2, 1)),
        (group_of((0, 1, 5)), RankPlacement(3, 1, 3)),
        (group_of((0, 1, 9)), None),  # uneven and on two nodes: how many on which is not kept
        (group_of(range(30, 34)), None),  # not in the cluster
        (GroupRanks(5, 0, 31, 8), None),  # contradicts itself
        (GroupRanks(1, 31, 31, 1), RankPlacement(1, 1, 1)),
    ],
)
def test_where_the_ranks_of_a_group_run(group: GroupRanks, placement: RankPlacement | None) -> None:
    assert parse_cluster("4x8 h100-sxm").placement(group) == placement
