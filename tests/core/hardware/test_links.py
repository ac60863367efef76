"""The package's links and nodes: every row says where it was read, and agrees with data sheets and arithmetic."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Link, Node, device_template, find_device, load_devices, load_links
from llm_perf_opt.core.hardware.links import LinkKind
from llm_perf_opt.core.hardware.priors import link_priors

TABLE = load_links()
DEVICES = load_devices().devices
LINK_KEYS = {"gb_per_s_each_way", "gb_per_s_to_one_peer", "latency_us", "reduces_in_network"}
NODE_KEYS = {"gpus", "inside", "between"}
PLAUSIBLE = {  # kind -> bytes/s in one direction of one GPU, least and most of what is sold
    LinkKind.NVLINK: (150e9, 900e9),
    LinkKind.INFINITY_FABRIC: (350e9, 535.5e9),
    LinkKind.PCIE: (15.7e9, 121e9),
    LinkKind.INFINIBAND: (25e9, 100e9),
    LinkKind.ROCE: (12.5e9, 525e9),
    LinkKind.CHIP_TO_CHIP: (450e9, 450e9),
}
MINE = """
[links.lab-ring]
name = "A ring of ours"
kind = "ethernet"
gb_per_s_each_way = 1.25
latency_us = 30
sources = ["measured"]

[nodes.h100-sxm]
gpus = 4
inside = "nvlink-4"
between = "lab-ring"
sources = ["our rack"]
"""


def on_data_sheets(node: Node) -> bool:
    return node.inside is not None and node.inside.kind in (LinkKind.NVLINK, LinkKind.PCIE)


@pytest.mark.parametrize("link", TABLE.links.values(), ids=lambda link: link.id)
def test_every_link_is_plausible_in_one_direction_and_names_its_sources(link: Link) -> None:
    low, high = PLAUSIBLE[link.kind]
    assert low <= link.bytes_per_s <= high
    assert link.sources
    assert set(link.unverified) <= LINK_KEYS
    assert link.latency_ns is None or 500 <= link.latency_ns <= 5_000
    assert link.kind is LinkKind.CHIP_TO_CHIP or link.latency_ns is not None
    if link.peer_bytes_per_s is not None:
        assert link.bytes_per_s % link.peer_bytes_per_s == 0


@pytest.mark.parametrize("node", TABLE.nodes.values(), ids=lambda node: node.device)
def test_every_node_belongs_to_a_device_and_names_its_sources(node: Node) -> None:
    assert node.device in DEVICES
    assert node.sources
    assert set(node.unverified) <= NODE_KEYS
    assert (node.gpus > 1) == (node.inside is not None)
    assert node.between is None or node.inside is None or node.between.bytes_per_s < node.inside.bytes_per_s * 2


@pytest.mark.parametrize(
    "node", [node for node in TABLE.nodes.values() if on_data_sheets(node)], ids=lambda node: node.device
)
def test_a_link_is_half_of_what_the_data_sheet_adds_up(node: Node) -> None:
    facts = DEVICES[node.device].facts
    assert node.inside is not None
    if node.inside.kind is LinkKind.NVLINK:
        assert node.inside.bytes_per_s * 2 == int(facts["nvlink_gb_per_s_both_ways"]) * 10**9
    else:  # the device table has the rate before encoding
        assert 0.98 < node.inside.bytes_per_s / (float(facts["pcie_gb_per_s"]) * 10**9) < 1


def test_devices_with_nvlink_have_a_node() -> None:
    without = {
        device.id for device in DEVICES.values() if "nvlink_gb_per_s_both_ways" in device.facts
    } - TABLE.nodes.keys()
    assert without == set()


@pytest.mark.parametrize(
    ("link", "transfers_per_s", "lanes"),
    [
        ("pcie-3-x16", 8 * 10**9, 16),
        ("pcie-4-x16", 16 * 10**9, 16),
        ("pcie-5-x16", 32 * 10**9, 16),
        ("pcie-5-x8", 32 * 10**9, 8),
    ],
)
def test_pcie_is_its_line_rate_less_the_encoding(link: str, transfers_per_s: int, lanes: int) -> None:
    exact = Fraction(transfers_per_s * lanes * 128, 130 * 8)
    assert abs(TABLE.links[link].bytes_per_s - exact) < 10**6


@pytest.mark.parametrize(
    ("link", "gigabits"),
    [("infiniband-hdr", 200), ("infiniband-ndr", 400), ("infiniband-xdr", 800)]
    + [(f"roce-{rate}", rate) for rate in (100, 200, 400)],
)
def test_adapters_are_sold_by_one_direction(link: str, gigabits: int) -> None:
    assert TABLE.links[link].bytes_per_s == gigabits * 10**9 // 8


def test_the_nodes_that_everyone_asks_for() -> None:
    def row(device: str) -> tuple[int, str | None, str | None]:
        node = TABLE.nodes[device]
        return node.gpus, node.inside and node.inside.id, node.between and node.between.id

    assert row("h100-sxm") == (8, "nvlink-4", "infiniband-ndr")
    assert row("a100-sxm-80g") == (8, "nvlink-3", "infiniband-hdr")
    assert row("gb200") == (72, "nvlink-5", "infiniband-ndr")
    assert row("l40s") == (8, "pcie-4-x16", "infiniband-ndr")
    assert row("mi300x") == (8, "infinity-fabric-mi300x", "roce-400")


def test_links_to_single_peers_carry_less_when_few_take_part() -> None:
    fabric = TABLE.links["infinity-fabric-mi300x"]
    assert [fabric.reach_bytes_per_s(peers) for peers in (1, 3, 7, 9)] == [64 * 10**9, 192 * 10**9, *[448 * 10**9] * 2]
    assert TABLE.links["nvlink-4"].reach_bytes_per_s(1) == 450 * 10**9


def test_a_file_of_ones_own_adds_links_and_replaces_nodes(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    table = load_links(file)
    node = table.nodes["h100-sxm"]
    assert (node.gpus, node.inside, node.between) == (4, TABLE.links["nvlink-4"], table.links["lab-ring"])
    assert table.links["lab-ring"].bytes_per_s == 1_250_000_000
    assert table.nodes["h200-sxm"] == TABLE.nodes["h200-sxm"]
    assert find_device("h100-sxm", file) == DEVICES["h100-sxm"]  # a file of links needs no devices


def test_a_link_that_a_file_repeats_is_used_by_the_nodes_of_the_package(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE.replace("lab-ring", "infiniband-ndr"))
    between = load_links(file).nodes["h200-sxm"].between
    assert between is not None
    assert between.bytes_per_s == 1_250_000_000


def test_a_file_without_links_leaves_them_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(device_template())
    assert load_links(file) == TABLE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('kind = "ethernet"', 'kind = "string"'), "there is no kind 'string'"),
        (("gb_per_s_each_way = 1.25", "gb_per_s_each_way = 0"), "a number above zero"),
        (("gb_per_s_each_way = 1.25", "gb_per_s = 1.25"), "gb_per_s"),
        (("latency_us = 30", "gb_per_s_to_one_peer = 2"), "its rates do not fit together"),
        (("latency_us = 30", "latency_us = 0.0001"), "'latency_us' is too small"),
        (('sources = ["measured"]', ""), "it names no sources"),
        (('sources = ["our rack"]', ""), "it names no sources"),
        (("gpus = 4", "gpus = 0"), "'gpus' cannot be 0"),
        (("gpus = 4", "gpus = true"), "gpus"),
        (('between = "lab-ring"', 'between = "lab-rink"'), "similar names are: lab-ring"),
        (('name = "A ring of ours"', 'name = ""'), "'name' is empty"),
    ],
)
def test_a_mistake_is_named_with_its_file(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE.replace(*change))
    with pytest.raises(UsageError) as caught:
        load_links(file)
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_every_kind_of_link_has_fractions_in_order_of_ranks() -> None:
    priors = link_priors()
    for kind in LinkKind:
        for ranks in (2, 3, 8, 72):
            band = priors.fraction(kind, ranks)
            assert 0 < band.low < band.high < 1
            assert band.source
    assert priors.fraction(LinkKind.NVLINK, 8).low > priors.fraction(LinkKind.NVLINK, 2).low
    assert priors.fraction(LinkKind.PCIE, 2).low > priors.fraction(LinkKind.PCIE, 3).low
