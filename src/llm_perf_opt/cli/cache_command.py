"""`llm-perf-opt cache`: traces, step times and functions that later runs read again."""

from __future__ import annotations

import typer

from llm_perf_opt.cli.output import put
from llm_perf_opt.cli.progress import say

cache_app = typer.Typer(
    name="cache",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Manage the stored traces, step times and functions, which later runs read instead of computing them again.",
)


@cache_app.callback()
def _group() -> None:
    """Manage the stored traces, step times and functions, which later runs read instead of computing them again."""


@cache_app.command("list")
def list_entries() -> None:
    """List the entries, the most recently used first."""
    from datetime import UTC, datetime

    from llm_perf_opt.core.store import entries
    from llm_perf_opt.core.units import format_bytes, format_count

    cached = entries()
    for entry in cached:
        used = datetime.fromtimestamp(entry.used_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        put(f"{used}  {format_bytes(entry.size_bytes):>9}  {entry.kind}: {entry.about}\n")
    total = format_bytes(sum(entry.size_bytes for entry in cached))
    say(f"{format_count(len(cached))} entries, {total}, in {_place()}")


@cache_app.command()
def where() -> None:
    """Print the folder of the cache."""
    put(f"{_place()}\n")


@cache_app.command()
def clear() -> None:
    """Remove every entry. The next run of a model then traces it again."""
    from llm_perf_opt.core.store import clear as clear_store
    from llm_perf_opt.core.units import format_bytes, format_count

    count, size_bytes = clear_store()
    put(f"Removed {format_count(count)} entries, {format_bytes(size_bytes)}, from {_place()}.\n")


def _place() -> str:
    from llm_perf_opt.core.store import VARIABLE, store_folder

    folder = store_folder()
    return f"no folder: {VARIABLE}=off" if folder is None else str(folder)
