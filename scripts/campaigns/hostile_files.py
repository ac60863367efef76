"""Damaged and hostile files of every kind that is read: the same content, or an error with its cause and a remedy.

Of a file that this program seals, no damage may pass that changes what it says. Of any other kind a change within types
and ranges is another file, and only counted. Whatever a file holds, reading it starts no process, opens no connection,
unpickles nothing and runs no Python of its folder.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from scripts.campaigns.file_kinds import Kind, file_kinds
from scripts.campaigns.mutations import damaged
from scripts.campaigns.rows import Row

NAME = "hostile_files"
FULL, QUICK = 1_000, 60
_SLOW_S = 20.0
_LONGEST_ERROR = 4_000
_STARTS = {
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pty.spawn"),
    *("socket.connect", "socket.bind", "pickle.find_class", "webbrowser.open"),
}


class Watch:
    """What Python is asked to run or to reach while a file is read."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._is_on = self._is_hooked = False

    def on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of Python."""
        if not self._is_on:
            return
        if event in _STARTS:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "exec":
            place = str(getattr(arguments[0], "co_filename", ""))
            if place.startswith(tempfile.gettempdir()) or "transformers_modules" in place:
                self.seen.append(f"the code in {place}")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While open, what is run is noted."""
        if not self._is_hooked:
            sys.addaudithook(self.on_audit)  # Python keeps it for good
        self._is_hooked, self._is_on, self.seen = True, True, []
        try:
            yield
        finally:
            self._is_on = False


WATCH = Watch()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the mutations of one kind of file."""

    kind: Kind
    refused: int
    same: int
    changed: int
    findings: list[str]

    @property
    def tried(self) -> int:
        """All of them."""
        return self.refused + self.same + self.changed + len(self.findings)

    def row(self) -> Row:
        """The tally as a line of the table."""
        seal = "sealed" if self.kind.is_sealed else "no seal"
        what = f"{self.kind.name} ({seal}): {self.refused:,} refused, {self.same:,} read the same"
        if not self.kind.is_sealed:
            what += f", {self.changed:,} as another file"
        return Row(campaign=NAME, what=what, tried=self.tried, findings=self.findings)


def run(*, quick: bool, seed: int, kinds: Collection[str] = ()) -> list[Row]:
    """One row for each kind of file; of `kinds` alone, where some are named."""
    return [tally.row() for tally in tallies(QUICK if quick else FULL, seed, kinds)]


def tallies(count: int, seed: int, names: Collection[str] = ()) -> Iterator[Tally]:
    """`count` mutations of each kind; a name stands for the variants of the kind too."""
    with tempfile.TemporaryDirectory() as folder, quiet():
        kinds = file_kinds(Path(folder))
        if unknown := set(names) - {name for kind in kinds for name in names_of(kind)}:
            raise SystemExit(f"no kind of file {', '.join(sorted(unknown))}")
        for kind in kinds:
            if not names or not set(names).isdisjoint(names_of(kind)):
                most = count if count < FULL else count * kind.one_in  # the full campaign spares none
                yield attack(kind, most, seed, others_of(kind, kinds))


def names_of(kind: Kind) -> tuple[str, str]:
    """What a kind may be called: its name, and that without the variant."""
    return kind.name, kind.name.partition(",")[0]


def others_of(kind: Kind, kinds: Iterable[Kind]) -> list[bytes]:
    """Files that do not belong in the place of this one."""
    return [other.good for other in kinds if other.family not in (kind.family, *kind.also_reads)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Libraries below warn about what they are given, some of them once for each file."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(before)


def attack(kind: Kind, count: int, seed: int, others: list[bytes]) -> Tally:
    """Damage the good file `count` times, each time in another way."""
    draw = random.Random(f"{seed} {kind.name}")
    expected = kind.read(kind.good)
    outcomes: Counter[str] = Counter()
    findings: list[str] = []
    for number in range(max(1, count // kind.one_in)):
        raw = damaged(draw, kind.good, is_json=kind.is_json, is_sealed=kind.is_sealed, others=others)
        with WATCH.watching():
            outcome = _outcome(kind, raw, expected)
        outcome = f"it ran {WATCH.seen[0]}" if WATCH.seen else outcome
        outcomes[outcome] += 1
        if outcome not in ("refused", "same", "changed") or (outcome == "changed" and kind.is_sealed):
            findings.append(f"{kind.name}, mutation {number}: {outcome}")
    changed = 0 if kind.is_sealed else outcomes["changed"]
    return Tally(kind=kind, refused=outcomes["refused"], same=outcomes["same"], changed=changed, findings=findings)


def _outcome(kind: Kind, raw: bytes, expected: object) -> str:
    """`refused`, `same`, `changed`, or a sentence about what went wrong."""
    began = time.monotonic()
    try:
        found = kind.read(raw)
    except PerfOptError as error:
        if not (error.what and error.why and error.fix):
            return "the error does not say what, why and what to do"
        if len(str(error)) > _LONGEST_ERROR:
            return f"the error has {len(str(error)):,} characters"
        outcome = "refused"
    except Exception as error:  # noqa: BLE001  whatever else comes out is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:120]}"
    else:
        outcome = "refused" if found is None and expected is not None else "same" if found == expected else "changed"
    spent = time.monotonic() - began
    return outcome if spent < _SLOW_S else f"took {spent:.0f} s"
