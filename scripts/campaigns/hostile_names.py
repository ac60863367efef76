"""Hostile names of modules, classes, stages, kernels and phases in every output, and hostile texts on the terminal.

Each name goes through a real trace, its file and back, and into every drawing, picture and report. An output is wrong
when it holds a character that cannot be seen, when the language it is written in reads it otherwise than with a plain
name, or when making it raises.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from llm_perf_opt.cli.progress import message_of
from llm_perf_opt.core.errors import PerfOptError
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.made_names import hostile_names
from scripts.campaigns.named_outputs import OUTPUTS, PLAIN, Made, outputs
from scripts.campaigns.output_shapes import shape_of
from scripts.campaigns.rows import Row
from scripts.campaigns.shown_texts import PLACES, unseen, unseen_characters

NAME = "hostile_names"
FULL, QUICK = 200, 8
_MAY_REFUSE = "TorchLens picture"  # Graphviz takes no control characters


def run(*, quick: bool, seed: int) -> list[Row]:
    """A row for every output, and one for every kind of text on the terminal."""
    names = hostile_names(QUICK if quick else FULL, seed)
    return [*output_rows(names), *terminal_rows(names)]


def output_rows(names: list[str]) -> list[Row]:
    """Every drawing, picture and report, and the files of a trace."""
    findings: dict[str, list[str]] = {output: [] for output in OUTPUTS}
    with tempfile.TemporaryDirectory() as folder, quiet():
        plain = {output: _seen(output, made) for output, made in outputs(PLAIN, Path(folder))}
        for name in names:
            for output, made in outputs(name, Path(folder)):
                findings[output] += [f"{ascii(name)[:80]}: {fault}" for fault in _faults(output, made, plain[output])]
    return [
        Row(campaign=NAME, what=group, tried=len(names) * len(kinds), findings=[x for kind in kinds for x in kind])
        for group, kinds in _grouped(findings).items()
    ]


def _grouped(findings: dict[str, list[str]]) -> dict[str, list[list[str]]]:
    """Outputs that differ in their format alone as one row: `drawing in 12 formats`."""
    groups: dict[str, dict[str, list[str]]] = {}
    for output, found in findings.items():
        title, _, form = output.rpartition(" ")
        groups.setdefault(title, {})[form] = found
    return {
        f"{title} in {len(forms)} formats: {', '.join(forms)}" if len(forms) > 1 else f"{title} {next(iter(forms))}": [
            *forms.values()
        ]
        for title, forms in groups.items()
    }


def terminal_rows(names: list[str]) -> list[Row]:
    """What the command prints: errors, log lines, closing lines, progress, tracebacks."""
    rows = []
    for place, shown in PLACES.items():
        findings = []
        for name in names:
            try:
                found = unseen(shown(name))
            except Exception as error:  # noqa: BLE001  whatever comes out is a finding
                found = _raised(error)
            if found:
                findings.append(f"{ascii(name)[:80]}: {found}")
        rows.append(Row(campaign=NAME, what=f"terminal: {place}", tried=len(names), findings=findings))
    return rows


def _seen(output: str, made: Made) -> tuple[set[str], object]:
    """Characters that cannot be seen, as the scripts of a page have some, and what a reader of the language finds."""
    if isinstance(made, Exception):
        raise made
    return unseen_characters(made) if isinstance(made, str) else set(), shape_of(output, made)


def _faults(output: str, made: Made, plain: tuple[set[str], object]) -> Iterator[str]:
    if isinstance(made, PerfOptError) and output.startswith(_MAY_REFUSE):
        if not (made.what and made.why and made.fix) or unseen(message_of(made)):
            yield f"{output}: {_raised(made)}"
        return
    if isinstance(made, Exception):
        yield f"{output}: {_raised(made)}"
        return
    try:
        characters, shape = _seen(output, made)
    except Exception as error:  # noqa: BLE001  a reader of that language gave up
        yield f"{output} cannot be read: {_raised(error)}"
        return
    if more := characters - plain[0]:
        yield f"{output} holds {', '.join(sorted(map(ascii, more))[:5])}"
    if shape != plain[1]:
        yield f"{output} is read as {str(shape)[:150]}, with a plain name as {str(plain[1])[:150]}"


def _raised(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {ascii(str(error))[:120]}"
