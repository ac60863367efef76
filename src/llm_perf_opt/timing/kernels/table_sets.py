"""Sets of kernel tables on this machine: of an installed package, added with `tables add`, or in a named folder.

`<set>/<system>/<family>/<engine>/<version>/<name>_perf.parquet` is the layout of all of them. Used is the folder that
`--tables` or LLM_PERF_OPT_TABLES names, else the set that was added last, else the installed package. No package is
imported, as its import takes seconds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import TABLE_PACKAGES
from llm_perf_opt.core.reading import FileKind, read_json

VARIABLE = "LLM_PERF_OPT_TABLES"  # a folder of tables, or the name of an added set
TABLE = "*/*/*/*/*_perf.parquet"
IN_PACKAGE = Path("systems", "data")  # where a package keeps its tables
MANIFEST = "tables.json"
NOT_STATED = "licence not stated"
_LICENCE_FIELDS = ("License-Expression", "License")  # of the metadata of a package, the first that is there
MANIFEST_FILE = FileKind(
    name="list of added tables",
    fix="remove the set and add it again: llm-perf-opt tables list",
    schema_version=1,
    is_sealed=True,
    max_bytes=2**20,
)


class TablesFrom(StrEnum):
    """How a set came here."""

    FOLDER = "named folder"
    ADDED = "added"
    PACKAGE = "installed package"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSet:
    """One set of tables; `stamp` changes whenever its rows may."""

    name: str
    version: str
    licence: str
    folder: Path
    comes_from: TablesFrom
    stamp: str

    @property
    def label(self) -> str:
        """What every report says that used it."""
        return f"{self.name} {self.version} ({self.licence})"

    @property
    def key(self) -> str:
        """The name by which it is chosen and removed."""
        return f"{self.name}-{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What lies next to the tables of an added set."""

    schema_version: int
    name: str
    version: str
    licence: str
    source: str  # the file or folder that they were taken from, without its place
    sha256: str  # of all tables, in order
    tables: int
    size_bytes: int


def tables_home() -> Path:
    """Where added sets are: in the user's folder of data."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "llm-perf-opt" / "tables"


def table_sets() -> tuple[TableSet, ...]:
    """Every set on this machine, the one that is used first."""
    named = os.environ.get(VARIABLE, "")
    chosen = named_set(named) if named else None
    others = (*added_sets(), *installed_sets())
    return others if chosen is None else (chosen, *(tables for tables in others if tables.folder != chosen.folder))


def active_set() -> TableSet | None:
    """The set that is used; None: there is none."""
    home = tables_home()
    changed = home.stat().st_mtime_ns if home.is_dir() else 0
    return _active(os.environ.get(VARIABLE, ""), str(home), changed)


@lru_cache(maxsize=16)
def _active(named: str, home: str, changed_ns: int) -> TableSet | None:
    if named:
        return named_set(named)
    return next(iter((*added_sets(), *installed_sets())), None)


def named_set(text: str) -> TableSet:
    """A folder of tables, or an added or installed set by its name."""
    known = {tables.key: tables for tables in (*installed_sets(), *added_sets())}
    if text in known:
        return known[text]
    place = Path(text)
    for folder in (place, place / IN_PACKAGE, place / "data"):
        if (found := _set_in(folder, place)) is not None:
            return found
    raise UsageError(
        f"There are no kernel tables in {text[:200]!r}.",
        why=f"a folder of tables holds SYSTEM/FAMILY/ENGINE/VERSION/NAME_perf.parquet; sets here: {_listed(known)}",
        fix="llm-perf-opt tables add WHEEL takes them out of a wheel; llm-perf-opt tables list shows what is here",
    )


def _listed(names: dict[str, TableSet]) -> str:
    return ", ".join(names) or "none"


def _set_in(folder: Path, named: Path) -> TableSet | None:
    """The set of a folder; its version is a digest of what lies in it, as no package says one."""
    if not folder.is_dir():
        return None
    if (folder / MANIFEST).is_file():
        return _added(folder)
    files = [(path.relative_to(folder).as_posix(), path.stat()) for path in sorted(folder.glob(TABLE))]
    if not files:
        return None
    stamp = hashlib.sha256(repr([(name, at.st_size, at.st_mtime_ns) for name, at in files]).encode()).hexdigest()
    return TableSet(
        name=named.resolve().name,
        version=f"of {len(files)} files, {stamp[:8]}",
        licence=NOT_STATED,
        folder=folder,
        comes_from=TablesFrom.FOLDER,
        stamp=stamp,
    )


def added_sets() -> tuple[TableSet, ...]:
    """The sets of `tables add`, the last first; a folder without its list is none of ours."""
    home = tables_home()
    lists = [] if not home.is_dir() else [path for path in home.glob(f"*/{MANIFEST}") if path.is_file()]
    return tuple(_added(path.parent) for path in sorted(lists, key=lambda path: -path.stat().st_mtime_ns))


def _added(folder: Path) -> TableSet:
    said = read_manifest(folder)
    return TableSet(
        name=said.name,
        version=said.version,
        licence=said.licence,
        folder=folder,
        comes_from=TablesFrom.ADDED,
        stamp=said.sha256,
    )


def read_manifest(folder: Path) -> Manifest:
    """The list next to the tables of an added set."""
    return read_json(folder / MANIFEST, Manifest, MANIFEST_FILE)


def installed_sets() -> tuple[TableSet, ...]:
    """The sets of packages that ship tables, under either name, without importing them."""
    return tuple(_installed())


def _installed() -> Iterator[TableSet]:
    for module, distribution in TABLE_PACKAGES.items():
        spec = util.find_spec(module)
        for place in () if spec is None else spec.submodule_search_locations or ():
            if (folder := Path(place) / IN_PACKAGE).is_dir():
                about = metadata.metadata(distribution)
                yield TableSet(
                    name=distribution,
                    version=about["Version"],
                    licence=next((about[name] for name in _LICENCE_FIELDS if name in about), NOT_STATED),
                    folder=folder,
                    comes_from=TablesFrom.PACKAGE,
                    stamp=f"{distribution} {about['Version']}",
                )


def require_set(install: str) -> TableSet:
    """The set that is used; without one the error says both ways to get one."""
    chosen = active_set()
    if chosen is None:
        raise PerfOptError(
            f"Measured kernel times need kernel tables: {' or '.join(TABLE_PACKAGES.values())}.",
            why="without the tables every kernel is timed by a roofline",
            fix=f"{install}, or llm-perf-opt tables add WHEEL",
        )
    return chosen
