"""The workload of a run in words, from the headers of its traces: without it no figure beside it means anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.records import Json
from llm_perf_opt.document import Note
from llm_perf_opt.units import format_count


def workload_note(graphs: Sequence[CallGraph]) -> Note:
    """What ran, with every default filled in: one sentence for all phases of a run."""
    if not graphs or not graphs[0].workload:
        return Note("Workload: not stated in the trace.")
    first, *later = graphs
    others = "".join(f" {_capital(graph.phase)}: {text}." for graph in later if (text := _differing(first, graph)))
    return Note(f"Workload: {workload_text(first.workload)}.{others}")


def run_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """The notes of the traces themselves; what every phase says is said once, without the name of a phase."""
    shared = set(graphs[0].notes).intersection(*(graph.notes for graph in graphs)) if graphs else set()
    yield from (Note(text) for text in dict.fromkeys(graphs[0].notes if graphs else ()) if text in shared)
    for graph in graphs:
        yield from (Note(f"{graph.phase}: {text}") for text in graph.notes if text not in shared)


def workload_text(workload: Mapping[str, Json]) -> str:
    """`prompt tokens 20, image 1240x1754, ...`, in the order of the header."""
    return ", ".join(f"{name} {text}" for name, text in setting_texts(workload).items())


def setting_texts(workload: Mapping[str, Json]) -> dict[str, str]:
    """Each setting by its name in words; those that say nothing are left out."""
    told = {name.replace("_", " "): value for name, value in workload.items() if value not in (None, [], {})}
    return {name: setting_text(value) for name, value in told.items()}


def _differing(first: CallGraph, other: CallGraph) -> str:
    """What a later phase was run with that the first was not."""
    return workload_text({name: value for name, value in other.workload.items() if first.workload.get(name) != value})


def setting_text(value: Json) -> str:
    """`2x3`, `131,072`, `(input_ids 1x128, ...)`."""
    if isinstance(value, Mapping):
        return f"({', '.join(f'{name} {setting_text(item)}' for name, item in value.items())})"
    if isinstance(value, list | tuple):
        return "x".join(map(str, value)) if all(isinstance(item, int) for item in value) else _listed(value)
    return format_count(value) if type(value) is int else str(value)


def _listed(values: Sequence[Json]) -> str:
    return f"({', '.join(map(setting_text, values))})"


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]
