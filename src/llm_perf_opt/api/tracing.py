"""From a model, a module or saved files to a trace: `lpo.trace(...)` and `lpo.load(...)`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.deployed_traces import redeployed
from llm_perf_opt.api.engine_code import trace_engine_code
from llm_perf_opt.api.hardware import Hardware, device_of, find_hardware, hardware_id, refuse_small_cluster
from llm_perf_opt.api.origin import Origin
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.api.trace_files import (
    folder_of_rank,
    rank_folder,
    rank_folders,
    read_phase,
    read_traces,
    require_rank,
    trace_files,
)
from llm_perf_opt.api.traced_phases import (
    WEIGHTLESS,
    draw_modules,
    drawing_tracer,
    make_tracer,
    reserve_folder,
    trace_targets,
    write_graphs,
)
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.module_pictures import ModulePicture, as_pictures
from llm_perf_opt.core.module_selection import chosen_stages
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import FOLDERS, MODELS, make_workload, workload_options
from llm_perf_opt.core.protocols import (
    CopiesKeyHeads,
    KnowsKindsOfRank,
    ModelAdapter,
    RunsForReal,
    SpreadsOverRanks,
    Tracer,
)
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.work_limits import refuse_workload
from llm_perf_opt.core.workload import Deployment, ModelCode
from llm_perf_opt.models.huggingface.names import NamedModel, find_model

if TYPE_CHECKING:
    import torch


_BESIDE = {"profiler": (".chrome-trace.json",)}  # tracer -> suffixes of files that it leaves itself, one per phase
_COPIES = "copies_key_heads"  # a keyword of `find_origin`: what engines do where ranks outnumber key heads


def trace(
    model: str | Path | torch.nn.Module,
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
    """Run a model: a name such as `Qwen/Qwen3-8B`, a Hugging Face folder, or a module called with `args` and `kwargs`.

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
    - `workload`: `prompt_tokens`, `decode_steps`, `new_tokens`, `batch`, `dtype`, `attention`, and those of the model.
    """
    named = _named(model, workload, trust_remote_code)
    hardware, torch_device = _seen_hardware(device, devices_file, torch_device, tracer)
    folder, wanted = None if out is None else Path(out), as_pictures(pictures)
    seen: dict[str, Any] = {"routing": routing, "torch_device": torch_device}
    chosen: dict[str, Any] = {"load_weights": load_weights, "only": only, "stage": stage}
    chosen |= {"with_stack": with_stack, "with_modules": with_modules, "profile_memory": profile_memory}
    running = _able_to_draw(make_tracer(tracer, **seen, **chosen, keep_in=folder), wanted)
    plan = _checked_plan(_taken_plan(workload), tracer, hardware)
    if _is_of_engine(workload, tracer, args, kwargs):
        asked: dict[str, Any] = {"weights": weights, "cache": cache, "routing": routing, "trusts": trust_remote_code}
        return trace_engine_code(named, hardware, plan, workload, out=folder, force=force, events=events, **asked)
    found: dict[str, Any] = {**seen, "trust_remote_code": trust_remote_code, **workload}
    origin = find_origin(named, args, kwargs, device=hardware_id(hardware), weights=weights, cache=cache, **found)
    _require_stages(origin, stage)
    kept: dict[str, Any] = {"force": force, "keep_partial": keep_partial, "events": events}
    if plan.is_spread:
        return trace_ranks(origin, plan, folder, **kept)
    return trace_origin(origin, running, pictures=wanted, beside=_BESIDE.get(tracer, ()), out=folder, **kept)


def _able_to_draw(running: Tracer, wanted: Sequence[ModulePicture]) -> Tracer:
    """The tracer; one that cannot draw what is wanted is refused before any work."""
    if wanted:
        drawing_tracer(running)
    return running


def _seen_hardware(
    device: str | Hardware | None, devices_file: Path | None, torch_device: str | None, tracer: str
) -> tuple[Hardware | None, str | None]:
    """The hardware that is named, and the torch device that code sees: by default that of the hardware."""
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


def _is_of_engine(workload: dict[str, Any], tracer: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Whether the keywords name the code of an engine, which they are left without; it takes no arguments."""
    if ModelCode.make(code=workload.pop("code", ModelCode().code)).code == ModelCode().code:
        return False
    if tracer != WEIGHTLESS or args or kwargs:
        raise UsageError(
            "The code of an engine runs without weights, on a folder.",
            why="it has no kernels here, and makes its inputs from the workload",
            fix="leave --tracer, args and kwargs out",
        )
    workload.pop(_COPIES, None)  # its own code does
    return True


def _checked_plan(plan: ParallelPlan, tracer: str, hardware: Hardware | None) -> ParallelPlan:
    """The plan; refused if the tracer cannot run it, or if the hardware has too few devices for it."""
    if plan.is_spread and tracer != WEIGHTLESS:
        raise UsageError(
            f"The tracer {tracer!r} runs no rank of a plan.",
            why="it runs the model for real, in this one process",
            fix="leave --tracer out, or the plan",
        )
    if isinstance(hardware, Cluster):
        refuse_small_cluster(plan, hardware)
    return plan


def _taken_plan(workload: dict[str, Any]) -> ParallelPlan:
    """The parallel plan among the keywords of a workload, which are left without it."""
    given = {name: workload.pop(name) for name in ParallelPlan.options() if name in workload}
    if isinstance(given.get("plan"), Path):
        given["plan"] = str(given["plan"])
    return ParallelPlan.make(**given)


def trace_ranks(origin: Origin, plan: ParallelPlan, out: Path | None = None, **kept: Any) -> Trace:
    """One rank of each kind of a plan, the first of them with the others; several lie in folders of their own."""
    adapter = origin.adapter
    ranks = (
        adapter.kinds_of_rank(plan, origin.workload) if isinstance(adapter, KnowsKindsOfRank) else plan.kinds_of_rank()
    )
    traces = [
        trace_origin(on_rank(origin, plan.of_rank(rank)), out=rank_folder(out, rank, ranks), **kept) for rank in ranks
    ]
    return replace(traces[0], others=tuple(traces[1:]))


def on_rank(origin: Origin, plan: ParallelPlan) -> Origin:
    """The same model and workload as one rank of a plan runs them."""
    if not isinstance(origin.adapter, SpreadsOverRanks):
        raise UsageError(
            f"{origin.name} cannot be spread over ranks.",
            why="nothing says which of its modules could be shared between ranks",
            fix="leave tp, ep, pp and fsdp out, or trace a Hugging Face folder",
        )
    return replace(origin, adapter=origin.adapter.on_rank(plan), plan=plan)


def _require_stages(origin: Origin, stage: str | Sequence[str] | None) -> None:
    """Refuse the name of a stage that no phase has."""
    if stage is not None:
        targets = origin.targets()
        chosen_stages(stage, (name for one in targets for name in (*(part.name for part in one.stages), one.phase)))


def trace_origin(
    origin: Origin,
    tracer: Tracer | None = None,
    *,
    pictures: Sequence[ModulePicture] = (),
    beside: Sequence[str] = (),
    out: Path | None = None,
    force: bool = False,
    keep_partial: bool = False,
    events: bool = False,
) -> Trace:
    """Trace a model and workload that were found before. Default: without weights, and nothing is written.

    `beside` are the suffixes of files that the tracer itself leaves in `out`, one per phase.
    """
    running = tracer or make_tracer(routing=origin.routing, torch_device=origin.torch_device)
    targets = _targets(origin, running)
    phases = [target.phase for target in targets]
    if pictures:
        for picture in pictures:
            free_file(picture.file, force=force)
        drawing_tracer(running).require_drawable(origin.targets()[0], pictures)
    if out is not None:
        reserve_folder(out, phases, [out / f"{phase}{suffix}" for phase in phases for suffix in beside], force=force)
    traced = trace_targets(
        running,
        origin.adapter,
        targets,
        origin.deployment,
        out=out,
        force=force,
        keep_partial=keep_partial,
        events=events,
    )
    files = () if out is None else write_graphs(traced.graphs, out, force=force)
    if pictures:
        draw_modules(drawing_tracer(running), targets, traced.graphs, pictures)
    return Trace(name=origin.name, graphs=traced.graphs, origin=origin, failures=traced.failures, files=files)


def _targets(origin: Origin, tracer: Tracer) -> tuple[Target, ...]:
    """The phases. A module that was built elsewhere runs for real with its own weights, and without them on a twin."""
    adapter = origin.adapter
    if origin.is_module and "weights" in tracer.takes and isinstance(adapter, RunsForReal):
        return adapter.real_run(origin.workload, None).targets
    return origin.targets()


def load(path: str | Path | Sequence[str | Path], *, weights: str | None = None, cache: str | None = None) -> Trace:
    """A saved trace: a call-graph file, a folder that holds one per phase, or several of these. Needs no torch.

    `weights` and `cache` store it in other formats than it was made with.
    """
    paths = [Path(path)] if isinstance(path, (str, Path)) else [Path(one) for one in path]
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
    chosen = tuple(found for found in stored if with_others or found.phase == graph.phase)
    return Trace(name=str(path), graphs=chosen)


def find_origin(
    model: str | Path | NamedModel | torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    torch_device: str | None = None,
    trust_remote_code: bool = False,
    copies_key_heads: bool = False,
    **workload: Any,
) -> Origin:
    """The model and its workload, checked before anything runs; the parameters are those of `trace`.

    Of a plan it is the rank that was asked for, by default the first. With `copies_key_heads` a model whose ranks
    outnumber its key heads is spread as engines do; otherwise its own code refuses that.
    """
    named = find_model(str(model), trust_remote_code) if isinstance(model, (str, Path)) else model
    adapter = module_adapter(named, args, kwargs) or find_adapter(named, trust_remote_code)
    if copies_key_heads and isinstance(adapter, CopiesKeyHeads):
        adapter = adapter.copying_key_heads()
    is_module = not isinstance(named, NamedModel)
    plan = _taken_plan(workload)
    asked = make_workload(adapter, **workload)
    refuse_workload(
        batch=asked.batch,
        tokens=asked.prompt_tokens or 0,
        decode_steps=asked.decode_steps,
        new_tokens=asked.new_tokens,
    )
    origin = Origin(
        name=adapter.title if is_module else str(named),
        adapter=adapter,
        workload=asked,
        deployment=Deployment.make(device=device, weights=weights, cache=cache),
        routing=routing,
        torch_device=torch_device,
        is_module=is_module,
    )
    return on_rank(origin, plan.of_rank(plan.kinds_of_rank()[0])) if plan.is_spread else origin


def find_adapter(model: object, trust_remote_code: bool = False) -> ModelAdapter:
    """The adapter of a registered name, of a folder, or of any other name: `models/huggingface/names.py`."""
    named = model if isinstance(model, NamedModel) else find_model(str(model), trust_remote_code)
    if named.registered is not None:
        return MODELS.get(named.registered)()
    assert named.folder is not None, "a name is a registered one or has a folder"
    shown = named.name if named.source else None
    return FOLDERS.get("huggingface")(named.folder, trust_remote_code, name=shown, source=named.source)


def module_adapter(
    model: str | Path | NamedModel | torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> ModelAdapter | None:
    """The adapter of a module that is called with these arguments; None for a name or a folder, which takes none."""
    if not isinstance(model, (str, Path, NamedModel)):
        from llm_perf_opt.models.single_module import SingleModuleAdapter

        return SingleModuleAdapter(model, args, kwargs)
    if args or kwargs:
        raise UsageError(
            "args and kwargs are for a module.",
            why=f"{str(model)!r} makes its own inputs from the workload",
            fix="leave them out, and give image=, prompt_tokens= or batch= instead",
        )
    return None
