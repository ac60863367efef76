"""Everything before a release in one command: build, check, a clean install, smoke, pages, sums. It prints a checklist.

    python -m scripts.release [--out dist] [--skip-docs]

Nothing is uploaded and no tag is made. Exit code 1 if a line of the list failed; the lines after it are tried too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from pathlib import Path

from scripts.light_install import ROOT, STEPS, done, problems

MOST_WHEEL_BYTES = 20_000_000
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
IN_SDIST = (
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "SUPPORT.md",
    "ROADMAP.md",
    "pyproject.toml",
)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


class ReleaseError(Exception):
    """A line of the checklist that does not hold."""


@dataclass
class Release:
    """What the steps make and pass on."""

    out: Path
    wheel: Path = field(default_factory=Path)
    sdist: Path = field(default_factory=Path)

    @property
    def version(self) -> str:
        """As the package says it."""
        text = (ROOT / "src" / "llm_perf_opt" / "__init__.py").read_text("utf-8")
        found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
        assert found is not None, "the package says its version"
        return found[1]


def versions_agree(release: Release) -> str:
    """One version and one date in the package, the changelog, the citation and the recipe."""
    wrong = list(version_problems(release.version))
    if wrong:
        raise ReleaseError("; ".join(wrong))
    return f"version {release.version}, dated {changelog_date(release.version)}"


def changelog_date(version: str) -> str | None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(version)}, (\d{{4}}-\d\d-\d\d)$", text, re.MULTILINE)
    return None if found is None else found[1]


def version_problems(version: str) -> Iterator[str]:
    date = changelog_date(version)
    if date is None:
        yield f"CHANGELOG.md has no dated section {version}"
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    if f"\nversion: {version}\n" not in citation or f"\ndate-released: {date}\n" not in citation:
        yield f"CITATION.cff does not say {version} of {date}"
    if f"\n  version: {version}\n" not in (ROOT / "recipe" / "meta.yaml").read_text("utf-8"):
        yield f"recipe/meta.yaml does not say {version}"


def tree_is_clean(_: Release) -> str:
    """What is built is what is committed."""
    changed = done("git", "-C", ROOT, "status", "--porcelain")
    if changed:
        raise ReleaseError(f"{len(changed.splitlines())} files are not committed: {changed.split()[1]} ...")
    return done("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()


def build(release: Release) -> str:
    """The wheel and the source archive."""
    release.out.mkdir(parents=True, exist_ok=True)
    done(sys.executable, "-m", "build", "--outdir", release.out, ROOT)
    release.wheel = release.out / f"llm_perf_opt-{release.version}-py3-none-any.whl"
    release.sdist = release.out / f"llm_perf_opt-{release.version}.tar.gz"
    size = release.wheel.stat().st_size
    if size > MOST_WHEEL_BYTES:
        raise ReleaseError(f"the wheel has {size:,} bytes, more than {MOST_WHEEL_BYTES:,}")
    return f"{release.wheel.name} {size:,} bytes, {release.sdist.name} {release.sdist.stat().st_size:,} bytes"


def metadata_holds(release: Release) -> str:
    """What an index reads: names, licence, description, requirements."""
    with zipfile.ZipFile(release.wheel) as archive:
        if archive.testzip() is not None:
            raise ReleaseError("the wheel is damaged")
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        wrong = list(metadata_problems(archive.read(about)))
    if wrong:
        raise ReleaseError("; ".join(wrong))
    with tarfile.open(release.sdist) as archive_of_source:
        names = {name.partition("/")[2] for name in archive_of_source.getnames()}
    if absent := [name for name in IN_SDIST if name not in names]:
        raise ReleaseError(f"the source archive lacks {', '.join(absent)}")
    return f"metadata of the wheel, {len(names):,} files of the source archive"


def metadata_problems(raw: bytes) -> Iterator[str]:
    """By the rules that `twine check` and an index have."""
    said = BytesHeaderParser().parsebytes(raw)
    wanted = {"Name": PROJECT["name"], "License-Expression": PROJECT["license"], "Requires-Python": ">=3.11"}
    yield from (f"{key} is {said.get(key)!r}, not {value!r}" for key, value in wanted.items() if said.get(key) != value)
    if said.get("Description-Content-Type") != "text/markdown" or len(raw.partition(b"\n\n")[2]) < 500:
        yield "the description is no Markdown, or empty"
    if "\n" in said.get("Summary", "") or not 0 < len(said.get("Summary", "")) <= 512:
        yield "the summary is empty or has more than one line"
    base = [one for one in said.get_all("Requires-Dist") or [] if "extra ==" not in one]
    if any(re.match(r"(torch|transformers)\b", requirement) for requirement in base):
        yield "the base install asks for torch"


def installs(release: Release) -> str:
    """Into an empty environment from the wheel, and every command of the light install there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done(sys.executable, "-m", "venv", folder / "venv")
        own = folder / "venv" / "bin" / "python"
        done(own, "-m", "pip", "install", "--quiet", release.wheel)
        done(own, "-m", "pip", "check")
        wrong = problems(own, folder / "work")
    if wrong:
        raise ReleaseError(f"{len(wrong)} of {len(STEPS)} commands: {wrong[0]}")
    return f"{len(STEPS)} commands without torch"


def licences_hold(release: Release) -> str:
    """Code of others in the wheel has its licence there."""
    done(sys.executable, "-m", "scripts.third_party", release.wheel, folder=ROOT)
    return "licences of what is bundled are in the wheel"


def links_hold(_: Release) -> str:
    """Relative links of the files that an index and a visitor see first."""
    files = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SUPPORT.md", "ROADMAP.md", "SECURITY.md")]
    broken = [
        f"{file.name}: {link}"
        for file in files
        for link in LINK.findall(file.read_text("utf-8"))
        if not (file.parent / link).exists()
    ]
    if broken:
        raise ReleaseError(f"broken links: {', '.join(broken[:5])}")
    return f"links of {len(files)} files"


def documentation(release: Release) -> str:
    """The site, as strict as its builder can be."""
    done(
        sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", release.out / "site", folder=ROOT
    )
    return f"{sum(1 for _ in (release.out / 'site').rglob('*.html'))} pages in {release.out.name}/site"


def bill(release: Release) -> str:
    """What the wheel holds of others, and what it needs."""
    path = release.out / "llm-perf-opt.cdx.json"
    done(sys.executable, "-m", "scripts.sbom", "--out", path.resolve(), folder=ROOT)
    return f"{len(json.loads(path.read_text('utf-8'))['components'])} components in {path.name}"


def sums(release: Release) -> str:
    """SHA-256 of each file that is published."""
    files = [release.wheel, release.sdist, release.out / "llm-perf-opt.cdx.json"]
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (release.out / "SHA256SUMS").write_text("".join(lines), "utf-8")
    return "".join(lines).strip().replace("\n", "\n" + " " * 9)


CHECKLIST: tuple[Callable[[Release], str], ...] = (
    versions_agree,
    tree_is_clean,
    links_hold,
    build,
    metadata_holds,
    licences_hold,
    installs,
    documentation,
    bill,
    sums,
)
BY_HAND = ("python -m scripts.light_install", "bash .ci/run long", "git tag, and upload what SHA256SUMS lists")


def tried(step: Callable[[Release], str], release: Release) -> bool:
    """Print the line of one step; whether it holds."""
    began = time.perf_counter()
    name = step.__name__.replace("_", " ")
    try:
        said, holds = step(release), True
    except (ReleaseError, SystemExit, OSError, subprocess.SubprocessError) as error:
        said, holds = str(error)[:1500], False
    print(f"[{'x' if holds else ' '}] {name}, {time.perf_counter() - began:.0f} s\n         {said}", flush=True)
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--skip-docs", action="store_true", help="leave the site out")
    options = parser.parse_args()
    steps = [step for step in CHECKLIST if not (options.skip_docs and step is documentation)]
    release = Release(out=options.out)
    right = [tried(step, release) for step in steps]
    print(f"{sum(right)} of {len(right)} hold.")
    for command in BY_HAND:
        print(f"[ ] by hand: {command}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
