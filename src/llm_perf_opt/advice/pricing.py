"""The price of a setup: every stage by the timer that `trace --device` and `serve` ask, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.advice.load import Load, steady_state
from llm_perf_opt.advice.pytorch_experts import in_place_of_engines
from llm_perf_opt.advice.setup import Setup, has_looped_experts
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Hardware
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.workload import steps_after_prompt
from llm_perf_opt.ops.kernel_shape import AttentionShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.serving.capacity.steady_state import SteadyState
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.fusions import Fusion
from llm_perf_opt.timing.kernel_rates import KernelTableRates
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S
from llm_perf_opt.timing.predict import StageTime, predict, stage_time
from llm_perf_opt.timing.rank_bound import least_collectives
from llm_perf_opt.timing.rate_sources import DEFAULT_KERNEL_ENGINE, source_of
from llm_perf_opt.timing.rates import Band, RateSource
from llm_perf_opt.timing.stage_work import StageWork, stage_works
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.request_time import first_token_shares
from llm_perf_opt.timing.step.step_rates import Decoder, StepRates
from llm_perf_opt.timing.step.step_tables import step_table

QUEUE = "queueing, and the front end"
PROMPTS = "prefills of others between its tokens"
OTHERS = "other sequences in its decode steps"
_HALVINGS = 60  # of a range, down to the last digit


def seconds_of(band: Band) -> float:
    """What is expected; of a source that gives ends alone, their geometric middle."""
    return band.middle if band.expected is None else band.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPart:
    """A part of a request's time; `shared_by` times as many sequences as were traced run it together."""

    phase: str
    name: str
    wall: Band
    shared_by: int = 1

    @property
    def each(self) -> Band:
        """What it takes for as many sequences as were traced."""
        return self.wall.times(1 / self.shared_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStage(PricedPart):
    """One stage of a setup."""

    bytes_moved: int
    kernel_launches: int
    time: StageTime


@dataclass(slots=True)
class Pricer:
    """One rate source per execution and hardware, and every price that was asked for once.

    `rates` and `engine` are as in `predict`.
    """

    rates: str | None = None
    engine: str | None = None
    _host_factors: dict[str, float] = field(default_factory=dict)  # phase -> measured over expected time of a launch
    _sources: dict[tuple[Execution, str], RateSource] = field(default_factory=dict)
    _times: dict[tuple[object, ...], tuple[CallGraph, tuple[StageTime, ...]]] = field(default_factory=dict)
    _prices: dict[tuple[object, ...], tuple[Setup, tuple[PricedStage, ...]]] = field(default_factory=dict)
    _states: dict[tuple[object, ...], tuple[Setup, SteadyState | None]] = field(default_factory=dict)

    def source(self, execution: Execution, hardware: Hardware) -> RateSource:
        """The source of rates that `trace --device` has."""
        key = (execution, repr(hardware))
        if key not in self._sources:
            engine = self.engine if execution is Execution.FUSED else None
            self._sources[key] = source_of(hardware, execution, self.rates, engine)
        return self._sources[key]

    def meet(self, setup: Setup, measured_s: Mapping[str, float]) -> None:
        """Learn from phases in PyTorch what a kernel launch costs on their host, if they wait for it.

        Hosts differ by a factor of two, while the time of the device is known. What no plausible host explains is left.
        """
        for graph in (graph for graph in setup.graphs if graph.phase in measured_s and not setup.is_engine):
            times = self.times(setup, graph)
            self._host_factors[graph.phase] = _host_factor(times, measured_s[graph.phase])

    def _wall(self, graph: CallGraph, time: StageTime) -> Band:
        factor = self._host_factors.get(graph.phase, 1.0)
        return time.wall if factor == 1.0 else time.device_time.slower(time.host_time.times(factor))

    def source_for(self, setup: Setup) -> RateSource:
        """With the decoder of the setup's run, where an engine's step is known as a whole."""
        source = self.source(setup.execution, setup.hardware)
        source.meet(setup.graphs)
        return source

    def stages(self, setup: Setup) -> tuple[PricedStage, ...]:
        """Every stage of every phase, in order."""
        key = _key(setup)
        if key not in self._prices:
            stages = tuple(stage for graph in setup.graphs for stage in self._phase(setup, graph))
            self._prices[key] = setup, stages  # the setup too, so that the identity of its graphs stays theirs
        return self._prices[key][1]

    def parts(self, setup: Setup) -> tuple[PricedPart, ...]:
        """Every stage, and what other requests add: before the first token, between tokens, and in decode steps."""
        stages, state, decode = self.stages(setup), self.state(setup), setup.decode
        if state is None or decode is None:
            return stages
        first = sum(seconds_of(stage.wall) for stage in stages if stage.phase != DECODE)
        step = sum(seconds_of(stage.wall) for stage in stages if stage.phase == DECODE)
        prefill = next(graph.phase for graph in setup.graphs if graph is not decode)
        prompts = state.token_s - state.plain_s  # a single user meets none
        shared = state.plain_s - step / steps_of(decode)
        added = ((prefill, QUEUE, state.first_token_s - first), (DECODE, PROMPTS, prompts), (DECODE, OTHERS, shared))
        runs = {DECODE: steps_of(decode)}
        waits = [
            PricedPart(phase=phase, name=name, wall=Band(seconds, seconds, seconds).times(runs.get(phase, 1)))
            for phase, name, seconds in added
        ]
        return (*stages, *waits)

    def state(self, setup: Setup) -> SteadyState | None:
        """One replica in the steady state of the setup's load; None: it has none, or the replica cannot answer it."""
        if setup.load is None:
            return None
        key = (*_key(setup), setup.load, setup.replicas)
        if key not in self._states:
            self._states[key] = setup, self._state(setup, setup.load.shared_by(setup.replicas))
        return self._states[key][1]

    def _state(self, setup: Setup, load: Load) -> SteadyState | None:
        decode, stages = setup.decode, self.stages(setup)
        known = (
            None
            if decode is None
            else [found for time in self.times(setup, decode) if (found := self._forwards(setup, decode, time))]
        )
        if not known or known[0][0].plan.pp > 1:
            raise UsageError(
                "Other requests cannot be told for this run.",
                why="a step of an engine that decodes and reads prompts is not known as a whole for it",
                fix="leave --rate and --users out; for a fixed batch advise on its trace: trace MODEL --users 8",
            )
        source = self.source(Execution.FUSED, setup.hardware)
        assert isinstance(source, StepRates)
        return steady_state(
            load,
            setup.graphs,
            setup.device,
            self._resized(known[0][0], source, setup),
            encoders_s=sum(seconds_of(stage.wall) for stage in stages if stage.name != stage.phase != DECODE),
            client=first_token_shares(self.engine or DEFAULT_KERNEL_ENGINE, has_drawn_lengths=False),
        )

    def _resized(self, decoder: Decoder, source: StepRates, setup: Setup) -> Decoder:
        """The decoder over the ranks of the setup."""
        plan = replace(decoder.plan, tp=setup.tp) if setup.tp > 1 else decoder.plan
        return Decoder(blocks=decoder.blocks, plan=plan, table=step_table(decoder.blocks, EngineTimer(source), plan))

    def _phase(self, setup: Setup, graph: CallGraph) -> Iterable[PricedStage]:
        times = self.times(setup, graph)
        if setup.batch_factor > 1 or setup.tp > 1:
            return [self._another_step(setup, graph, time) for time in times]
        is_captured = not setup.is_engine and graph.phase in setup.captured
        if setup.is_engine:
            return [_priced(graph.phase, time, time.wall) for time in times]
        walls = [(time, self._wall(graph, time)) for time in times]
        stages = [_priced(graph.phase, time, _replayed(time, wall) if is_captured else wall) for time, wall in walls]
        if not (setup.rules or setup.captured):
            return stages
        return self._no_faster_than_engines(setup, graph, stages)

    def _no_faster_than_engines(
        self, setup: Setup, graph: CallGraph, stages: Sequence[PricedStage]
    ) -> Iterator[PricedStage]:
        """Changed code, where two estimates disagree: with every change it is an engine's, and no faster than that."""
        plain = replace(setup, rules=frozenset(), captured=frozenset())
        written, fused = (
            {stage.name: stage.wall for stage in self._phase(one, graph)}
            for one in (plain, replace(plain, execution=Execution.FUSED))
        )
        for stage in stages:
            ends = [found[stage.name] for found in (written, fused) if stage.name in found]
            end = min(ends, key=seconds_of, default=stage.wall)
            yield replace(stage, wall=end) if seconds_of(stage.wall) < seconds_of(end) else stage

    def times(self, setup: Setup, graph: CallGraph) -> tuple[StageTime, ...]:
        """One phase: as `predict` has it, but for the rules that the code was given."""
        hardware = setup.hardware if setup.tp == 0 else setup.device
        key = (id(graph), setup.execution, setup.rules, repr(hardware))
        if key not in self._times:
            source = self.source_for(replace(setup, hardware=hardware))
            is_plain = setup.is_engine or not setup.rules
            self._times[key] = (
                graph,
                predict(graph, source) if is_plain else self.with_rules(graph, source, setup.rules, as_code=True),
            )
        return self._times[key][1]

    def with_rules(
        self,
        graph: CallGraph,
        source: RateSource,
        rules: frozenset[Fusion],
        *,
        as_code: bool = False,
        on_all_pairs: bool = False,
    ) -> tuple[StageTime, ...]:
        """A phase with some of an engine's fusions, each of its kernels timed as PyTorch would launch it.

        `as_code`: with the kernels that PyTorch has for them, which for experts are more than an engine's.
        `on_all_pairs`: fused attention multiplies the pairs too that its mask hides.
        """
        works = stage_works(graph)
        fused = code_kernels(graph, rules) if as_code else fused_kernels(graph, rules=rules)
        kernels = {stage: _needed(counts, on_all_pairs=on_all_pairs) for stage, counts in fused.items()}
        if isinstance(source, KernelTableRates):
            source.learn(kernel for counts in kernels.values() for kernel in counts)
        least = {} if source.cluster is None else least_collectives(graph)
        return tuple(
            stage_time(_with_kernels(work, kernels[work.name]), tuple(kernels[work.name].items()), source,
                       least.get(work.name))
            for work in works
            if kernels[work.name]
        )  # fmt: skip

    def _another_step(self, setup: Setup, graph: CallGraph, time: StageTime) -> PricedStage:
        """A stage of an engine with a larger batch or on more devices; one that is no step of a decoder stays."""
        found = self._forwards(setup, graph, time)
        if found is None:
            return _priced(graph.phase, time, time.wall)
        decoder, forwards = found
        source = self.source(Execution.FUSED, setup.hardware)
        assert isinstance(source, StepRates) and time.wall.expected
        factor = setup.batch_factor if graph.phase == DECODE else 1
        larger = [replace(forward, sequences=forward.sequences * factor) for forward in forwards]
        seconds = source.step(self._resized(decoder, source, setup), larger).expected_s
        assert seconds is not None, "a step is known as a whole"
        wall = time.wall.times(seconds / time.wall.expected)
        return replace(_priced(graph.phase, time, wall), shared_by=factor)

    def _forwards(self, setup: Setup, graph: CallGraph, time: StageTime) -> tuple[Decoder, tuple[Forward, ...]] | None:
        """The decoder of a stage and what it runs; None: the stage is no step of an engine that is known as a whole."""
        source = self.source_for(replace(setup, hardware=setup.hardware if setup.tp == 0 else setup.device))
        if not isinstance(source, StepRates) or not time.is_step:
            return None
        return source.forwards_of(graph, stage_works(graph))

    def can_resize(self, setup: Setup) -> bool:
        """Whether an engine's decode step of the setup is known for other batches and plans."""
        decode = setup.decode
        if decode is None or not setup.is_engine:
            return False
        return any(self._forwards(setup, decode, time) is not None for time in self.times(setup, decode))


def _key(setup: Setup) -> tuple[object, ...]:
    """All that the price of its stages depends on."""
    return (
        tuple(map(id, setup.graphs)),
        repr(setup.hardware),
        *(setup.execution, setup.rules, setup.captured, setup.batch_factor, setup.tp),
    )


def _host_factor(times: Sequence[StageTime], measured_s: float) -> float:
    """By how much the host of all stages is slower than expected, where that makes their time the measured one."""
    pairs = [(seconds_of(time.device_time), time.host_time) for time in times]

    def whole(factor: float) -> float:
        return sum(max(device, factor * seconds_of(host)) for device, host in pairs)

    low = min((host.low / seconds_of(host) for _, host in pairs if seconds_of(host)), default=1.0)
    high = max((host.high / seconds_of(host) for _, host in pairs if seconds_of(host)), default=1.0)
    if not whole(low) < measured_s < whole(high):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if whole(middle) < measured_s else (low, middle)
    return high


def _replayed(time: StageTime, wall: Band) -> Band:
    """A captured graph: no host, and a short rest of the device before each kernel; never slower than the code."""
    rest = LAUNCH_GAP_S * sum(piece.count for piece in time.pieces if isinstance(piece.what, Kernel))
    replayed = time.device_time + Band(rest, rest, rest)
    return min(replayed, wall, key=seconds_of)


def code_kernels(graph: CallGraph, rules: frozenset[Fusion]) -> dict[str, Counter[Kernel]]:
    """Stage -> the kernels of code in PyTorch that was given these rules."""
    kernels = fused_kernels(graph, rules=rules)
    if Fusion.EXPERTS not in rules or not has_looped_experts(graph):
        return kernels
    return in_place_of_engines(graph, kernels, is_compiled=Fusion.VECTOR in rules)


def _priced(phase: str, time: StageTime, wall: Band) -> PricedStage:
    kernels = [(piece.what, piece.count) for piece in time.pieces if isinstance(piece.what, Kernel)]
    return PricedStage(
        phase=phase,
        name=time.name,
        wall=wall,
        bytes_moved=sum((kernel.bytes_moved - kernel.avoidable_bytes) * count for kernel, count in kernels),
        kernel_launches=sum(count for _, count in kernels),
        time=time,
    )


def _needed(kernels: Mapping[Kernel, int], *, on_all_pairs: bool) -> Counter[Kernel]:
    """Kernels with the bytes that are left to move: what a fused kernel keeps inside is not moved."""
    needed: Counter[Kernel] = Counter()
    for kernel, count in kernels.items():
        moved = replace(kernel, bytes_moved=kernel.bytes_moved - kernel.avoidable_bytes, avoidable_bytes=0)
        needed[_with_all_pairs(moved) if on_all_pairs else moved] += count
    return needed


def _with_all_pairs(kernel: Kernel) -> Kernel:
    """An attention that takes its mask as a tensor, and so multiplies every pair of query and key."""
    shape = kernel.shape
    if kernel.kind is not KernelKind.ATTENTION or not isinstance(shape, AttentionShape) or not shape.is_causal:
        return kernel
    pairs = shape.sequences * shape.heads * shape.queries * shape.keys
    flops = max(kernel.flops, 2 * pairs * (shape.width + shape.value_width))
    return replace(kernel, flops=flops, shape=replace(shape, is_causal=False, window=None))


def _with_kernels(work: StageWork, kernels: Mapping[Kernel, int]) -> StageWork:
    return replace(
        work,
        kernels=kernels,
        launches=sum(kernels.values()),
        flops=sum(kernel.flops * count for kernel, count in kernels.items()),
        bytes_moved=sum(kernel.bytes_moved * count for kernel, count in kernels.items()),
    )


def request_band(stages: Sequence[PricedPart], graphs: Sequence[CallGraph], output_tokens: int) -> Band:
    """Everything before decoding once, and a decode step for each token behind the first: low, expected and high."""
    decoded = steps_after_prompt(output_tokens)
    steps = {graph.phase: steps_of(graph) for graph in graphs}
    bands = [stage.each.times(decoded / steps[DECODE] if stage.phase == DECODE else 1) for stage in stages]
    return Band(
        sum(band.low for band in bands), sum(band.high for band in bands), sum(seconds_of(band) for band in bands)
    )


def steps_of(graph: CallGraph) -> int:
    """How many decode steps a phase holds."""
    steps = graph.runtime.get("decode_steps")
    return steps if isinstance(steps, int) and steps > 0 and graph.phase == DECODE else 1
