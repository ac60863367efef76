"""`llm-perf-opt tables`: which tables of measured kernels are here, adding a set from a wheel, removing one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.output import put
from llm_perf_opt.cli.progress import say

tables_app = typer.Typer(
    name="tables",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Tables of measured kernels, which times are read from: list the sets, add one from a wheel, remove one.",
)


@tables_app.callback()
def _group() -> None:
    """Tables of measured kernels, which times are read from: list the sets, add one from a wheel, remove one."""


@tables_app.command("list")
def list_sets() -> None:
    """List the sets of tables, the one that is used first."""
    from llm_perf_opt.core.units import format_bytes, format_count
    from llm_perf_opt.timing.kernels.added_tables import table_size
    from llm_perf_opt.timing.kernels.table_sets import table_sets, tables_home

    for place, one in enumerate(table_sets()):
        count, size_bytes = table_size(one)
        used = "used" if not place else ""
        put(f"{used:<4}  {one.label}  {format_count(count)} tables, {format_bytes(size_bytes)}  {one.comes_from}\n")
    if not table_sets():
        put("No tables of measured kernels are here.\n")
        say("Next: pip install 'llm-perf-opt[kernels]', or llm-perf-opt tables add WHEEL")
    say(f"Added sets are in {tables_home()}")


@tables_app.command()
def add(
    source: Annotated[
        Path, typer.Argument(metavar="WHEEL|DIR", help="A wheel that holds tables, or a folder of them.")
    ],
) -> None:
    """Take the tables out of a wheel or a folder, without its code and its dependencies; the next command uses them."""
    from llm_perf_opt.core.units import format_bytes, format_count
    from llm_perf_opt.timing.kernels.added_tables import add_tables, table_size

    added = add_tables(source)
    count, size_bytes = table_size(added)
    put(f"Added {added.label}: {format_count(count)} tables, {format_bytes(size_bytes)}, in {added.folder}.\n")
    say("Next: llm-perf-opt tables list")


@tables_app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME-VERSION", help="An added set, such as aisimulate-0.13.0.")],
) -> None:
    """Remove an added set."""
    from llm_perf_opt.timing.kernels.added_tables import remove_tables

    put(f"Removed {remove_tables(name).label}.\n")
