"""The lowest version of every dependency that pyproject.toml allows, as a constraints file for pip.

    python scripts/lowest_versions.py > lowest.txt && pip install -c lowest.txt ".[all]"

Development tools are left out: the gates run with what is current. A bound that holds for the base install may be too
low next to an extra, whose own dependencies ask for more; BESIDE_EXTRAS names those.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
BESIDE_EXTRAS = {
    "numpy": "2.1.0",  # aiconfigurator-core 0.12 asks for it
    "safetensors": "0.4.3",  # accelerate 0.34 asks for it
}
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[>=]=([\w.]+)(,<[\w.]+)?")


def lowest_versions(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """Distribution -> lower bound, of the package and of every extra that a user may ask for."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(requirement for name, some in extras.items() if name != "dev" for requirement in some),
    ]
    lowest = {}
    for requirement in requirements:
        if requirement.startswith(f"{project['name']}["):
            continue
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise SystemExit(f"{requirement}: no lower bound; every dependency has one")
        lowest[match[1]] = match[2]
    for name, version in BESIDE_EXTRAS.items():
        if _numbers(version) <= _numbers(lowest[name]):
            raise SystemExit(f"{name}: pyproject.toml asks for {lowest[name]}; BESIDE_EXTRAS need not name it")
    return dict(sorted((lowest | BESIDE_EXTRAS).items()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in lowest_versions().items())
