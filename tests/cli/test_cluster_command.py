"""`devices cluster`: what it prints, what it refuses, and a node of one's own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_the_links_and_times_of_a_cluster(run: Run) -> None:
    code, shown, _ = run("devices", "cluster", "2x8 h100-sxm via roce-400", "--json")
    assert code == 0
    assert json.loads(shown)["title"] == "2x8 h100-sxm via roce-400: 16 x NVIDIA H100 80GB SXM5"
    assert "roce-400" in shown


def test_half_a_node_is_refused_with_what_fits(run: Run) -> None:
    code, shown, said = run("devices", "cluster", "12x h100-sxm")
    assert (code, shown) == (2, "")
    assert "write 8x or 16x h100-sxm" in said


def test_a_file_describes_another_node(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[nodes.h100-sxm]\ngpus = 12\ninside = "pcie-5-x16"\nsources = ["our rack"]\n')
    code, shown, _ = run("devices", "cluster", "12x h100-sxm", "--devices", mine)
    assert code == 0
    assert "12x h100-sxm" in shown
    assert "pcie-5-x16" in shown
    _, listed, _ = run("devices", "show", "h100-sxm", "--devices", mine, "--verbose")
    assert "our rack" in listed
