"""`lpo.profile(...)`: run a model for real, by name, folder or module, and say how fast each stage was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.profiling import ProfileAnswer, Progress, run_profile
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.measurements.profile.profiled_model import ProfiledModel, open_model
from llm_perf_opt.measurements.profile.request import (
    WORKLOAD_OPTIONS,
    DeviceChoice,
    ModelChoice,
    PageChoice,
    ProfilerChoice,
    ProfileRequest,
    RunChoice,
    StaticChoice,
    StaticSwitch,
    WorkloadChoice,
)
from llm_perf_opt.tracing.origin import module_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def profile(
    model: str | Path | torch.nn.Module,  # a registered name, a local Hugging Face folder, or a module
    args: Sequence[Any] = (),  # of a module
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: str = "random",  # or "stored": those in the folder, or in `checkpoint`
    checkpoint: str | Path | None = None,  # the released folder of a registered model
    trust_remote_code: bool = False,  # whether the Python code in a model folder may run
    torch_device: str = "cpu",  # where it runs: "cpu" or "cuda"
    device: str | None = None,  # whose peaks MFU and MBU are of, by id or name; default: what the machine reports
    devices_file: str | Path | None = None,
    max_new_tokens: int = 8,  # the first of them comes from the prefill
    prompt: str | None = None,  # in words, which needs a tokenizer
    stop_at_eos: bool = False,
    sample: int | None = None,  # of many pages (`image` is a folder or a list) take so many
    seed: int = 0,
    warmup: int = 1,
    repeats: int = 3,
    clock: str = "auto",  # "host", "synchronise" or "events"
    threads: int | None = None,
    operators: bool = True,  # one more pass under torch's profiler
    modules: bool = False,  # with a range for every module
    with_stack: bool = False,  # with the source line of every operator
    with_modules: bool = False,  # with the module of every operator
    profile_memory: bool = False,  # with the bytes that every operator allocates
    nsight: str = "none",  # and one under "nsys" or "ncu"
    nsight_stage: str = "decode",
    static: bool | Mapping[str, Any] = True,  # trace the pages; or `sources` and sizes of the static report
    check_memory: bool = True,  # refuse a run that the machine has no memory for
    out: str | Path | None = None,  # a folder for the artifacts; default: nothing is kept
    force: bool = False,
    progress: Progress | None = None,
    **workload: Any,
) -> ProfileAnswer:
    """Run a model for real and time every stage. A module that is passed in keeps its weights.

    `workload` is what the model is run with: `image`, `prompt_tokens`, `batch`, `dtype`, `attention`, and the model's
    own options. Every parameter is also a key of the command: see `docs/cli/profile.md`.
    """
    choice, profiled = _opened(model, args, kwargs, torch_device, weights, checkpoint, workload, trust_remote_code)
    pages = {"max_new_tokens": max_new_tokens, "prompt": prompt, "stop_at_eos": stop_at_eos}
    run = RunChoice(folder=".", warmup=warmup, repeats=repeats, clock=clock, threads=threads)
    profiler = ProfilerChoice(enabled=operators, modules=modules, nsight=nsight, nsight_stage=nsight_stage)
    request = ProfileRequest(
        model=choice,
        workload=_workload_choice(workload, **pages, sample=sample, seed=seed),
        device=DeviceChoice(
            torch=torch_device, name=device, devices=None if devices_file is None else str(devices_file)
        ),
        run=replace(run, check_memory=check_memory),
        static_analysis=_static_choice(static),
        profiler=replace(profiler, with_stack=with_stack, with_modules=with_modules, profile_memory=profile_memory),
    )
    with _folder(out) as folder:
        answer = run_profile(request, profiled, folder, _config_text(request), force=force, progress=progress)
    return answer if out is not None else replace(answer, folder=None, files=())


def _opened(
    model: str | Path | torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    torch_device: str,
    weights: str,
    checkpoint: str | Path | None,
    workload: Mapping[str, Any],
    trust_remote_code: bool,
) -> tuple[ModelChoice, ProfiledModel]:
    adapter = module_adapter(model, args, kwargs)
    if adapter is not None and not isinstance(model, (str, Path)):
        if workload:
            raise UsageError(
                f"A module takes no {', '.join(workload)}.",
                why="its arguments say all there is to say about the workload",
                fix="put what you mean into args or kwargs",
            )
        choice = ModelChoice(name=adapter.title, weights="stored", dtype=_dtype_of(model))
        return choice, ProfiledModel(adapter=adapter, real=adapter, weights="random", has_workload=False)
    choice = ModelChoice(
        name=str(model),
        folder=None if checkpoint is None else str(checkpoint),
        weights=weights,
        dtype=workload.get("dtype", ModelChoice().dtype),
        attention=workload.get("attention"),
        trust_remote_code=trust_remote_code,
    )
    return choice, open_model(choice, torch_device)


def _dtype_of(module: torch.nn.Module) -> str:
    """The type of the first weight that holds numbers with a fraction; the peak of the device is taken for it."""
    found = (str(weight.dtype).removeprefix("torch.") for weight in module.parameters() if weight.is_floating_point())
    return next(found, "float32")


def _workload_choice(workload: Mapping[str, Any], **paging: Any) -> PageChoice:
    """The record of the configuration, in which a grid is written as `2x3`."""
    for name in workload:
        if name not in (*WORKLOAD_OPTIONS, "image", "dtype", "attention"):
            fix = "use max_new_tokens, one more" if name == "decode_steps" else "leave it out"
            raise UsageError(
                f"profile takes no {name}.",
                why=f"it takes: image, dtype, attention, {', '.join(WORKLOAD_OPTIONS)}",
                fix=fix,
            )
    given = {name: value for name, value in workload.items() if name not in ("dtype", "attention")}
    return WorkloadChoice(**_written(given), **paging)


def _static_choice(static: bool | Mapping[str, Any]) -> StaticSwitch:
    if isinstance(static, bool):
        return StaticChoice(enabled=static)
    return StaticChoice(**_written(static))


def _written(given: Mapping[str, Any]) -> dict[str, Any]:
    """As a configuration file writes it: a grid as `2x3`, a list of sources as `counted+fvcore`."""
    if "sources" in given and not isinstance(given["sources"], str):
        given = {**given, "sources": "+".join(given["sources"])}
    return {name: "x".join(map(str, value)) if isinstance(value, tuple) else value for name, value in given.items()}


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with scratch_folder() as scratch:
        yield scratch


def _config_text(request: ProfileRequest) -> str:
    """The request as YAML, in which values are written as in JSON."""
    groups = asdict(request)
    lines = [
        f"{group}:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in groups[group].items())
        for group in groups
    ]
    return "".join(lines)
