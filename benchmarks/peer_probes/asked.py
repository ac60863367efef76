"""One question to a tool: about which model, and with which weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peer_probes.workloads import EXACT_FLOPS, FOLDERS

if TYPE_CHECKING:
    from benchmarks.peer_probes.subjects import Subject


@dataclass(frozen=True)
class Asked:
    """`folder` holds a configuration, for tools that read nothing else; the module is built when it is first wanted."""

    name: str
    weights: str

    @property
    def folder(self) -> Path | None:
        return FOLDERS.get(self.name)

    @property
    def exact_flops(self) -> int:
        return EXACT_FLOPS[self.name]()

    @cached_property
    def subject(self) -> Subject:
        from benchmarks.peer_probes.subjects import build_subject

        return build_subject(self.name, self.weights)
