"""The ladder: where the time of each stage goes, from the time as written or measured down to the lower bound.

Every rung is the difference of two states of one stage, both priced by the timer that `trace --device` asks, so the
rungs and the bound add up to the time at the top, to the nanosecond. The states of code in PyTorch come in this order:
as written with the host; without the host; then with one fusion of an engine after the other; then with an engine's
own kernels. Below that lie the gaps between its kernels, their distance from the roofline, and what separates a sum of
rooflines from the bound of the whole stage. A state is never above the one before it and never below the bound: where
two estimates disagree about a small rest, the rest belongs to the rung above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.advice.pricing import OTHERS, PROMPTS, QUEUE, Pricer, seconds_of, steps_of
from llm_perf_opt.advice.setup import Setup, has_looped_experts
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, label_of, ops_of, path_pattern
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.workload import steps_after_prompt
from llm_perf_opt.ops.kernel_shape import MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.engine_kernels import RuleUse, fused_run
from llm_perf_opt.timing.fusions import Fusion
from llm_perf_opt.timing.kernel_rates import KernelTableRates
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S
from llm_perf_opt.timing.lower_bound import fastest_peak
from llm_perf_opt.timing.predict import StageTime
from llm_perf_opt.timing.rates import RateSource

UNEXPLAINED = "not explained by the model of the time"
HOST = "host launches"
ENGINE = "PyTorch's kernels in place of an engine's"
LINKS = "communication that nothing hides"
GAPS = "gaps between kernels"
BELOW_ROOF = "kernels below their roofline"
TILES = "tiles and padding"
IN_TURN = "compute and memory traffic in turn"
SCORES = "attention that writes its scores to memory"
HIDDEN = "pairs of query and key that the mask hides"
EXPERTS = "experts run one by one"
UNFUSED = "elementwise work and copies that are not fused"
JOINED = "matmuls of one input, each by itself"
BEYOND = "intermediate results, and work beyond the bound"

# Fusions of the code in PyTorch, in the order in which they are granted.
FUSED_RUNGS: Mapping[str, frozenset[Fusion]] = {
    SCORES: frozenset({Fusion.ATTENTION}),
    HIDDEN: frozenset({Fusion.ATTENTION}),
    "positions with logits that nobody reads": frozenset({Fusion.HEAD}),
    EXPERTS: frozenset({Fusion.EXPERTS}),
    "latent cache expanded at every step": frozenset({Fusion.ABSORBED}),
    UNFUSED: frozenset(
        {
            Fusion.LAYOUT,
            Fusion.CACHE_IN_PLACE,
            Fusion.PREPARED,
            Fusion.OUTER,
            Fusion.NORM,
            Fusion.ROTARY,
            Fusion.ACTIVATION,
            Fusion.ROUTER,
            Fusion.VECTOR,
        }
    ),
    JOINED: frozenset({Fusion.QKV, Fusion.LATENT_INPUTS, Fusion.GATE_UP, Fusion.SIBLINGS}),
}
_NANO = 1_000_000_000
_FAMILIES_SHOWN, _MOST_RUNS = 1, 2
_SMALLEST_TILE, _TILE = 16, 128  # rows that matrix engines take at least, and rows and columns of a usual tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What one cause takes of a stage, and the bytes that it moves in addition; None: not known."""

    name: str
    time_ns: int
    bytes_moved: int | None = 0
    families: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLadder:
    """The rungs of one stage, the top one first; with the bound at the bottom they add up to the time at the top.

    `bottom_ns` is the lower bound where it is known, else what the rooflines of its kernels add up to, and
    `bottom_bytes` what has to be moved for it. `engine_ns` is the time of the same stage with an engine's kernels.
    """

    phase: str
    stage: str
    top_ns: int
    rungs: tuple[Rung, ...]
    bottom_ns: int
    engine_ns: int
    bottom_bytes: int | None = None
    is_bound_known: bool = True
    runs: int = 1  # decode steps that the phase holds

    @property
    def top_bytes(self) -> int | None:
        """What the stage moves as it runs now: the bytes of all rungs and what has to be moved."""
        parts = [self.bottom_bytes, *(rung.bytes_moved for rung in self.rungs)]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def __post_init__(self) -> None:
        left = self.top_ns - self.bottom_ns - sum(rung.time_ns for rung in self.rungs)
        if left:
            raise ValueError(f"the rungs of {self.phase}, {self.stage} are {left} ns short of its time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """All stages. A request runs the stages of a decode step for each token behind the first, and all others once."""

    stages: tuple[StageLadder, ...]
    output_tokens: int = 1
    measured: tuple[str, ...] = ()  # phases that begin at what was measured

    def in_request(self, stage: StageLadder, number: int) -> int:
        """A number of one run of a stage, as often as a request runs it."""
        return number * steps_after_prompt(self.output_tokens) // stage.runs if stage.phase == DECODE else number

    @property
    def top_ns(self) -> int:
        """One request from its first kernel to its last: its rungs and what is below them."""
        return self.bottom_ns + sum(rung.time_ns for rung in self.rungs)

    @property
    def bottom_ns(self) -> int:
        """What no implementation on the device beats, in this order of stages."""
        return sum(self.in_request(stage, stage.bottom_ns) for stage in self.stages)

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Of all stages together, in the order of the ladder."""
        together: dict[str, Rung] = {}
        for stage in self.stages:
            for rung in stage.rungs:
                before = together.get(rung.name, replace(rung, time_ns=0, bytes_moved=0, families=""))
                together[rung.name] = replace(
                    before,
                    time_ns=before.time_ns + self.in_request(stage, rung.time_ns),
                    bytes_moved=None
                    if before.bytes_moved is None or rung.bytes_moved is None
                    else before.bytes_moved + self.in_request(stage, rung.bytes_moved),
                    families=", ".join(dict.fromkeys(filter(None, (before.families, rung.families)))),
                )
        return tuple(sorted(together.values(), key=lambda rung: _ORDER.index(rung.name)))


_ORDER = (
    UNEXPLAINED,
    QUEUE,
    PROMPTS,
    OTHERS,
    HOST,
    *FUSED_RUNGS,
    ENGINE,
    LINKS,
    GAPS,
    BELOW_ROOF,
    TILES,
    IN_TURN,
    BEYOND,
)


def ladder_of(
    setup: Setup, pricer: Pricer, output_tokens: int, measured_s: Mapping[str, float] | None = None
) -> Ladder:
    """The ladder of every stage of a setup. `measured_s`: phases that were measured, where the ladder then begins.

    The pricer has met the measurement: what is left of it has nothing to do with the host.
    """
    runs = {graph.phase: steps_of(graph) for graph in setup.graphs}
    stages = [stage for graph in setup.graphs for stage in _of_phase(setup, graph, pricer)]
    for part in pricer.parts(setup)[len(stages) :]:
        rung = Rung(name=part.name, time_ns=round(seconds_of(part.wall) * _NANO), bytes_moved=None)
        stages.append(_only(part.phase, part.name, rung, runs[part.phase]))
    for phase, seconds in (measured_s or {}).items():
        predicted = sum(stage.top_ns for stage in stages if stage.phase == phase)
        rest = round(seconds * _NANO) - predicted
        if abs(rest) > len(stages):  # what rounding each stage leaves is no difference
            at = next(place for place, stage in enumerate(stages) if stage.phase == phase)
            stages.insert(
                at, _only(phase, "all of it", Rung(name=UNEXPLAINED, time_ns=rest, bytes_moved=None), runs[phase])
            )
    return Ladder(stages=tuple(stages), output_tokens=output_tokens, measured=tuple(measured_s or ()))


def _only(phase: str, name: str, rung: Rung, runs: int) -> StageLadder:
    """A stage of its own for what no stage of the trace takes: other requests, and what a prediction leaves."""
    return StageLadder(
        phase=phase, stage=name, top_ns=rung.time_ns, rungs=(rung,), bottom_ns=0, engine_ns=rung.time_ns, runs=runs
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A stage at one point of the ladder; `name` is what the step down to it is called.

    `bytes_moved` is None where the step moves as much as the one before.
    """

    name: str
    seconds: float
    bytes_moved: int | None = None
    families: str = ""


def _of_phase(setup: Setup, graph: CallGraph, pricer: Pricer) -> Iterator[StageLadder]:
    only = replace(setup, graphs=(graph,))
    source = pricer.source(Execution.FUSED, setup.hardware)
    source.meet(setup.graphs)
    written = {stage.name: stage for stage in pricer.stages(setup) if stage.phase == graph.phase}
    fast = replace(setup, execution=Execution.FUSED, rules=frozenset(), captured=frozenset())
    fused = {stage.name: stage for stage in pricer.stages(fast) if stage.phase == graph.phase}
    upper = {} if setup.is_engine else _pytorch_states(only, graph, pricer)
    for name, stage in written.items():
        top = seconds_of(stage.wall)
        reached = fused.get(name, stage)
        states = [_State(name="", seconds=top, bytes_moved=stage.bytes_moved)]
        if not setup.is_engine:
            engine = _State(name=ENGINE, seconds=seconds_of(reached.wall), bytes_moved=reached.bytes_moved)
            states += [*upper[name], engine]
        bottom = _bottom_s(reached.time, setup.device)
        needed = reached.time.work.must_read_bytes
        states += _engine_states(reached.time, source, setup.device, needed)
        yield StageLadder(
            phase=graph.phase,
            stage=name,
            top_ns=round(top * _NANO),
            rungs=tuple(_rungs(states, seconds_of(reached.wall), bottom)),
            bottom_ns=round(min(bottom, top) * _NANO),
            engine_ns=round(seconds_of(reached.wall) * _NANO),
            bottom_bytes=reached.bytes_moved if needed is None else needed,
            is_bound_known=reached.time.lower_bound_s is not None,
            runs=steps_of(graph),
        )


def _bottom_s(time: StageTime, device: Device) -> float:
    """The bound; where none is known the roofline of all kernels together."""
    return _roof_s(_kernels(time), device) if time.lower_bound_s is None else time.lower_bound_s


def _rungs(states: Sequence[_State], engine_s: float, bottom_s: float) -> Iterator[Rung]:
    """Differences of states, each rounded once: what is left at the end is the bottom.

    No state above the engine's is below it, and none is below the bottom.
    """
    is_above, reached = True, min(bottom_s, states[0].seconds)
    at, moved = states[0].seconds, states[0].bytes_moved or 0
    engine_s = min(engine_s, at)
    for number, state in enumerate(states[1:], 1):
        is_above = is_above and state.name != ENGINE and not _is_below_engine(state.name)
        least = max(reached, engine_s) if is_above else reached
        new = reached if number == len(states) - 1 else min(at, max(least, state.seconds))
        taken = round(at * _NANO) - round(new * _NANO)
        left = moved if state.bytes_moved is None else state.bytes_moved
        if taken or moved != left:
            yield Rung(name=state.name, time_ns=taken, bytes_moved=moved - left, families=state.families)
        at, moved = new, left


def _is_below_engine(name: str) -> bool:
    return _ORDER.index(name) > _ORDER.index(ENGINE)


def _pytorch_states(setup: Setup, graph: CallGraph, pricer: Pricer) -> dict[str, list[_State]]:
    """Per stage: without the host, then with one group of fusions after the other."""
    states: dict[str, list[_State]] = {}
    source = pricer.source_for(setup)
    for time in pricer.times(setup, graph):
        states[time.name] = [_State(name=HOST, seconds=seconds_of(time.device_time))]
    granted = setup.rules
    is_loop = has_looped_experts(graph)
    for name, rules in FUSED_RUNGS.items():
        if name == EXPERTS and not is_loop:
            continue
        rules |= frozenset() if is_loop or Fusion.VECTOR not in rules else {Fusion.EXPERTS}
        if rules <= granted and name != HIDDEN:
            continue
        families = _families_of(graph, fused_run(graph, granted | rules).rules, rules - granted)
        granted |= rules
        for time in pricer.with_rules(graph, source, granted, on_all_pairs=name == SCORES):
            states[time.name].append(
                _State(
                    name=name,
                    seconds=seconds_of(time.device_time),
                    bytes_moved=time.work.bytes_moved,
                    families=families.get(time.name, ""),
                )
            )
    return states


def _families_of(graph: CallGraph, uses: Iterable[RuleUse], rules: frozenset[Fusion]) -> dict[str, str]:
    """Stage -> the modules in which these rules replaced most ops, as people say it: `for 12 layers.[0-11].mlp`."""
    ops, calls = ops_of(graph), calls_of(graph)
    rows: dict[str, dict[str, dict[str, int]]] = {}  # stage -> pattern -> path -> ops
    for use in (use for use in uses if use.rule in rules):
        patterns = rows.setdefault(use.stage, {})
        for row in use.rows:
            call = ops.call[row]
            path = graph.paths[calls.path[call]] if call >= 0 else ""
            counts = patterns.setdefault(path_pattern(path), {})
            counts[path] = counts.get(path, 0) + 1
    return {stage: _families_text(patterns) for stage, patterns in rows.items()}


def _families_text(patterns: dict[str, dict[str, int]]) -> str:
    largest = sorted(patterns.values(), key=lambda paths: -sum(paths.values()))
    named = [
        f"for {len(paths)} {label_of(list(paths), _MOST_RUNS) or '(the model)'}" for paths in largest[:_FAMILIES_SHOWN]
    ]
    more = len(largest) - _FAMILIES_SHOWN
    return ", ".join([*named, *([f"{more} more"] if more > 0 else [])])


def _engine_states(time: StageTime, source: RateSource, device: Device, needed_bytes: int | None) -> Iterator[_State]:
    """From the time of an engine's kernels down to the bound."""
    busy = seconds_of(time.busy_time)
    yield _State(name=LINKS, seconds=busy)
    kernels = _kernels(time)
    has_gaps = isinstance(source, KernelTableRates) and source.is_engine
    gaps = LAUNCH_GAP_S * sum(kernels.values()) if has_gaps else 0.0
    yield _State(name=GAPS, seconds=busy - gaps)
    each = {
        kernel: max(0.0, seconds - (LAUNCH_GAP_S if has_gaps else 0.0)) for kernel, seconds in _seconds(time).items()
    }
    tiled = sum(min(each[kernel], _roof_of(kernel, device, _padding(kernel))) * n for kernel, n in kernels.items())
    yield _State(name=BELOW_ROOF, seconds=tiled)
    plain = sum(min(each[kernel], _roof_of(kernel, device)) * count for kernel, count in kernels.items())
    yield _State(name=TILES, seconds=plain)
    yield _State(name=IN_TURN, seconds=_roof_s(kernels, device))
    yield _State(name=BEYOND, seconds=0.0, bytes_moved=needed_bytes)


def _kernels(time: StageTime) -> dict[Kernel, int]:
    """Those that compute; communication is a rung of its own."""
    kernels: dict[Kernel, int] = {}
    for piece in time.pieces:
        if isinstance(piece.what, Kernel) and piece.what.kind is not KernelKind.COMMUNICATION:
            kernels[piece.what] = kernels.get(piece.what, 0) + piece.count
    return kernels


def _seconds(time: StageTime) -> dict[Kernel, float]:
    return {piece.what: seconds_of(piece.each) for piece in time.pieces if isinstance(piece.what, Kernel)}


def _roof_of(kernel: Kernel, device: Device, padding: float = 1.0) -> float:
    """FLOPs at the peak or bytes at the bandwidth, whichever takes longer."""
    compute = kernel.flops * padding / fastest_peak(kernel.dtype, device) if kernel.flops else 0.0
    return max(compute, (kernel.bytes_moved - kernel.avoidable_bytes) / device.bandwidth_bytes_per_s)


def _padding(kernel: Kernel) -> float:
    """How much more a matmul computes where its rows and columns are filled up to whole tiles."""
    shape = kernel.shape
    if not isinstance(shape, MatmulShape):
        return 1.0
    rows = next((tile for tile in _powers() if tile >= shape.rows), _TILE)
    padded = math.ceil(shape.rows / rows) * rows * math.ceil(shape.columns / _SMALLEST_TILE) * _SMALLEST_TILE
    return padded / (shape.rows * shape.columns)


def _powers() -> Iterable[int]:
    tile = _SMALLEST_TILE
    while tile <= _TILE:
        yield tile
        tile *= 2


def _roof_s(kernels: Mapping[Kernel, int], device: Device) -> float:
    """All kernels at once: FLOPs at the peaks and bytes at the bandwidth, side by side."""
    compute = sum(
        kernel.flops * count / fastest_peak(kernel.dtype, device) for kernel, count in kernels.items() if kernel.flops
    )
    moved = sum((kernel.bytes_moved - kernel.avoidable_bytes) * count for kernel, count in kernels.items())
    return max(compute, moved / device.bandwidth_bytes_per_s)
