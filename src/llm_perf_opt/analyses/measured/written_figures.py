"""Figures that a person wrote down: `ttft=0.5s tpot=20ms batch=16`, as a line of text, TOML, JSON or CSV.

A time has its unit in its name (`ttft_ms`) or in its value (`0.5s`). A number without one is refused.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from llm_perf_opt.analyses.measured.measurement import MEASURED_FILE, MeasuredRun, Quantity, run_of, time_of
from llm_perf_opt.core.reading import parse_foreign_json, parse_toml

SOURCE = "written figures"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_TIMES = {
    Quantity.TTFT: ("ttft", "time_to_first_token"),
    Quantity.TPOT: ("tpot", "time_per_output_token", "itl", "inter_token_latency"),
}
_COUNTS = {
    "batch": ("batch", "batch_size"),
    "concurrency": ("concurrency", "max_concurrency"),
    "input_tokens": ("input_tokens", "input_len", "isl", "prompt_tokens", "context"),
    "output_tokens": ("output_tokens", "output_len", "osl", "decode_steps"),
}
_TEXTS = {"model": ("model",), "device": ("device", "gpu")}
_QUANTITY_OF = {name: quantity for quantity, names in _TIMES.items() for name in names}
_COUNT_OF = {name: field for field, names in _COUNTS.items() for name in names}
_TEXT_OF = {name: field for field, names in _TEXTS.items() for name in names}
_PAIR = re.compile(r"([A-Za-z_]{1,40})\s*[=:]\s*(\"[^\"]{0,200}\"|[^\s,;]{1,200})(?:[\s,;]+|$)")
_VALUE = re.compile(r"([0-9.eE+-]{1,40})\s*(s|ms|us)?")
_MOST_RUNS = 64


def read_line(text: str, file: str) -> tuple[MeasuredRun, ...]:
    """The runs in lines of `name=value`, one run in each; what follows a `#` is left out."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return _runs((_pairs(line) for line in lines if line), file)


def read_toml(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run at the top level, or one in each table `[[run]]`."""
    document = parse_toml(raw, MEASURED_FILE)
    return _runs(_objects(document.get("run", document)), file)


def read_json_figures(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run as an object, or several in a list."""
    return _runs(_objects(parse_foreign_json(raw, MEASURED_FILE)), file)


def read_csv(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """One run in each row below a header."""
    try:
        rows = csv.DictReader(io.StringIO(raw.decode("utf-8-sig")), strict=True)
        found = [{name: value for name, value in row.items() if name and value} for row in rows]
    except (csv.Error, UnicodeDecodeError) as error:
        raise MEASURED_FILE.refusal("is no CSV", str(error)[:200]) from None
    return _runs(found, file)


def _pairs(line: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    place = 0
    while place < len(line):
        pair = _PAIR.match(line, place)
        if pair is None:
            raise MEASURED_FILE.malformed("a line of text", "name=value, such as ttft=0.5s", line[place : place + 60])
        if pair[1] in found:
            raise MEASURED_FILE.malformed("a line of text", f"{pair[1]!r} once", line[:60])
        found[pair[1]] = pair[2].strip('"')
        place = pair.end()
    return found


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    for item in document if isinstance(document, list) else [document]:
        if not isinstance(item, dict):
            raise MEASURED_FILE.malformed("a run", "an object of names and values", item)
        yield item


def _runs(objects: Any, file: str) -> tuple[MeasuredRun, ...]:
    found = [_run(item, file) for item, _ in zip(objects, range(_MOST_RUNS + 1), strict=False)]
    if len(found) > _MOST_RUNS:
        raise MEASURED_FILE.refusal("is too large", f"it holds more than {_MOST_RUNS} runs")
    if not found:
        raise MEASURED_FILE.refusal("holds no run", "nothing stands in it")
    return tuple(found)


def _run(values: Mapping[str, Any], file: str) -> MeasuredRun:
    times: dict[Quantity, float] = {}
    known: dict[str, Any] = {}
    for name, value in values.items():
        plain, unit = _without_unit(str(name).strip().lower())
        if plain in _QUANTITY_OF and _QUANTITY_OF[plain] not in times:
            times[_QUANTITY_OF[plain]] = _seconds(name, value, unit)
        elif plain in _COUNT_OF and not unit and _COUNT_OF[plain] not in known:
            known[_COUNT_OF[plain]] = _count(name, value)
        elif plain in _TEXT_OF and not unit and isinstance(value, str):
            known[_TEXT_OF[plain]] = value
        else:
            names = (*(f"{first}_ms" for first, *_ in _TIMES.values()), *_COUNTS, *_TEXTS)
            raise MEASURED_FILE.malformed("a name", f"one of {', '.join(names)}, each once", name)
    return run_of(
        [time_of(quantity, seconds) for quantity, seconds in times.items()], source=SOURCE, file=file, **known
    )


def _without_unit(name: str) -> tuple[str, str]:
    plain, _, unit = name.rpartition("_")
    return (plain, unit) if unit in _SECONDS and plain in _QUANTITY_OF else (name, "")


def _seconds(name: str, value: Any, unit: str) -> float:
    text = str(value).strip() if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool) else ""
    found = _VALUE.fullmatch(text)
    number = _number(found[1]) if found else None
    if found is None or number is None or bool(found[2]) == bool(unit):
        raise MEASURED_FILE.malformed(f"{name}", "a time with one unit, ttft=0.5s or ttft_ms=500", value)
    if not number > 0:
        raise MEASURED_FILE.malformed(f"{name}", "a time above zero", value)
    return number * _SECONDS[unit or found[2]]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _count(name: str, value: Any) -> int:
    number = _number(str(value)) if not isinstance(value, bool) and len(str(value)) < 40 else None
    if number is None or number != number // 1:
        raise MEASURED_FILE.malformed(f"{name}", "a whole number", value)
    return int(number)
