"""Traffic from whatever tells of it: a line that declares a distribution, or a file; its content says which kind."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import FileKind, naming_file, parse_foreign_json, read_bytes
from llm_perf_opt.serving.requests import Request, Traffic
from llm_perf_opt.serving.traffic_text import (
    EXAMPLES,
    DeclaredTraffic,
    PageRule,
    declared_in_toml,
    names_file,
    read_declared,
)

_SUFFIXES = (".toml", ".json", ".jsonl", ".csv")


def read_traffic(given: str | Path) -> DeclaredTraffic | Traffic:
    """A distribution or recorded requests."""
    path = Path(given)
    if isinstance(given, str) and (" " in given.strip() or "=" in given) and not names_file(path):
        return read_declared(given)
    if not names_file(path) and path.suffix not in _SUFFIXES:
        raise UsageError(
            f"{str(given)[:80]!r} is not a description of traffic.",
            why="it is neither a file nor a line that declares requests",
            fix=f"write {' or '.join(EXAMPLES[:2])}, or name a file with a recorded run",
        )
    raw = read_bytes(path, TRAFFIC_FILE)
    with naming_file(path):
        if path.suffix == ".toml":
            declared = declared_in_toml(raw, TRAFFIC_FILE)
            return replace(declared, text=f"{path.name}: {declared.text}")
        return _recorded(raw, path.name)


def as_traffic(given: str | Path | DeclaredTraffic | Traffic, page_rule: PageRule | None = None) -> Traffic:
    """The requests themselves."""
    traffic = given if isinstance(given, DeclaredTraffic | Traffic) else read_traffic(given)
    return traffic.traffic(page_rule) if isinstance(traffic, DeclaredTraffic) else traffic


def _recorded(raw: bytes, name: str) -> Traffic:
    head = raw[: 2**16].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head.startswith(b"{"):
        return read_table(raw, name)
    lines = [line for line in head.splitlines()[:2] if line.strip()]
    is_lines = len(lines) > 1 and lines[1].lstrip().startswith(b"{")
    return read_json_lines(raw, name) if is_lines or b'"input_lens"' not in raw else read_bench_serve(raw, name)


TRAFFIC_FILE = FileKind(
    name="file of requests",
    fix="give a TOML file of a distribution, the JSON of `vllm bench serve --save-result --save-detailed`, JSON lines "
    'such as {"timestamp": 1200, "input_length": 800, "output_length": 200}, or CSV with TIMESTAMP, ContextTokens, '
    "GeneratedTokens",
    max_bytes=2**30,
    max_elements=2**26,
    error=UsageError,
)
HASH_TOKENS = 512  # of a prompt stand behind each hash of a Mooncake trace
_MOST_TOKENS = 2**24
_MOST_CLIENTS = 10**9
_LATEST = 2.0**63  # more than the nanoseconds since 1970
_COLUMNS = {
    "arrival": ("timestamp", "arrival_timestamp", "arrived_at", "arrival_s"),
    "prompt": ("contexttokens", "input_length", "prompt_tokens", "input_tokens", "num_prefill_tokens"),
    "output": ("generatedtokens", "output_length", "output_tokens", "num_decode_tokens"),
}


def read_bench_serve(raw: bytes, name: str) -> Traffic:
    """The requests of a run of `vllm bench serve`, those that failed left out.

    Where its clients kept a number in flight and no rate was set, that number is kept. Otherwise each request comes
    when it came.
    """
    document: Any = parse_foreign_json(raw, TRAFFIC_FILE)
    if not isinstance(document, dict):
        raise TRAFFIC_FILE.malformed("the top level", "an object", document)
    prompts, outputs = document.get("input_lens"), document.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(outputs, list) or len(prompts) != len(outputs):
        raise TRAFFIC_FILE.refusal(
            "holds no list of requests", "input_lens and output_lens are only there with --save-detailed"
        )
    rate, clients, starts = document.get("request_rate"), document.get("max_concurrency"), document.get("start_times")
    is_closed = isinstance(clients, int) and 0 < clients <= _MOST_CLIENTS and rate in (None, "inf", math.inf)
    if is_closed or rate in ("inf", math.inf):
        times = [0.0] * len(prompts)
    elif isinstance(starts, list) and len(starts) == len(prompts):
        times = [_number(start, "start_times") for start in starts]
    else:
        raise TRAFFIC_FILE.refusal(
            "does not say when requests came", "start_times is missing, and the rate was neither inf nor unset"
        )
    rows = [row for row in zip(times, prompts, outputs, strict=True) if row[2]]
    return _traffic((_request(*row) for row in rows), name, clients if is_closed else None)


def read_json_lines(raw: bytes, name: str) -> Traffic:
    """One request a line. `timestamp` is in milliseconds, `arrival_s` in seconds.

    The hashes of a Mooncake trace name blocks of 512 tokens together with everything before them, so equal hashes
    are equal beginnings.
    """
    rows: list[dict[str, Any]] = []
    for line in raw.splitlines():
        if line.strip():
            row = parse_foreign_json(line, TRAFFIC_FILE)
            if not isinstance(row, dict):
                raise TRAFFIC_FILE.malformed(f"line {len(rows) + 1}", "an object", row)
            rows.append({str(key).lower(): value for key, value in row.items()})
    names = _names(list(rows[0]) if rows else [])
    unit = 1e-3 if names["arrival"] == "timestamp" else 1.0
    chains = [_chain(row.get("hash_ids")) for row in rows]
    shared = Counter(block for chain in chains for block in chain)
    requests = (
        _request(
            _number(row.get(names["arrival"]), names["arrival"]) * unit,
            row.get(names["prompt"]),
            row.get(names["output"]),
            tuple(takewhile(lambda block: shared[block] > 1, chain)),
        )
        for row, chain in zip(rows, chains, strict=True)
    )
    return _traffic(requests, name)


def read_table(raw: bytes, name: str) -> Traffic:
    """Comma-separated rows below a header; a time is a number of seconds, or a date with a time of day."""
    try:
        rows = list(csv.reader(io.StringIO(raw.decode("utf-8-sig")), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise TRAFFIC_FILE.refusal("is no CSV", str(error)[:200]) from None
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    names = _names(header)
    places = [header.index(names[what]) for what in ("arrival", "prompt", "output")]
    requests = []
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) < len(header):
            raise TRAFFIC_FILE.malformed(f"line {number}", f"{len(header)} cells", len(row))
        when, prompt, output = (row[place].strip() for place in places)
        requests.append(_request(_time(when, number), _whole_text(prompt), _whole_text(output)))
    return _traffic(iter(requests), name)


def _traffic(requests: Iterator[Request], name: str, clients: int | None = None) -> Traffic:
    by_arrival = sorted(requests, key=lambda request: request.arrival_s)
    if not by_arrival:
        raise TRAFFIC_FILE.refusal("holds no request", "it is empty, or every request failed")
    first = by_arrival[0].arrival_s
    numbered = tuple(
        Request(
            id=f"r{number}",
            arrival_s=request.arrival_s - first,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            blocks=request.blocks,
            block_tokens=request.block_tokens,
        )
        for number, request in enumerate(by_arrival)
    )
    return Traffic(requests=numbered, concurrency=clients, origin=f"recorded in {name}")


def _request(arrival_s: float, prompt: Any, output: Any, hashes: tuple[int, ...] = ()) -> Request:
    tokens = _whole(prompt, "a prompt")
    return Request(
        id="",
        arrival_s=arrival_s,
        prompt_tokens=max(1, tokens),
        output_tokens=max(1, _whole(output, "an answer")),
        blocks=hashes,
        block_tokens=HASH_TOKENS if hashes else 0,
    )


def _names(header: Sequence[str]) -> dict[str, str]:
    column_of = {what: next((name for name in names if name in header), None) for what, names in _COLUMNS.items()}
    for what, name in column_of.items():
        if name is None:
            raise TRAFFIC_FILE.refusal(
                f"has no column for the {what}", f"it is called one of: {', '.join(_COLUMNS[what])}"
            )
    return {what: name for what, name in column_of.items() if name is not None}


def _chain(given: Any) -> tuple[int, ...]:
    is_list = isinstance(given, list) and len(given) < 2**16
    return tuple(number for number in given if isinstance(number, int)) if is_list else ()


def _number(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LATEST:  # neither NaN nor an integer that no float holds
        raise TRAFFIC_FILE.malformed(where, f"a number from 0 on, at most {_LATEST:g}", value)
    return float(value)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise TRAFFIC_FILE.malformed(where, "a whole number of tokens", value)
    return value


def _whole_text(text: str) -> int | str:
    return int(text) if text.isdigit() and len(text) < 9 else text


def _time(text: str, line: int) -> float:
    """Seconds; for a date the seconds since 1970, so that a file may run over midnight."""
    try:
        return _number(float(text), f"line {line}")
    except ValueError:
        pass
    date_text, _, fraction = text.removesuffix("Z").partition(".")
    try:
        date = datetime.fromisoformat(date_text).replace(tzinfo=UTC)
        return date.timestamp() + (float(f"0.{fraction[:9]}") if fraction else 0.0)
    except ValueError:
        raise TRAFFIC_FILE.malformed(f"line {line}", "a number of seconds or a date with a time", text) from None
