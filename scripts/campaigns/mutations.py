"""Damage to files, seeded: of bytes as disks, transfers and editors do it, and of JSON values as a hostile writer does.

Each function takes a source of random numbers and the bytes of a good file, and gives the bytes of a bad one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
    *(
        None,
        True,
        False,
        -1,
        0,
        7,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**30,
        10**400,
        0.0,
        -0.0,
        1.5,
        1e308,
        -1e308,
        5e-324,
    ),
    *(float("nan"), float("inf"), "", "x", "\ud800", "\x1b[31m", "\u202e", "\x00", "9" * 500, "../../etc/passwd"),
    *("/dev/zero", [], [0], [[]], [None], {}, {"": 1}, {"a": {"a": []}}, [1] * 200, {"__class__": "x"}),
)


def flip_bits(draw: random.Random, good: bytes) -> bytes:
    """One to three bits."""
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
    """Cut short."""
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
    found = list(_NUMBER.finditer(good))
    if not found:
        return replace_span(draw, good)
    place = draw.choice(found)
    return good[: place.start()] + draw.choice(NUMBERS) + good[place.end() :]


def repeat_key(draw: random.Random, good: bytes) -> bytes:
    """A key twice in one object, with another value the second time; in other texts a line twice."""
    found = list(_PAIR.finditer(good)) or list(_LINE.finditer(good))
    if not found:
        return good + good
    place = draw.choice(found)
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
    flip_bits,
    change_digit,
    replace_span,
    truncate,
    move_block,
    change_number,
    repeat_key,
    other_encoding,
)


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
