"""The software bill of materials of a release, in CycloneDX JSON: what the wheel holds of others, and what it needs.

    python -m scripts.sbom --out dist/llm-perf-opt.cdx.json     next to `python -m build`

What is bundled comes from `web/package-lock.json`, as far as its licence is in the wheel. What is needed comes from
the metadata of the installed packages, from the requirements in `pyproject.toml` on, extras of `all` included. The
same environment gives the same bytes: there is no time and no random number in it.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PAGES = ROOT / "src" / "llm_perf_opt" / "formats"
BUNDLED = tuple(_PAGES / page / "vendor" / "LICENCES.txt" for page in ("explore_page", "graph_page"))
NAME = "llm-perf-opt"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def bill(root: Path = ROOT) -> dict[str, Any]:
    """The whole document."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    parts = sorted((*bundled(root), *needed(project)), key=lambda part: part["bom-ref"])
    own = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{NAME}",
        "name": NAME,
        "version": _version(root),
        "licenses": [{"license": {"id": project["license"]}}],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _version(root: Path) -> str:
    text = (root / "src" / "llm_perf_opt" / "__init__.py").read_text("utf-8")
    return str(re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)[1])  # type: ignore[index]


def bundled(root: Path = ROOT) -> Iterator[dict[str, Any]]:
    """The npm packages with code in the wheel, with the digest that npm locked."""
    packages = json.loads((root / "web" / "package-lock.json").read_text("utf-8"))["packages"]
    texts = "\n".join(path.read_text("utf-8") for path in BUNDLED)
    headings = re.findall(r"^(\S+) (\d[\w.]*) \(([\w.-]+)\)$", texts, re.MULTILINE)
    for name, version, licence in dict.fromkeys(headings):
        locked = packages[f"node_modules/{name}"]
        if (locked["version"], locked["license"]) != (version, licence):
            raise SystemExit(f"{name}: {version} ({licence}) is bundled, {locked['version']} is locked")
        method, _, digest = locked["integrity"].partition("-")
        yield {
            "type": "library",
            "bom-ref": f"pkg:npm/{name.replace('@', '%40')}@{version}",
            "purl": f"pkg:npm/{name.replace('@', '%40')}@{version}",
            "name": name,
            "version": version,
            "scope": "required",
            "licenses": [{"license": {"id": licence}}],
            "hashes": [{"alg": method.upper().replace("SHA", "SHA-"), "content": base64.b64decode(digest).hex()}],
            "properties": [{"name": "llm-perf-opt:place", "value": "in the wheel"}],
        }


def needed(project: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The installed packages that the requirements lead to: required by `dependencies`, or optional by an extra."""
    extras = project["optional-dependencies"]
    required = reached(project["dependencies"])
    asked = [requirement for name, some in extras.items() if name not in ("all", "dev") for requirement in some]
    for name in sorted(required | reached(asked)):
        distribution = metadata.distribution(name)
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{distribution.version}",
            "purl": f"pkg:pypi/{name}@{distribution.version}",
            "name": name,
            "version": distribution.version,
            "scope": "required" if name in required else "optional",
            "licenses": [_licence(distribution.metadata)],
        }


def reached(requirements: list[str]) -> set[str]:
    """Names of all installed packages that these need; what is for another system is not installed."""
    names: set[str] = set()
    waiting = [requirement for requirement in requirements if not _EXTRA.search(requirement)]
    while waiting:
        name = re.sub(r"[-_.]+", "-", _NAME.match(waiting.pop().strip())[0]).lower()  # type: ignore[index]
        if name in names:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        names.add(name)
        waiting += [requirement for requirement in needs if not _EXTRA.search(requirement)]
    return names


def _licence(about: Any) -> dict[str, Any]:
    """As the package says: an expression of SPDX, else the words of its classifiers or of its field."""
    if expression := about.get("License-Expression"):
        return {"expression": expression}
    words = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    text = ", ".join(words) or (about.get("License") or "").strip().split("\n")[0][:100]
    return {"license": {"name": text or "not stated"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write it there; default: print it")
    options = parser.parse_args()
    text = json.dumps(bill(), indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
