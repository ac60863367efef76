"""The `runtime` section of a trace: what the adapter claims, corrected by what its observer saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.plugins import Json, Target


@dataclass(slots=True)
class RuntimeFacts:
    """Facts of one run by name. Emitting a name again replaces it, so that a counter may be emitted at every step."""

    claimed: dict[str, Json]
    observed: dict[str, Json] = field(default_factory=dict)

    def emit(self, name: str, fact: Json) -> None:
        """What an observer calls."""
        self.observed[name] = fact

    def runtime(self) -> dict[str, Json]:
        """What was seen wins over what was claimed; `observed` names the facts that are more than a claim."""
        seen = {"observed": sorted(self.observed)} if self.observed else {}
        return {**self.claimed, **self.observed, **seen}

    def notes(self) -> list[str]:
        """One sentence per fact that the adapter claimed and the run contradicted."""
        return [
            f"runtime.{name}: {self.claimed[name]!r} was expected, {fact!r} was observed"
            for name, fact in self.observed.items()
            if name in self.claimed and self.claimed[name] != fact
        ]


@contextmanager
def observing(target: Target, model: Any) -> Iterator[RuntimeFacts]:
    """Around `target.invoke(model)`, in every tracer: the facts, complete when the block ends.

    The observer may replace methods of the model's classes, so enter this before anything wraps `forward` per
    instance, and leave it after.
    """
    facts = RuntimeFacts(dict(target.runtime))
    with ExitStack() as stack:
        if target.observe is not None:
            stack.enter_context(target.observe(model, facts.emit))
        yield facts
