"""What runs: one phase of a model under one workload, its stages, and the parts worth a static graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Protocol

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.reading import FileKind, as_record

Json = Any  # JSON-safe value: None, bool, int, float, str, list, dict with string keys
Emit = Callable[[str, Json], None]  # the name of a runtime fact and its value so far
Observe = Callable[[Any, Emit], AbstractContextManager[object]]  # (the built model, emit) -> entered around `invoke`


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A named part of the run: every call below one of `paths`, unless a deeper stage claims it."""

    name: str
    paths: tuple[str, ...]


Choose = Callable[[Any], Any]  # (logits) -> the next token; None ends the phase


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBefore:
    """What a real run hands from one phase to the next: how the earlier one began, what it returned, the new token."""

    start: Any
    output: Any
    token: Any  # chosen from its logits; None where it has none
    choose: Choose  # gives each further token


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The place of a phase in a real run of all phases. A trace uses none of it: there each phase runs alone.

    `follow` takes the place of `prepare` in every phase but the first: (the model, the phase before) -> what this phase
    begins with. `logits` and `cache_tokens` read what the phase returned: the logits that the first token after it is
    chosen from, and how many tokens its cache holds. `cached_stages` must not run: the cache holds their work.
    """

    entry: str = "forward"  # the method of the model that one step of the phase calls
    follow: Callable[[Any, PhaseBefore], object] | None = None
    logits: Callable[[Any], Any] | None = None
    cache_tokens: Callable[[Any], int] | None = None
    cached_stages: tuple[str, ...] = ()


class World(Protocol):
    """The ranks that a model is spread over, of which one exists: a context that may be entered again and again.

    `replicated` are the parameters that every rank holds whole, a `*` for the number of a layer; None: not known.
    """

    plan: ParallelPlan
    expert_ranks: int  # that hold runs of neighbouring experts; 1: each holds all, or they are dealt out in turn
    replicated: tuple[str, ...] | None

    def __enter__(self) -> World: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def integers(self, kind: CollectiveKind, shape: tuple[int, ...]) -> Sequence[int] | None:
        """What another rank would send into a tensor of this shape; None: not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One phase of one model under one workload, ready for any tracer.

    `build` and `invoke` are plain torch code that runs the same with real tensors and with ghosts. The targets of one
    workload share one `build`, which builds once. Calls that no stage claims belong to a stage named after the phase.
    `runtime` is what the adapter claims of the model's loops; `observe` sees them happen, and what it emits wins. Every
    tracer enters it around `invoke`, before it wraps anything itself (`harness.trace_header.observing`).

    `prepare` makes what the phase begins with: pixels and token ids, the cache that an earlier phase left. It runs
    before anything is recorded, so its ops are no work of the phase and its tensors are the phase's inputs. What it
    returns belongs to `invoke`, which may empty it as it goes, so that nothing is held longer than the model holds it.
    `notes` are sentences about the workload that every report of the trace repeats. `chain` is for real runs.
    """

    model: str
    phase: str
    workload: Mapping[str, Json]
    build: Callable[[], Any]
    invoke: Callable[..., object]  # (the built model), and what the phase begins with where there is any
    stages: tuple[Stage, ...] = ()
    runtime: Mapping[str, Json] = field(default_factory=dict)
    observe: Observe | None = None
    prepare: Callable[[Any], object] | None = None
    notes: tuple[str, ...] = ()
    chain: Chain = Chain()
    world: World | None = None  # of a model that is split between ranks: open while it is built and while it runs
    has_weights: bool = False  # `build` gives the weights that are to run: real runs neither fill nor load any

    def start(self, model: Any) -> object:
        """What the phase begins with, made anew; None where it needs nothing."""
        if self.prepare is None:
            return None
        with Interruptible():
            return self.prepare(model)

    def run(self, model: Any, given: object = None) -> object:
        """Run the phase once on what `start` or the phase before made; by default `start` makes it now."""
        if given is None:
            given = self.start(model)
        with Interruptible():
            return self.invoke(model) if given is None else self.invoke(model, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a model that is worth a static graph: one module, or several wrapped as one."""

    name: str  # "sam-block-windowed"
    path: str  # of the module in the run; its last distinct call gives the arguments
    title: str = ""
    phase: str = "prefill"
    axes: tuple[str, ...] = ()  # names of the dimensions of its first tensor; an empty name: not tried, and listed so
    wrap: Callable[[Any], Any] | None = None  # (the built model) -> the module to export in place of the one at `path`
    wraps: tuple[str, ...] = ()  # the modules that do the work of the wrapper, where that is not `path` alone
    adaptation: str = ""  # what the wrapper changes
    does_other_work: bool = False  # than the modules it stands for: its FLOPs need not be theirs
    instead: tuple[str, ...] = ()  # names of the parts to export where this one cannot be


# How often modules must run, worked out before the run from the configuration, the page and the steps.
#
# An adapter states it in `Target.runtime` under `expected_calls`, so that it travels with the trace and can contradict
# it. What cannot be worked out is not stated.

KEY = "expected_calls"
_KIND = FileKind(
    name="list of expected calls", fix="trace the model again, or restore the file from a copy", has_every_key=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """Layers with routers that choose `chosen` of `experts` for each of `tokens`, in each of `forwards`.

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

    `paths` is a module path in which `*` stands for one name: `model.layers.*`. Empty: `fact` names a runtime fact,
    and its sum is checked in place of calls. `calls` is None for routed experts.
    """

    what: str  # "SAM blocks"
    formula: str  # "12 blocks x (1 global view + 1 batch of 6 crops)"
    calls: int | None
    paths: str = ""
    fact: str = ""
    routed: RoutedExperts | None = None


def stated(expected: Sequence[ExpectedCalls]) -> dict[str, Json]:
    """The entry for `Target.runtime`; nothing where no rule is known."""
    return {KEY: [asdict(calls) for calls in expected]} if expected else {}


def read_expected_calls(runtime: Mapping[str, Json]) -> tuple[ExpectedCalls, ...]:
    """What a trace states. A list that is not as `stated` writes it is refused."""
    written = runtime.get(KEY)
    return () if written is None else as_record(written, tuple[ExpectedCalls, ...], _KIND)
