"""Strict JSON: what the standard parser would let pass or choke on, told as an error a person can act on."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import NoReturn

from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.errors import PerfOptError

SEAL_KEY = "content_sha256"  # the last key: a digest of every byte before it
_SEAL_MARK = f'"{SEAL_KEY}"'.encode()
_FIX = "trace the model again, or restore the file from a copy"


def parse_strictly(raw: bytes) -> Json:
    """The document in `raw`; no duplicate keys, no NaN or infinity, no number that would overflow."""
    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except ValueError as error:  # bad syntax, bad UTF-8, or an integer of thousands of digits
        raise _not_json(str(error)) from None


def check_seal(raw: bytes, told: Json) -> None:
    """Refuse a sealed file that is not, byte for byte, what was written up to its seal, or that goes on after it."""
    start = raw.rfind(_SEAL_MARK)
    digest = hashlib.sha256(memoryview(raw)[:start]).hexdigest()
    closing = b"".join(raw[start:].split())
    if told != digest or closing != f'"{SEAL_KEY}":"{digest}"}}'.encode():
        raise PerfOptError(
            "The call-graph file was changed after it was written.",
            why=f"its content does not have the digest in {SEAL_KEY!r}",
            fix=f"{_FIX}; if the change was meant, remove {SEAL_KEY!r} and the file is checked without it",
        )


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _not_json(f"the key {twice[:80]!r} occurs twice in one object")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _not_json(f"the number {text[:40]} is too large")
    return value


def _not_json(why: str) -> PerfOptError:
    return PerfOptError("The call-graph file is not valid JSON.", why=why, fix=_FIX)
