"""Names -> import paths: a table of plug-ins that can be listed without loading any of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Generic, TypeVar, cast

from llm_perf_opt.core.errors import UsageError

T_co = TypeVar("T_co", covariant=True)


class Registry(Generic[T_co]):
    """Names -> `"package.module:attribute"`, imported at the first `get`."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def names(self) -> tuple[str, ...]:
        """Every registered name, in the order of the table."""
        return tuple(self._entries)

    def get(self, name: str) -> T_co:
        """The registered object; an unknown name raises with the nearest known one."""
        self.check(name)
        module, _, attribute = self._entries[name].partition(":")
        return cast("T_co", getattr(importlib.import_module(module), attribute))

    def check(self, name: str) -> None:
        """Refuse an unknown name without importing anything."""
        if name not in self._entries:
            raise UsageError(
                f"No {self.kind} named {name!r}.",
                why=f"known {self.kind}s: {', '.join(self._entries)}",
                fix=self._nearest(name),
            )

    def _nearest(self, name: str) -> str:
        import difflib

        close = difflib.get_close_matches(name, self._entries, n=1, cutoff=0.5)
        return f"did you mean {close[0]!r}?" if close else "pick one of the known names"
