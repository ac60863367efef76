"""A seal on the JSON files that this program writes: the last key holds the SHA-256 of every byte before it.

Damage of a file that is still valid JSON, such as one digit of a time, is found by it. A file without a seal (of an
older version, or with the seal removed by whoever changed the file on purpose) is read with all other checks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from llm_perf_opt.core.errors import PerfOptError

SEAL_KEY = "content_sha256"
_KEY = f'"{SEAL_KEY}"'.encode()
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_ESCAPES = re.compile(
    r"(?P<whole>\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\[^u]|\\u(?![dD][89a-fA-F])....)"
    r"|\\u(?P<code>[dD][89a-fA-F]..)|[\ud800-\udfff]"
)
_PAIR = re.compile(_KEY + rb'\s*:\s*"([0-9a-f]{64})"')


class SealedKind(Protocol):
    """What a refusal says of a kind of file: `FileKind` in `reading.py`, which looks down on this file."""

    @property
    def name(self) -> str:
        """As messages call it."""

    @property
    def fix(self) -> str:
        """What to do about a bad one."""

    @property
    def error(self) -> type[PerfOptError]:
        """What a bad one raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The digest that a file was written with, and the one that its bytes have: empty where the seal is not last."""

    written: str
    found: str

    def require(self, kind: SealedKind) -> None:
        """Refuse a file that is not, byte for byte, what was written."""
        if self.written != self.found:
            raise _changed(kind)


def _changed(kind: SealedKind) -> PerfOptError:
    """The error for a file that does not have the content that its seal was made for."""
    return kind.error(
        f"The {kind.name} was changed after it was written.",
        why=f"its content does not have the digest in {SEAL_KEY!r}",
        fix=f"{kind.fix}; if the change was meant, remove {SEAL_KEY!r} and the file is checked without it",
    )


def sealed_lines(document: Mapping[str, Any]) -> Iterator[bytes]:
    """The text in pieces, one line per top-level key, closed by the digest of all of it."""
    digest = hashlib.sha256()
    opening = "{"
    for key, value in document.items():
        text = f"{opening}{json.dumps(key)}:{json.dumps(value, separators=(',', ':'), allow_nan=False)},\n"
        line = _whole_characters(text).encode()
        digest.update(line)
        yield line
        opening = ""
    yield f'{_KEY.decode()}:"{digest.hexdigest()}"}}\n'.encode()


def sealed_text(text: str) -> str:
    """The text of a JSON object that holds something, with the seal as its last key."""
    head, brace, rest = text.rstrip().rpartition("}")
    if not brace or rest or head.strip() in ("", "{"):
        raise ValueError("only a JSON object that holds something is sealed")
    head = _whole_characters(head)
    indent = re.match(r"\{\n( *)", head)
    body = f"{head.rstrip()},\n{indent[1] if indent else ''}"
    return f'{body}{_KEY.decode()}: "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


def _whole_characters(text: str) -> str:
    """A JSON text in which half of a surrogate pair, which no reader takes, is spelled out as six characters."""
    if not _HALF.search(text):
        return text
    return _ESCAPES.sub(lambda found: found["whole"] or f"\\\\u{found['code'] or f'{ord(found[0]):04x}'}", text)


def split_seal(raw: bytes) -> tuple[bytes, Seal | None]:
    """The text of the object without its seal, and the seal; None where there is none.

    A seal that something follows is broken: whatever is wrong there is found first, by its place.
    """
    pair = _find_pair(raw)
    if pair is None:
        return raw, None
    before, after = raw[: pair.start()].rstrip(), raw[pair.end() :].lstrip()
    if after.startswith(b","):
        return before + after[1:], _seal(raw, pair)
    return before.removesuffix(b",") + after, _seal(raw, pair)


def check_seal(raw: bytes, kind: SealedKind) -> None:
    """Refuse a sealed file that is not, byte for byte, what was written up to its seal, or that goes on after it."""
    pair = _find_pair(raw)
    if pair is None:
        raise _changed(kind)
    _seal(raw, pair).require(kind)


def _find_pair(raw: bytes) -> re.Match[bytes] | None:
    start = raw.rfind(_KEY)
    return None if start < 0 else _PAIR.match(raw, start)


def _seal(raw: bytes, pair: re.Match[bytes]) -> Seal:
    is_last = raw[pair.end() :].strip() == b"}"
    digest = hashlib.sha256(memoryview(raw)[: pair.start()]).hexdigest() if is_last else ""
    return Seal(written=pair[1].decode(), found=digest)
