"""The bill of materials names everything that the wheel holds of others, and every requirement, with its licence."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import sbom

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return sbom.bill()


def test_every_bundled_library_is_there_with_the_digest_that_npm_locked(bill: dict[str, Any]) -> None:
    """LICENCES.txt has a section for each; SHA-512 has 128 hexadecimal digits."""
    text = "\n".join(path.read_text("utf-8") for path in sbom.BUNDLED)
    sections = set(re.findall(r"^(\S+) \d[\w.]* \([\w.-]+\)\n-+$", text, re.MULTILINE))
    inside = {part["name"]: part for part in bill["components"] if part["purl"].startswith("pkg:npm/")}
    assert inside.keys() == sections
    assert all(len(part["hashes"][0]["content"]) == 128 for part in inside.values())
    assert {part["licenses"][0]["license"]["id"] for part in inside.values()} <= {"MIT", "ISC", "BSD-3-Clause"}


def test_every_requirement_is_there_and_says_its_licence(bill: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {re.split(r"[<>=\[; ]", one)[0] for one in project["dependencies"]}
    required = {part["name"] for part in bill["components"] if part["scope"] == "required"}
    assert wanted <= required
    silent = [p["name"] for p in bill["components"] if p["licenses"][0].get("license", {}).get("name") == "not stated"]
    assert set(silent) <= {"resvg-py"}  # an extra, whose metadata names none


def test_it_is_a_document_of_cyclonedx_with_each_part_once(bill: dict[str, Any]) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(set(references)) == len(references)
    assert bill["dependencies"] == [{"ref": "pkg:pypi/llm-perf-opt", "dependsOn": references}]
    assert bill["metadata"]["component"]["version"]


def test_the_same_environment_gives_the_same_bytes() -> None:
    assert json.dumps(sbom.bill()) == json.dumps(sbom.bill())


def test_a_bundle_that_is_not_the_locked_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "LICENCES.txt"
    other.write_text("@dagrejs/dagre 0.0.1 (MIT)\n--------------------------\n")
    monkeypatch.setattr(sbom, "BUNDLED", (other,))
    with pytest.raises(SystemExit, match="is locked"):
        list(sbom.bundled())
