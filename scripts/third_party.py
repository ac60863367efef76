"""What others made is listed with source and licence, and the wheel holds the licences.

    python -m scripts.third_party [WHEEL]     the tree, and a wheel if one is named; prints what is wrong

The list is src/llm_perf_opt/THIRD_PARTY.md. A file is ours only by its kind and place (OURS); anything else must be in
the list. A copyright notice, a minified line, an embedded font or binary content marks a file as made by others
wherever it lies.
"""

from __future__ import annotations

import re
import sys
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
FACTS = "tests/facts"
LIST = "src/llm_perf_opt/THIRD_PARTY.md"
SHIPPED = ("src", "tests", "docs", "examples", "benchmarks", "scripts", "web")
OURS = (
    "*.py",
    "*.md",
    "*.sh",
    "*.yaml",
    "*.yml",
    "*.ipynb",
    "src/llm_perf_opt/py.typed",
    "src/*.schema.json",
    "tests/durations.json",
    "src/llm_perf_opt/core/callgraph/schema.json",
    "src/llm_perf_opt/formats/graph_page/*.js",
    "src/llm_perf_opt/formats/explore_page/*.js",
    "src/llm_perf_opt/formats/page_parts/*.js",
    "src/llm_perf_opt/formats/report_page/figures.js",
    "src/llm_perf_opt/formats/*.css",
    "src/llm_perf_opt/formats/*.jinja",
    "src/llm_perf_opt/formats/report_page/report.js",
    "src/llm_perf_opt/formats/study_page/study.js",
    "docs/images/*",  # scripts/pictures.sh
    "docs/gallery/*.png",  # scripts/gallery.py
    "docs/data/*",  # benchmarks/ write them
    "docs/assets/iframe-worker.js",  # search of the built site, opened from a disk
    "src/llm_perf_opt/tracing/catalogue/*.trace.xz",  # scripts/catalogue_traces.py
    "tests/golden/*",  # scripts/make_graph_goldens.py
    "tests/core/callgraph/dialects/*",  # one small run, written in the forms of earlier scripts
    "benchmarks/breadth/full_size_changes.toml",
    "scripts/planted/faults.toml",
    "web/*",
)
NOT_SHIPPED = ("__pycache__", "node_modules", ".ipynb_checkpoints")
BINARY = (".png", ".parquet", ".xz")  # of ours; anything else with a zero byte is foreign
FIGURES = "figures"  # numbers alone: the source is named, there is no text to license
PHRASES = {
    "MIT": "Permission is hereby granted, free of charge",
    "ISC": "Permission to use, copy, modify, and/or distribute this software",
    "BSD-3-Clause": "Redistribution and use in source and binary forms",
    "Apache-2.0": "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION",
}
NOTICE = re.compile(r"copyright\s+(\(c\)|©|\d{4})|SPDX-License|@licen[cs]e\b|licensed under the", re.IGNORECASE)
FONT = re.compile(r"@font-face|data:(font|application/font)", re.IGNORECASE)
LONGEST_LINE = 2000  # a person wraps earlier; a minifier does not


@dataclass(frozen=True)
class Row:
    """One entry of the list."""

    pattern: str
    source: str
    licences: tuple[str, ...]
    licence_text: str | None


def listed(root: Path = ROOT) -> list[Row]:
    """The rows of every table in the list."""
    rows = []
    for line in (root / LIST).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            text = None if cells[4] == "-" else cells[4].strip("`")
            rows.append(Row(cells[0].strip("`"), cells[2], tuple(cells[3].split(", ")), text))
    return rows


def shipped_files(root: Path = ROOT) -> list[str]:
    """Every file of the source archive, by its path in the project."""
    files = (path for top in SHIPPED for path in (root / top).rglob("*") if path.is_file())
    return sorted(
        path.relative_to(root).as_posix()
        for path in files
        if not any(part in NOT_SHIPPED for part in path.relative_to(root).parts)
    )


def _is_listed(name: str, rows: list[Row]) -> bool:
    return any(fnmatch(name, row.pattern) or name == row.licence_text for row in rows)


def foreign_marks(name: str, raw: bytes) -> list[str]:
    """What in a file shows that others made it."""
    if b"\0" in raw:
        return [] if name.endswith(BINARY) else ["binary content"]
    text = raw.decode("utf-8", "replace")
    marks = []
    if NOTICE.search(text):
        marks.append("a copyright or licence notice")
    if FONT.search(text):
        marks.append("an embedded font")
    if name.endswith((".js", ".css", ".py")) and max(map(len, text.splitlines()), default=0) > LONGEST_LINE:
        marks.append("a minified line")
    return marks


SPEAKS_OF_NOTICES = ("scripts/third_party.py", "tests/house/test_third_party.py")


def problems_of_tree(root: Path = ROOT) -> list[str]:
    """Every file that is not listed, and every row of the list that does not hold."""
    rows, names = listed(root), shipped_files(root)
    problems = []
    for name in names:
        if _is_listed(name, rows):
            continue
        if "/vendor/" in name or not any(fnmatch(name, pattern) for pattern in OURS):
            problems.append(f"{name}: neither of our kinds nor listed in {LIST}")
        elif name not in SPEAKS_OF_NOTICES:
            problems += [f"{name}: {mark}, but not listed" for mark in foreign_marks(name, (root / name).read_bytes())]
    for row in rows:
        problems += _problems_of_row(row, names, root)
    return problems + _facts_without_source(names, root)


def _facts_without_source(names: list[str], root: Path) -> list[str]:
    """Facts that the page next to them does not name; `a, b` in one row and a folder are names too."""
    page = root / FACTS / "README.md"
    rows = re.findall(r"^\| (`[^|]*`) \|", page.read_text("utf-8"), re.MULTILINE) if page.exists() else []
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    facts = [name.removeprefix(f"{FACTS}/") for name in names if name.startswith(f"{FACTS}/")]
    return [
        f"{FACTS}/{name}: its source is not in {FACTS}/README.md"
        for name in facts
        if not name.endswith("README.md")
        and not any(fnmatch(name, pattern) or name.startswith(f"{pattern.rstrip('/')}/") for pattern in named)
    ]


def _problems_of_row(row: Row, names: list[str], root: Path) -> list[str]:
    if not any(fnmatch(name, row.pattern) for name in names):
        return [f"{row.pattern}: listed, but there is no such file"]
    if not row.source:
        return [f"{row.pattern}: no source"]
    if row.licences == (FIGURES,):
        return []
    unknown = [licence for licence in row.licences if licence not in PHRASES]
    if unknown:
        return [f"{row.pattern}: licence {', '.join(unknown)} is not one that may be shipped"]
    if row.licence_text is None or row.licence_text not in names:
        return [f"{row.pattern}: its licence text is not in the project"]
    text = " ".join((root / row.licence_text).read_text("utf-8").split())
    return [
        f"{row.pattern}: no text of {licence} in {row.licence_text}"
        for licence in row.licences
        if PHRASES[licence] not in text
    ]


def problems_of_bundle(text: str) -> list[str]:
    """Sections `NAME VERSION (LICENCE)` that lack a copyright line or the text of their own licence."""
    problems = []
    sections = re.split(r"^(\S+ \d[\w.]* \([\w.-]+\))\n-+\n", text, flags=re.MULTILINE)
    for heading, body in zip(sections[1::2], sections[2::2], strict=True):
        licence = heading.rpartition("(")[2].rstrip(")")
        if PHRASES.get(licence, "\0") not in " ".join(body.split()):
            problems.append(f"{heading}: not the text of {licence}")
        if not NOTICE.search(body):
            problems.append(f"{heading}: no copyright line")
    return problems


def problems_of_wheel(wheel: Path, root: Path = ROOT) -> list[str]:
    """What the wheel lacks or should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    problems = [f"{name}: binary code" for name, raw in inside.items() if b"\0" in raw and not name.endswith(BINARY)]
    licences = {name.partition(".dist-info/licenses/")[2] for name in inside}
    wanted = {"LICENSE"}
    for row in listed(root):
        packed = row.pattern.removeprefix("src/")
        if row.pattern.startswith("src/") and not any(fnmatch(name, packed) for name in inside):
            problems.append(f"{packed}: listed, but not in the wheel")
        if row.pattern.startswith("src/") and row.licence_text:
            wanted.add(row.licence_text)
    problems += [f"{name}: a licence that the wheel does not hold" for name in sorted(wanted - licences)]
    if LIST.removeprefix("src/") not in inside:
        problems.append("the list itself is not in the wheel")
    known = {name.removeprefix("src/") for name in shipped_files(root)}
    problems += [f"{name}: not of this tree" for name in inside if ".dist-info/" not in name and name not in known]
    return problems


def main() -> int:
    problems = problems_of_tree()
    for wheel in sys.argv[1:]:
        problems += problems_of_wheel(Path(wheel))
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(listed())} entries of {LIST}: files, sources and licences are there; nothing is unlisted.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
