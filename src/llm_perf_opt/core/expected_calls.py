"""How often modules must run, worked out before the run from the configuration, the page and the steps.

An adapter states it in `Target.runtime` under `expected_calls`, so that it travels with the trace and can contradict
it. What cannot be worked out is not stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from llm_perf_opt.core.reading import FileKind, as_record
from llm_perf_opt.core.target import Json

KEY = "expected_calls"
_KIND = FileKind(
    name="list of expected calls", fix="trace the model again, or restore the file from a copy", has_every_key=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """Layers whose routers choose `chosen` of `experts` for each of `tokens`, in each of `forwards`.

    How many experts are called follows from the routing policy, which the trace states.
    """

    layers: int
    experts: int
    chosen: int
    tokens: int
    forwards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCalls:
    """The calls of one kind of module in one phase, with the formula in words.

    `paths` is a module path in which `*` stands for one name: `model.layers.*`. Empty: `fact` is the name of a runtime
    fact whose sum is checked in place of calls. `calls` is None for routed experts.
    """

    what: str  # "SAM blocks"
    formula: str  # "12 blocks x (1 global view + 1 batch of 6 crops)"
    calls: int | None
    paths: str = ""
    fact: str = ""
    routed: RoutedExperts | None = None


def stated(expected: Sequence[ExpectedCalls]) -> dict[str, Json]:
    """The entry for `Target.runtime`; nothing where no rule is known."""
    return {KEY: [asdict(one) for one in expected]} if expected else {}


def read_expected_calls(runtime: Mapping[str, Json]) -> tuple[ExpectedCalls, ...]:
    """What a trace states. A list that is not as `stated` writes it is refused."""
    written = runtime.get(KEY)
    return () if written is None else as_record(written, tuple[ExpectedCalls, ...], _KIND)
