"""What begins with a model: trace it, or read a saved trace; what it costs; how that changes with batch and context."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import (
    Cluster,
    Hardware,
    device_of,
    find_hardware,
    hardware_id,
    refuse_small_cluster,
    require_room,
)
from llm_perf_opt.core.module_selection import chosen_stages
from llm_perf_opt.core.number_ranges import POINTS, Given, NumberRange, read_range
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import workload_options
from llm_perf_opt.core.protocols import (
    ModulePicture,
    Tracer,
    as_pictures,
)
from llm_perf_opt.core.workload import Deployment, ModelCode
from llm_perf_opt.models.huggingface.names import NamedModel, find_model
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.origin import Origin, find_origin, taken_plan
from llm_perf_opt.tracing.trace_files import (
    folder_of_rank,
    rank_folders,
    read_phase,
    read_traces,
    require_rank,
    trace_files,
)
from llm_perf_opt.tracing.traced_phases import WEIGHTLESS, drawing_tracer, make_tracer
from llm_perf_opt.tracing.traced_run import media_tokens, trace_origin, trace_ranks

if TYPE_CHECKING:
    import torch

    from llm_perf_opt.api.cost import CostAnswer, Sources
    from llm_perf_opt.api.sweep import SweepAnswer
    from llm_perf_opt.api.trace_function import TraceFunction


log = logging.getLogger(__name__)

_OWN_FILES = {"profiler": (".chrome-trace.json",)}  # tracer -> suffixes of files that it leaves itself, one per phase
_COPIES = "copies_key_heads"  # a keyword of `find_origin`: what engines do where ranks outnumber key heads


class _Formats(TypedDict):
    """How a model is stored, and which experts get its tokens."""

    weights: str | None
    cache: str | None
    routing: str | None


class _Files(TypedDict):
    """Where the call graphs go, and whether with every enter and exit."""

    out: Path | None
    force: bool
    events: bool


class _Seen(TypedDict):
    """The hardware that is analysed, the device that code sees, and whether a folder's own code may run."""

    device: str | None
    torch_device: str | None
    trust_remote_code: bool


class _Running(TypedDict):
    """What a run leaves next to its call graphs, and whether one that stops half-way is kept."""

    pictures: Sequence[ModulePicture]
    extra_suffixes: Sequence[str]
    keep_partial: bool


class _TracerSettings(NamedTuple):
    """Settings of tracers other than the default."""

    load_weights: str | None
    only: str | Sequence[str] | None
    stage: str | Sequence[str] | None
    with_stack: bool
    with_modules: bool
    profile_memory: bool


def trace(
    model: str | Path | torch.nn.Module | Callable[..., object],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tracer: str = WEIGHTLESS,
    load_weights: str | None = None,
    device: str | Hardware | None = None,
    devices_file: Path | None = None,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    torch_device: str | None = None,
    only: str | Sequence[str] | None = None,
    stage: str | Sequence[str] | None = None,
    pictures: Sequence[ModulePicture | str] = (),
    with_stack: bool = False,
    with_modules: bool = False,
    profile_memory: bool = False,
    events: bool = False,
    out: str | Path | None = None,
    force: bool = False,
    keep_partial: bool = False,
    trust_remote_code: bool = False,
    **workload: Any,
) -> Trace:
    """Run a name such as `Qwen/Qwen3-8B`, a Hugging Face folder, or a module or training step called with `args`.

    - `tracer`: `weightless`; or `hooks`, `torchlens`, `profiler`, which run it for real. `code="vllm"`: vLLM's classes.
    - `load_weights`, of a real run: `random` (default), `none`, or a folder.
    - `weights`, `cache`: stored formats, such as `int4-g128` and `fp8`. Default: as the checkpoint says.
    - `routing`, of tokens to experts: `uniform` (default), `balanced`, `one`, `random:SEED`, `replay:FILE`.
    - `device`: hardware to analyse for, such as `8x h100-sxm`. `torch_device`: what the code sees, `cuda` or `cpu`.
    - `only`, `stage`, of `hooks` and `profiler`: the modules to record, as families, classes or paths.
    - `pictures`, of `torchlens`: its own drawings, each `[MODULE=]FILE[:rolled|:unrolled]`.
    - `with_stack`, `with_modules`, `profile_memory`, of `profiler`: the options of torch.profiler.
    - `out`: a folder for the call graphs. `events`: with the enter and exit of every call, in order.
    - `keep_partial`: keep a phase in which the model raises as far as it ran. Default: the error is raised.
    - `tp`, `ep`, `pp`, `fsdp`, `dp`: ranks that share matrices, experts, layers, stored weights, requests.
    - `rank`: which of them; default: one of each kind, the further ones in `others`. `plan`: a file of rules.
    - `workload`: `prompt_tokens`, `decode_steps`, `new_tokens`, `batch`, `dtype`, `attention`, and the model's own.
    """
    files = _Files(out=None if out is None else Path(out), force=force, events=events)
    if inspect.isroutine(model) or isinstance(model, functools.partial):  # a module is called by itself
        workload |= {"tracer": tracer.removeprefix(WEIGHTLESS), "device": device, "weights": weights}
        return _trace_of_step(model, args, kwargs, workload, routing=routing, torch_device=torch_device, **files)
    named = _named(cast("str | Path | torch.nn.Module", model), workload, trust_remote_code)
    machine, torch_device = _seen_hardware(device, devices_file, torch_device, tracer)
    formats = _Formats(weights=weights, cache=cache, routing=routing)
    settings = _TracerSettings(load_weights, only, stage, with_stack, with_modules, profile_memory)
    running, drawn = _able_to_draw(_chosen_tracer(tracer, settings, routing, torch_device, files["out"]), pictures)
    plan = _checked_plan(taken_plan(workload), tracer, machine)
    if _is_of_engine(workload, tracer, args, kwargs):
        return _trace_of_engine(named, machine, plan, workload, trusts=trust_remote_code, **formats, **files)
    seen = _Seen(device=hardware_id(machine), torch_device=torch_device, trust_remote_code=trust_remote_code)
    origin = _with_stages(find_origin(named, args, kwargs, **seen, **formats, **workload), stage)
    if plan.is_spread:
        return Trace.of(trace_ranks(origin, plan, keep_partial=keep_partial, **files))
    how = _Running(pictures=drawn, extra_suffixes=_OWN_FILES.get(tracer, ()), keep_partial=keep_partial)
    return Trace.of(trace_origin(origin, running, **how, **files))


def _chosen_tracer(
    name: str, settings: _TracerSettings, routing: str | None, torch_device: str | None, keep_in: Path | None
) -> Tracer | None:
    """The tracer with its settings; None: the default with none of them, which an earlier run may answer for."""
    if name == WEIGHTLESS and not any(value for value in settings if value != "none"):
        return None
    return make_tracer(name, routing=routing, torch_device=torch_device, keep_in=keep_in, **settings._asdict())


def _able_to_draw(
    running: Tracer | None, pictures: Sequence[ModulePicture | str]
) -> tuple[Tracer | None, tuple[ModulePicture, ...]]:
    """The tracer, and the pictures to draw; a tracer that cannot draw is refused before any work."""
    drawn = as_pictures(pictures)
    if drawn:
        drawing_tracer(running)
    return running, drawn


def _seen_hardware(
    device: str | Hardware | None, devices_file: Path | None, torch_device: str | None, tracer: str
) -> tuple[Hardware | None, str | None]:
    """The hardware that is named, and the torch device that code sees: by default the hardware's."""
    hardware = None if device is None else find_hardware(device, devices_file)
    if hardware is not None and torch_device is None and tracer == WEIGHTLESS:
        torch_device = device_of(hardware).torch_device
    return hardware, torch_device


def _named(
    model: str | Path | torch.nn.Module, workload: Mapping[str, Any], trust_remote_code: bool
) -> NamedModel | torch.nn.Module:
    """The model that is meant; a keyword that nothing takes is refused first."""
    _refuse_unknown(workload)
    return find_model(str(model), trust_remote_code) if isinstance(model, str | Path) else model


def _refuse_unknown(workload: Mapping[str, Any]) -> None:
    """Refuse a keyword that neither `trace` nor any model or plan takes, with the nearest that is taken."""
    own = [name for name in inspect.signature(trace).parameters if name not in ("model", "workload")]
    taken = [*workload_options(), *ParallelPlan.options(), *ModelCode.options(), *own, _COPIES]
    for name in workload:
        if name not in taken:
            near = difflib.get_close_matches(name, taken, n=1)
            raise UsageError(
                f"trace takes no {name!r}.",
                why=f"its keywords are: {', '.join(sorted(taken))}",
                fix=f"did you mean {near[0]}=?" if near else f"leave {name} out",
            )


def _trace_of_step(*asked: Any, **options: Any) -> Trace:
    """A training step of a script's own; the records of a step are loaded for this question alone."""
    from llm_perf_opt.api.traced_step import trace_step

    return trace_step(*asked, **options)


def _trace_of_engine(*asked: Any, **options: Any) -> Trace:
    """The model as an engine's own code runs it; its processes are loaded for this question alone."""
    from llm_perf_opt.serving.engine_code import trace_engine_code

    return Trace.of(trace_engine_code(*asked, **options))


def _is_of_engine(
    workload: MutableMapping[str, Any], tracer: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> bool:
    """Whether the keywords name the code of an engine, which they are left without; it takes no arguments."""
    if ModelCode.make(code=workload.pop("code", ModelCode().code)).code == ModelCode().code:
        return False
    if tracer != WEIGHTLESS or args or kwargs:
        raise UsageError(
            "An engine's code runs only without weights, on a model folder.",
            why="its kernels are not here, and it makes its inputs from the workload",
            fix="leave --tracer, args and kwargs out",
        )
    if workload.get("autocast") is not None:
        raise UsageError(
            "An engine's code does not run under autocast.",
            why="it computes in the type of its weights",
            fix="leave autocast out, or trace the model's own code",
        )
    workload.pop(_COPIES, None)  # its own code does
    return True


def _checked_plan(plan: ParallelPlan, tracer: str, hardware: Hardware | None) -> ParallelPlan:
    """The plan; refused if the tracer cannot run it, or if the hardware has too few devices for it."""
    if plan.is_spread and tracer != WEIGHTLESS:
        raise UsageError(
            f"The tracer {tracer!r} cannot run a rank of a plan.",
            why="it runs the model for real, in this one process",
            fix="leave --tracer out, or the plan",
        )
    if isinstance(hardware, Cluster):
        refuse_small_cluster(plan, hardware)
    return plan


def _with_stages(origin: Origin, stage: str | Sequence[str] | None) -> Origin:
    """The origin; the name of a stage that no phase has is refused."""
    if stage is not None:
        targets = origin.targets()
        chosen_stages(
            stage, (name for target in targets for name in (*(part.name for part in target.stages), target.phase))
        )
    return origin


def load(path: str | Path | Sequence[str | Path], *, weights: str | None = None, cache: str | None = None) -> Trace:
    """A saved trace: a call-graph file, a folder that holds one per phase, or several of these. Needs no torch.

    `weights` and `cache` store it in other formats than it was made with.
    """
    paths = [Path(path)] if isinstance(path, (str, Path)) else [Path(file) for file in path]
    if len(paths) == 1 and (folders := rank_folders(paths[0])):
        first, *others = (load(folder, weights=weights, cache=cache) for folder in folders)
        return replace(first, name=str(paths[0]), others=tuple(others))
    graphs = redeployed(read_traces(paths), Deployment.make(weights=weights, cache=cache))
    return Trace(name=", ".join(map(str, paths)), graphs=graphs, files=tuple(trace_files(paths)))


def load_phase(
    path: str | Path,
    phase: str | None = None,
    *,
    rank: int | None = None,
    weights: str | None = None,
    cache: str | None = None,
    with_others: bool = False,
) -> Trace:
    """One phase of a saved trace. Default: the prefill, or the first there is. Its file alone is read.

    With `with_others` the trace holds the other phases of the run too, in their order.

    Of a folder with several ranks it is that `rank`; default: the first.

    A run names its files after their phases; a file alone says its phase itself. A cache is found in the decode, so for
    another format of it all phases are read.
    """
    path, deployment = folder_of_rank(Path(path), rank), Deployment.make(weights=weights, cache=cache)
    graph = read_phase(path, phase)
    require_rank(graph, rank)
    graphs = (graph,) if cache is None and not with_others else read_traces([path])
    stored = redeployed(graphs, deployment)
    chosen = tuple(other for other in stored if with_others or other.phase == graph.phase)
    return Trace(name=str(path), graphs=chosen)


def load_function(path: str | Path) -> TraceFunction[Trace]:
    """A saved function. Needs no torch. It refuses points outside its cells, since there is no model to trace."""
    from llm_perf_opt.api.trace_function import TraceFunction
    from llm_perf_opt.sweeps.function_files import read_run_function

    return TraceFunction.of(read_run_function(path, Trace))


def cost(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    sources: Sources = "all",
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    torch_device: str | None = None,
    trust_remote_code: bool = False,
    code: str = "reference",
    **workload: Any,
) -> CostAnswer:
    """What a model costs from every source, or from the named ones. The options are as in `lpo.trace`.

    The same as `lpo.trace(...).cost(sources)`, but nothing is traced where `counted` is not among the sources. A phase
    in which the model raises is unknown, and the others are counted.
    """
    from llm_perf_opt.api.cost import check_sources, cost_of

    check_sources(sources)
    if code != "reference":
        formats = _Formats(weights=weights, cache=cache, routing=routing)
        traced = trace(model, args, kwargs, code=code, trust_remote_code=trust_remote_code, **formats, **workload)
        return traced.cost(None if sources == "all" else sources)
    origin = find_origin(
        model,
        args,
        kwargs,
        weights=weights,
        cache=cache,
        routing=routing,
        torch_device=torch_device,
        trust_remote_code=trust_remote_code,
        **workload,
    )
    return cost_of(origin, sources)


def sweep(
    model: str | Path,
    *,
    users: Given | None = None,
    input: Given | None = None,
    points: int = POINTS,
    gpus: str | Hardware | Sequence[str | Hardware] | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.FUSED,
    traces: int | None = None,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    trust_remote_code: bool = False,
    **workload: Any,
) -> SweepAnswer:
    """How cost, memory and time change with the number of users and the length of their prompts, exact at every point.

    - `model`: as in `lpo.trace`; or a function that was saved, which needs neither torch nor the model.
    - `users`: sequences that run together. `input`: tokens that a prefill computes and a decode step finds in the
      cache, image tokens included. A range `"1..512"` or `(1, 512)`, a list `"1,8,64"` or `[1, 8, 64]`, or one number.
      In a text k is 1,024. Of a range at most `points` are shown. Default: 1..64 and 1k..8k, or all of a function.
    - `gpus`: for times and for what fits: one, `l4,h100-sxm`, a list, or `all`. Default: no times.
    - `execution`: `fused`, an engine's kernels, or `eager`, PyTorch op by op.
    - `traces`: at most this many for each phase. Default: 40.
    - `weights`, `cache`, `routing` and the rest of the workload are as in `lpo.trace`.
    """
    from llm_perf_opt.api.sweep import DEFAULT_INPUT, DEFAULT_USERS, find_gpus, refuse_rows
    from llm_perf_opt.sweeps.sweep_report import range_text

    machines = find_gpus(gpus, devices_file)
    formats = _Formats(weights=weights, cache=cache, routing=routing)
    if Path(model).is_file():
        given = {**formats, "traces": traces}
        _refuse_with_function({**workload, **{name: value for name, value in given.items() if value is not None}})
        saved = load_function(model)
        return saved.sweep(batch=users, context=input, points=points, gpus=machines or None, execution=execution)
    batches = read_range(DEFAULT_USERS if users is None else users, "users", points=points)
    contexts = read_range(DEFAULT_INPUT if input is None else input, "input", points=points)
    refuse_rows(batches, contexts)
    _refuse_workload(workload)
    traced = trace(
        model,
        device=machines[0] if len(machines) == 1 else None,
        torch_device=device_of(machines[0]).torch_device if machines else None,
        trust_remote_code=trust_remote_code,
        batch=batches.low,
        **formats,
        **workload,
    )
    for hardware in machines:
        require_room(traced.graphs, hardware)
    _refuse_short(traced.graphs[0], contexts)
    log.info(
        "Building a function of batch %s and context %s: tracing small points, and a few more to check it",
        range_text(batches),
        range_text(contexts),
    )
    function = traced.over(batch=batches.ends, context=contexts.ends, traces=traces)
    return function.sweep(batch=batches, context=contexts, points=points, gpus=machines or None, execution=execution)


def _refuse_with_function(given: Mapping[str, Any]) -> None:
    for name in given:
        raise UsageError(
            f"A saved function takes no {name}.",
            why="its workload and its formats are fixed since it was made",
            fix=f"leave {name} out, or name the model",
        )


def _refuse_workload(workload: Mapping[str, Any]) -> None:
    if "prompt_tokens" in workload:
        raise UsageError(
            "A sweep takes no prompt_tokens.", why="its input is the prompt and the image tokens", fix="give input"
        )
    if workload.get("decode_steps", 1) > 1:
        raise UsageError(
            "A sweep takes an output of at most one token.",
            why="each point is a prefill and one decode step after it",
            fix="leave --output (decode_steps) out; a later step is a point with a longer input",
        )


def _refuse_short(graph: CallGraph, contexts: NumberRange) -> None:
    """An input that the images alone exceed."""
    media = media_tokens(graph)
    if contexts.low < media:
        raise UsageError(
            f"An input of {contexts.low:,} tokens is too short.",
            why=f"images and sound take {media:,} of it",
            fix=f"begin at {media + 1:,} or more",
        )
