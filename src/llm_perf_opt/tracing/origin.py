"""What a trace is made from: a model that was found, with its workload and deployment, which can be run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.work_limits import refuse_workload
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.models.huggingface.names import NamedModel, find_model
from llm_perf_opt.tracing.found_model import FoundModel, spread

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a trace was made from, so that other sources can run the same model with the same workload."""

    name: str  # of the model, as it was given
    source: ModelAdapter | FoundModel
    workload: Workload
    deployment: Deployment = field(default_factory=Deployment)
    routing: str | None = None  # of this and the next, None is the tracer's own default
    torch_device: str | None = None
    plan: ParallelPlan = field(default_factory=ParallelPlan)  # of which the adapter runs one rank
    is_module: bool = False  # one that was built elsewhere, with weights of its own

    @property
    def adapter(self) -> ModelAdapter:
        """What runs the model on this rank; one that was found by its name is read and loaded here."""
        if not isinstance(self.source, FoundModel):
            return self.source
        return self.source.on_rank(self.plan) if self.plan.is_spread else self.source.adapter

    @property
    def model(self) -> str:
        """As a trace of it is named: a folder by the last part of its path."""
        return Path(self.name).resolve().name if Path(self.name).is_dir() else self.name

    def targets(self, **changed: Any) -> tuple[Target, ...]:
        """The phases of the workload, or of one that differs in some fields.

        If nobody declared the model's inputs, it is run to find them; the limits of work hold for that run too.
        """
        with OneRun(), RunWatch(f"{self.name}, looking for its inputs"):
            return self.adapter.targets(replace(self.workload, **changed) if changed else self.workload)


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
    """The model and its workload, checked before anything runs; `trace` describes the parameters.

    Of a plan it is the rank that was asked for, by default the first. With `copies_key_heads`, more ranks than key
    heads hold copies of a head, as in engines; otherwise the model's own code refuses such a plan.
    """
    named = find_model(str(model), trust_remote_code) if isinstance(model, (str, Path)) else model
    module = module_adapter(named, args, kwargs)
    source = module or FoundModel(
        named=cast(NamedModel, named), trust_remote_code=trust_remote_code, copies_key_heads=copies_key_heads
    )
    plan = taken_plan(workload)
    requested = (
        source.workload_type.make(**workload) if isinstance(source, FoundModel) else make_workload(source, **workload)
    )
    refuse_workload(
        batch=requested.batch,
        tokens=requested.prompt_tokens or 0,
        decode_steps=requested.decode_steps,
        new_tokens=requested.new_tokens,
    )
    origin = Origin(
        name=str(named) if module is None else module.title,
        source=source,
        workload=requested,
        deployment=Deployment.make(device=device, weights=weights, cache=cache),
        routing=routing,
        torch_device=torch_device,
        is_module=module is not None,
    )
    return on_rank(origin, plan.of_rank(plan.kinds_of_rank()[0])) if plan.is_spread else origin


def find_adapter(model: object, trust_remote_code: bool = False) -> ModelAdapter:
    """The adapter of a registered name, of a folder, or of any other name: `models/huggingface/names.py`."""
    named = model if isinstance(model, NamedModel) else find_model(str(model), trust_remote_code)
    return FoundModel(named=named, trust_remote_code=trust_remote_code).adapter


def module_adapter(
    model: str | Path | NamedModel | torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> ModelAdapter | None:
    """The adapter of a module that is called with these arguments; None for a name or a folder, which takes none."""
    if not isinstance(model, (str, Path, NamedModel)):
        from llm_perf_opt.models.single_module import SingleModuleAdapter

        return SingleModuleAdapter(model, args, kwargs)
    if args or kwargs:
        raise UsageError(
            "args and kwargs are only for a torch module.",
            why=f"the inputs of {str(model)!r} are made from the workload",
            fix="leave them out, and give image=, prompt_tokens= or batch= instead",
        )
    return None


def taken_plan(workload: dict[str, object]) -> ParallelPlan:
    """The parallel plan among the keywords of a workload, which are left without it."""
    given = {name: workload.pop(name) for name in ParallelPlan.options() if name in workload}
    if isinstance(given.get("plan"), Path):
        given["plan"] = str(given["plan"])
    return ParallelPlan.make(**given)


def on_rank(origin: Origin, plan: ParallelPlan) -> Origin:
    """The same model and workload as one rank of a plan runs them."""
    source = origin.source
    return replace(
        origin, source=source if isinstance(source, FoundModel) else spread(source, origin.name, plan), plan=plan
    )
