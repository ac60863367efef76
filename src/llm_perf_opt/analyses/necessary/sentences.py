"""What is said where code does more than is necessary, and about experts that only a policy can choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.necessary.expert_blocks import AS_TRACED, BALANCED, UNIFORM
from llm_perf_opt.analyses.necessary.work import ExpertReads, NecessaryWork
from llm_perf_opt.document import Note
from llm_perf_opt.units import format_bytes, format_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWorks:
    """One stage as written, and what is necessary of it; None is unknown."""

    name: str
    flops: int | None
    bytes_moved: int | None
    necessary: NecessaryWork | None


WORTH_SAYING = 0.10  # of the work as written
_POLICIES = {
    UNIFORM: "the number expected when every token chooses uniformly",
    BALANCED: "as many as so many tokens can touch",
    "one": "every token chooses the same",
    AS_TRACED: "as many as the trace touched",
}


def difference_notes(stages: Sequence[BothWorks]) -> Iterator[Note]:
    """Where work as written exceeds what is necessary by more than a tenth: a sentence per stage, and one for bytes."""
    known = [stage for stage in stages if stage.necessary is not None]
    for stage in known:
        yield from _flops_note(stage)
    moved = [text for stage in known for text in _bytes_text(stage)]
    if moved:
        yield Note(
            f"More bytes are moved than must be read once in {', '.join(moved)}: "
            "the rest is intermediate results, and copies of the cache or of weights."
        )


def _flops_note(stage: BothWorks) -> Iterator[Note]:
    needed = stage.necessary
    if needed is None or stage.flops is None or stage.flops - needed.flops <= WORTH_SAYING * stage.flops:
        return
    reasons = sorted(needed.saved.items(), key=lambda item: -item[1])
    shown = [f"{format_flops(count)} are {reason}" for reason, count in reasons if count > 0.01 * stage.flops]
    yield Note(
        f"{stage.name}: the code runs {format_flops(stage.flops)} where {format_flops(needed.flops)} are necessary. "
        f"{'; '.join(shown)}."
    )


def _bytes_text(stage: BothWorks) -> Iterator[str]:
    needed = None if stage.necessary is None else stage.necessary.bytes
    if needed is None or stage.bytes_moved is None or stage.bytes_moved - needed <= WORTH_SAYING * stage.bytes_moved:
        return
    yield f"{stage.name} ({format_bytes(stage.bytes_moved)} against {format_bytes(needed)})"


def expert_notes(stage: str, necessary: NecessaryWork) -> Iterator[Note]:
    """The policy beside the figures that depend on it."""
    groups = _merged(necessary.distinct_experts)
    for reads in groups:
        yield Note(
            f"{stage}: each of {reads.layers} expert layers reads {reads.distinct:.4g} of its {reads.experts} experts "
            f"({_counted(reads.tokens, 'token')} choosing {reads.chosen}). Routing policy {reads.policy}: "
            f"{_POLICIES.get(reads.policy, 'as the trace was routed')}."
        )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _merged(reads: tuple[ExpertReads, ...]) -> list[ExpertReads]:
    """The largest group: the last layer of a prefill is needed for fewer tokens and says nothing new."""
    return [max(reads, key=lambda one: one.layers)] if reads else []
