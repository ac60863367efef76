"""A kind of file: a good one, how the program reads it, and what is done with the content afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import to_json_dict
from llm_perf_opt.core.errors import PerfOptError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file. `read` gives a value to compare: equal values are equal in meaning."""

    name: str
    good: bytes
    read: Callable[[bytes], object]
    is_sealed: bool = False
    is_json: bool = True
    one_in: int = 1  # of the mutations that other kinds get: reading takes as much longer
    read_as: str = ""  # the kind that its reader takes it for too, where that is another
    also_reads: tuple[str, ...] = ()  # families that its reader takes as well: whole, they are other files, not damage

    @property
    def family(self) -> str:
        """Equal for kinds of which one may lie in the place of the other: then it is another file, and no damage."""
        return self.read_as or self.name.partition(",")[0]


def at(file: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Reads what is given as if it were the content of `file`."""

    def of_content(raw: bytes) -> object:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
        return read(file)

    return of_content


def as_text(read: Callable[[str], object], raw: bytes) -> object:
    """Reads what is given as a word of the command line, which may hold anything but a zero byte."""
    return read(raw.decode("utf-8", "replace").replace("\0", ""))


def small_module() -> nn.Module:
    """Two products: enough for a trace, a page and a picture."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def questions(file: Path) -> object:
    """A trace as it is read, and every answer that it gives or refuses: what a reader lets pass is used here."""
    trace = lpo.load(file)
    asked: tuple[Callable[[], object], ...] = (
        lambda: trace.graph().draw("text"),
        lambda: trace.graph(ungrouped=True).draw("json"),
        lambda: trace.cost(("counted",)).to_dict(),
        lambda: trace.memory().to_dict(),
        lambda: trace.predict("h100-sxm").to_dict(),
        lambda: trace.compare(trace).to_dict(),
    )
    return [to_json_dict(graph) for graph in trace.graphs], [_answered(ask) for ask in asked]


def function_questions(file: Path) -> object:
    """A function as it is read, evaluated in every cell, at points it does not hold, and as the trace of a point."""
    function = lpo.load_function(file)
    asked: list[Callable[[], object]] = []
    for phase in function.phases:
        low = {name: ends[0] for name, ends in phase.domain.items()}
        beyond = {name: [ends[1] + 1] for name, ends in phase.domain.items()}
        for cell in phase.cells:
            corners = {name: list(ends) for name, ends in cell.region.items()}
            asked.append(partial(_figures, function, phase.phase, corners))
        asked.append(partial(_figures, function, phase.phase, beyond))
        asked.append(partial(_point_of, function, **low))
    return [_answered(ask) for ask in asked]


def _figures(function: lpo.TraceFunction, phase: str, points: dict[str, list[int]]) -> object:
    return {name: column.tolist() for name, column in function.figures(phase, points).items()}


def _point_of(function: lpo.TraceFunction, **point: int) -> object:
    trace = function.at(**point)
    return [to_json_dict(graph) for graph in trace.graphs], trace.cost(("counted",)).to_dict()


def _answered(ask: Callable[[], object]) -> object:
    """A question may be refused with a reason: a file may know too little for it."""
    try:
        return ask()
    except PerfOptError as error:
        if not (error.what and error.why and error.fix):
            raise ValueError(f"a refusal without a reason: {error}") from error
        return str(error)
