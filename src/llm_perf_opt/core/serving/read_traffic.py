"""Traffic from whatever tells of it: a line that declares a distribution, or a file; its content says which kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import naming_file, read_bytes
from llm_perf_opt.core.serving.declared_traffic import DeclaredTraffic, PageRule
from llm_perf_opt.core.serving.recorded_traffic import TRAFFIC_FILE, read_bench_serve, read_json_lines, read_table
from llm_perf_opt.core.serving.requests import Traffic
from llm_perf_opt.core.serving.traffic_text import EXAMPLES, PagesReader, declared_in_toml, names_file, read_declared

_SUFFIXES = (".toml", ".json", ".jsonl", ".csv")


def read_traffic(given: str | Path, pages: PagesReader | None = None) -> DeclaredTraffic | Traffic:
    """A distribution or recorded requests. `pages` reads what stands after `pages=` where core does not."""
    path = Path(given)
    if isinstance(given, str) and (" " in given.strip() or "=" in given) and not names_file(path):
        return read_declared(given, pages)
    if not names_file(path) and path.suffix not in _SUFFIXES:
        raise UsageError(
            f"{str(given)[:80]!r} is no traffic.",
            why="it is neither a file nor a line that declares requests",
            fix=f"write {' or '.join(EXAMPLES[:2])}, or name a file with a recorded run",
        )
    raw = read_bytes(path, TRAFFIC_FILE)
    with naming_file(path):
        if path.suffix == ".toml":
            found = declared_in_toml(raw, TRAFFIC_FILE, pages)
            return replace(found, text=f"{path.name}: {found.text}")
        return _recorded(raw, path.name)


def as_traffic(given: str | Path | DeclaredTraffic | Traffic, page_rule: PageRule | None = None) -> Traffic:
    """The requests themselves."""
    found = given if isinstance(given, DeclaredTraffic | Traffic) else read_traffic(given)
    return found.traffic(page_rule) if isinstance(found, DeclaredTraffic) else found


def _recorded(raw: bytes, name: str) -> Traffic:
    head = raw[: 2**16].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head.startswith(b"{"):
        return read_table(raw, name)
    lines = [line for line in head.splitlines()[:2] if line.strip()]
    is_lines = len(lines) > 1 and lines[1].lstrip().startswith(b"{")
    return read_json_lines(raw, name) if is_lines or b'"input_lens"' not in raw else read_bench_serve(raw, name)
