"""Fit to serve as a table: a row for each deployment, the answer first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_perf_opt.analyses.serving.fit import BY_NOTHING, BY_TRAINING, ServingFit, ServingNeeds, fit_of, serving_needs
from llm_perf_opt.analyses.serving.working_memory import FORWARD, SAMPLING
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.report import Cell, Column, Kind, Note, Report, Table
from llm_perf_opt.core.units import format_bytes, format_ratio

_COLUMNS = (
    Column("devices"),
    Column("fits"),
    Column("largest batch", Kind.COUNT),
    Column("largest context", Kind.COUNT),
    Column("memory", Kind.BYTES),
    Column("share in use", Kind.BYTES),
    Column("weights", Kind.BYTES),
    Column("working memory", Kind.BYTES),
    Column("outside PyTorch", Kind.BYTES),
    Column("room for cache", Kind.BYTES),
    Column("cache asked for", Kind.BYTES),
)

_MOMENTS = {SAMPLING: "sampling", FORWARD: "the forward of a whole chunk"}


def serving_fit_table(fits: Sequence[ServingFit]) -> Table:
    """One row per deployment of the same batch and context; bytes are those of one device."""
    asked = {(fit.batch, fit.context) for fit in fits}
    if len(asked) != 1:
        raise ValueError(f"a table of serving fits is about one batch and one context, not about {sorted(asked)}")
    batch, context = asked.pop()
    return Table(
        title=f"Does it serve {batch:,} {'sequence' if batch == 1 else 'sequences'} of {context:,} tokens?",
        columns=_COLUMNS,
        rows=tuple(_row(fit) for fit in fits),
    )


def _row(fit: ServingFit) -> tuple[Cell, ...]:
    return (
        fit.device.name if fit.devices == 1 else f"{fit.devices} x {fit.device.name}",
        None if fit.fits is None else "yes" if fit.fits else "no",
        fit.largest_batch,
        fit.largest_context,
        fit.memory_bytes,
        fit.budget_bytes,
        fit.weights_bytes,
        fit.working_bytes,
        fit.outside_torch_bytes,
        fit.room_bytes,
        fit.cache_bytes,
    )


def traced_fit(graphs: Sequence[CallGraph], device: Device) -> tuple[ServingNeeds, ServingFit] | None:
    """The needs of a traced run, and whether `device` serves its batch and context; None where nothing was decoded."""
    decode = next((graph for graph in graphs if graph.phase == "decode" and graph.storages is not None), None)
    context = None if decode is None else decode.workload.get("context_tokens")
    if decode is None or not isinstance(context, int) or context < 1:
        return None
    steps = decode.runtime.get("decode_steps", 1)
    needs = serving_needs(graphs, device)
    return needs, fit_of(needs, device, batch=decode.workload.get("batch", 1), context=context + steps)


def with_serving_fit(report: Report, graphs: Sequence[CallGraph], device: Device) -> Report:
    """The report with the answer for the traced batch and context on `device`; as it is where nothing was decoded."""
    found = traced_fit(graphs, device)
    if found is None:
        return report
    needs, fit = found
    return replace(
        report,
        tables=(*report.tables, serving_fit_table([fit])),
        notes=(*report.notes, *serving_notes(needs, fit)),
    )


def serving_parts_table(needs: ServingNeeds) -> Table:
    """Every term of the weights and of the working memory on one device."""
    working = () if needs.working is None else needs.working.terms
    rows = [("weights", term.name, term.bytes) for term in needs.weights]
    rows += [("working memory", term.name, term.bytes) for term in working]
    rows.append(("outside PyTorch", "CUDA modules, communication buffers", needs.engine.outside_torch(needs.devices)))
    return Table(
        title=f"What {needs.engine.name} holds beside the cache",
        columns=(Column("part"), Column("what it is"), Column("bytes", Kind.BYTES)),
        rows=tuple(rows),
    )


def serving_notes(needs: ServingNeeds, fit: ServingFit) -> Iterator[Note]:
    """What the answer rests on, and what limits it."""
    yield Note(
        f"{needs.engine.name} uses {format_ratio(fit.utilisation)} of the {format_bytes(fit.memory_bytes)} it sees; "
        f"prefill in chunks of {needs.limits.chunk_tokens:,} tokens, at most {needs.limits.sequences:,} sequences at a "
        "time. Largest batch at this context, largest context for this batch, both by memory alone."
    )
    if needs.devices > 1:
        yield Note(
            f"{needs.devices} devices share every layer (tensor parallel): matrices are divided, the cache as far as "
            "there are key-value heads."
        )
    if needs.working is not None:
        yield Note(f"The working memory is largest in {_MOMENTS[needs.working.moment]}.")
    if fit.context_limit == BY_TRAINING:
        yield Note("The largest context is the trained length; memory would allow more.")
    if fit.context_limit == BY_NOTHING:
        yield Note("The cache stops growing, so memory sets no limit to the context.")
