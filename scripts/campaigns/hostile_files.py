"""Damage to files, seeded: of bytes as disks, transfers and editors do it, and of JSON values as a hostile writer does.

Each function takes a source of random numbers and the bytes of a good file, and gives the bytes of a bad one.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from scripts.campaigns.file_kinds import Kind, file_kinds
from scripts.campaigns.rows import Row

Damage = Callable[[random.Random, bytes], bytes]

_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_PAIR = re.compile(rb'"[^"\n]{1,60}"\s*[:]\s*("[^"\n]*"|[-0-9.]+|true|false|null)\s*(?=,)')
_LINE = re.compile(rb"[^\n]+\n")
TOKENS = (
    *(b"0", b"-", b",", b'"', b"[", b"{", b"}", b"]", b":", b"=", b"#", b"\\", b"/", b".."),
    *(b"1e9", b"1e999", b"-1", b"true", b"null", b"NaN", b"Infinity", b"\\ud800", b"\\u0000", b"\x1b[2J"),
    *(b"\x00", b"\xff", b"\xc3", b"\xe2\x80\xae", b"\r", b"\n", b"\xed\xa0\x80", b"9" * 50),
)
NUMBERS = (
    *(b"-1", b"0", b"1", b"-0", b"1.5", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"-Infinity", b"0x10"),
    *(str(2**63).encode(), str(2**64).encode(), str(-(2**63)).encode(), b"9" * 39, b"9" * 400, b"9" * 5000, b"01"),
    *(b'"1"', b"null", b"true", b"[]", b"{}", b"[" * 200 + b"]" * 200, b"[" * 100_000),
)
JUNK: tuple[Any, ...] = (
    None, True, False, -1, 0, 7, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.0, -0.0, 1.5, 1e308, -1e308,
    5e-324, float("nan"), float("inf"), "", "x", "\ud800", "\x1b[31m", "\u202e", "\x00", "9" * 500,
    "../../etc/passwd", "/dev/zero", [], [0], [[]], [None], {}, {"": 1}, {"a": {"a": []}}, [1] * 200,
    {"__class__": "x"},
)  # fmt: skip


def flip_bits(draw: random.Random, good: bytes) -> bytes:
    raw = bytearray(good)
    for _ in range(draw.randint(1, 3)):
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(raw)


def change_digit(draw: random.Random, good: bytes) -> bytes:
    """Another digit in a number, which is still a number: the damage that no syntax finds."""
    places = [place for place, byte in enumerate(good) if 0x30 <= byte <= 0x39]
    at = draw.choice(places) if places else 0
    return good[:at] + b"%d" % ((good[at] - 0x30 + draw.randint(1, 9)) % 10) + good[at + 1 :]


def replace_span(draw: random.Random, good: bytes) -> bytes:
    """A few bytes by a token or by random ones."""
    at, length = draw.randrange(len(good)), draw.randint(0, 6)
    put = draw.choice(TOKENS) if draw.random() < 0.7 else draw.randbytes(draw.randint(0, 4))
    return good[:at] + put + good[at + length :]


def truncate(draw: random.Random, good: bytes) -> bytes:
    return good[: draw.randrange(len(good))]


def truncate_and_close(draw: random.Random, good: bytes) -> bytes:
    """Cut short, and the open brackets closed: no damage, but a file that somebody made."""
    cut = truncate(draw, good)
    return cut.rstrip(b", \n") + b"".join(reversed([{91: b"]", 123: b"}"}[byte] for byte in _open_brackets(cut)]))


def _open_brackets(text: bytes) -> list[int]:
    stack: list[int] = []
    for byte in re.sub(rb'"(\\.|[^"\\])*"', b"", text):
        if byte in (91, 123):
            stack.append(byte)
        elif byte in (93, 125) and stack:
            stack.pop()
    return stack


def move_block(draw: random.Random, good: bytes) -> bytes:
    """A block twice, or two blocks in each other's place, or zeros as a file system leaves them."""
    size = min(len(good), draw.choice((1, 8, 64, 512)))
    first, second = sorted(draw.randrange(len(good) - size + 1) for _ in range(2))
    match draw.randrange(3):
        case 0:
            return good[:second] + good[first : first + size] + good[second:]
        case 1:
            return good[:first] + b"\x00" * size + good[first + size :]
    if second < first + size:
        return good[first:] + good[:first]
    middle = good[first + size : second]
    return good[:first] + good[second : second + size] + middle + good[first : first + size] + good[second + size :]


def change_number(draw: random.Random, good: bytes) -> bytes:
    """A number by one that is out of range, no number, or a nest of lists."""
    numbers = list(_NUMBER.finditer(good))
    if not numbers:
        return replace_span(draw, good)
    place = draw.choice(numbers)
    return good[: place.start()] + draw.choice(NUMBERS) + good[place.end() :]


def repeat_key(draw: random.Random, good: bytes) -> bytes:
    """A key twice in one object, with another value the second time; in other texts a line twice."""
    pairs = list(_PAIR.finditer(good)) or list(_LINE.finditer(good))
    if not pairs:
        return good + good
    place = draw.choice(pairs)
    again = change_digit(draw, place[0]) if draw.random() < 0.5 else place[0]
    return good[: place.end()] + (b"" if place[0].endswith(b"\n") else b", ") + again + good[place.end() :]


def other_encoding(draw: random.Random, good: bytes) -> bytes:
    """A byte order mark, UTF-16, other line ends, bytes that no UTF-8 has."""
    match draw.randrange(6):
        case 0:
            return b"\xef\xbb\xbf" + good
        case 1:
            return good.decode("latin-1").encode(draw.choice(("utf-16", "utf-16-le", "utf-32")))
        case 2:
            return good.replace(b"\n", draw.choice((b"\r\n", b"\r", b" \n", b"\xe2\x80\xa8", b"")))
        case 3:
            return good + draw.choice((b"\x00", b"\n{}", b" ", b"}", b"\x1a", b"\xff"))
        case 4:
            return draw.choice((b"", b"\x00" * 100, b" ", b"null", b"[]", b"{}", b"0", b'""', b"\xff\xfe"))
    at = draw.randrange(len(good))
    return good[:at] + draw.choice((b"\x80", b"\xc0\xaf", b"\xf8\x88\x80\x80\x80", b"\xed\xb0\x80")) + good[at:]


BYTES: tuple[Damage, ...] = (
    flip_bits, change_digit, replace_span, truncate, move_block, change_number, repeat_key, other_encoding,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The address of every value in a document, containers included."""
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in steps:
        yield from places(item, (*path, step))


def change_value(draw: random.Random, good: bytes) -> bytes:
    """One value of a JSON document: another, none, under another name, or deeper."""
    document = json.loads(good)
    *way, last = draw.choice(list(places(document)))
    holder = document
    for step in way:
        holder = holder[step]
    match draw.randrange(8):
        case 0:
            del holder[last]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(("x", "", "\x1b]0;title\x07", f"{last}s", "__proto__"))] = holder.pop(last)
        case 2:
            holder[last] = _nested(holder[last], draw.choice((1, 2, 40, 70, 900)))
        case 3 if isinstance(holder, list):
            holder.extend(holder[:1] * draw.choice((1, 100)))
        case _:
            holder[last] = draw.choice(JUNK)
    return json.dumps(document).encode()


def _nested(value: Any, levels: int) -> Any:
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def damaged(draw: random.Random, good: bytes, *, is_json: bool, is_sealed: bool, others: Sequence[bytes]) -> bytes:
    """The file with one kind of damage; at times it is another file altogether.

    A seal is not taken off together with the change that it would show: who does that could as well write a new one.
    """
    kind = draw.random()
    if others and kind < 0.02:
        return draw.choice(others)
    if is_json and kind < 0.4:
        return change_value(draw, good)
    return draw.choice(BYTES if is_sealed else (*BYTES, truncate_and_close))(draw, good)


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
        return self.refused + self.same + self.changed + len(self.findings)

    def row(self) -> Row:
        """The tally as a line of the table."""
        seal = "sealed" if self.kind.is_sealed else "no seal"
        what = f"{self.kind.name} ({seal}): {self.refused:,} refused, {self.same:,} read the same"
        if not self.kind.is_sealed:
            what += f", {self.changed:,} as another file"
        return Row(what, self.tried, self.findings)


def campaign_hostile_files(*, quick: bool, seed: int, kinds: Collection[str] = ()) -> list[Row]:
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
        value = kind.read(raw)
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
        outcome = "refused" if value is None and expected is not None else "same" if value == expected else "changed"
    spent = time.monotonic() - began
    return outcome if spent < _SLOW_S else f"took {spent:.0f} s"
