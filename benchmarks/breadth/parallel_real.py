"""What transformers itself accepts: its own distribution on meta tensors, in torch's fake process group.

Building and sharding is done as `from_pretrained` does it. Then one forward runs on meta tensors. Where that needs
values, which meta tensors do not have, sharding alone is the acceptance, and the record says so.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Target
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.resolved import HuggingFaceWorkload

from .collective_watch import Watch, bytes_held, running_modules
from .fork_pool import Record, resident_bytes
from .own_distribution import distributed_model
from .parallel_plans import MESSAGE_LENGTH, PLANS, PlannedType, cause, planned_type, plans_of

# What torch says of an op that needs values, or that has no kernel for meta tensors.
NEEDS_VALUES = ("meta tensor", "on meta", "'Meta' backend", "data-dependent", "meta device", "type meta")


def run_real(model_type: str, only: Collection[str] = PLANS) -> Record:
    """The record of one model type: its rules, and the outcome of its plans among `only`."""
    with planned_type(model_type) as planned:
        model = _build(planned)
        rules = {axis: len(getattr(model, f"{axis}_plan", None) or ()) for axis in ("tp", "ep", "pp")}
        record: Record = {"status": "ok", "class": planned.model_class.__name__, "rules": rules}
        plans = plans_of(rules, only)
        if not plans:
            return record
        workload = HuggingFaceWorkload(decode_steps=0)
        target = HuggingFaceAdapter(planned.folder, False).targets(workload)[0]
        outcomes = {name: _outcome(planned, plan, target) for name, plan in plans.items()}
        record["plans"] = outcomes
        if any(outcome.get("stage") == "forward" for outcome in outcomes.values()):
            whole = record["whole"] = _forward(model, target)
            for outcome in outcomes.values():
                if outcome.get("stage") == "forward" and outcome["message"] == whole.get("message"):
                    outcome["status"] = "sharded"  # meta tensors cannot run the unsharded model either
        record["rss_bytes"] = resident_bytes()
        return record


def _build(planned: PlannedType) -> Any:
    with torch.device("meta"):
        return planned.model_class._from_config(copy.deepcopy(planned.config), dtype=torch.bfloat16).eval()


def _outcome(planned: PlannedType, plan: ParallelPlan, target: Target) -> Record:
    """`runs`, `sharded` (its forward needs values), or `refused` with stage, message and cause."""
    started = time.process_time()
    with _fake_group(plan):
        try:
            sizes = {f"{axis}_size": size for axis, size in plan.sizes().items()}
            model = distributed_model(partial(_build, planned), sizes)
        except Exception as error:  # noqa: BLE001  a sweep records whatever a library raises
            return _refused(planned, plan, "sharding", _said(error))
        found: Record = {"weight_bytes": bytes_held(model.parameters())}
        found |= _forward(model, target)
    found["seconds"] = round(time.process_time() - started, 2)
    if found["status"] == "refused":
        return found | _refused(planned, plan, "forward", str(found["message"]))
    return found


def _forward(model: Any, target: Target) -> Record:
    with torch.device("meta"), torch.no_grad(), running_modules(model) as stack:
        watch = Watch(stack)
        given = target.start(model)
        if isinstance(given, dict):
            given.pop("attention_mask", None)  # of ones: it hides nothing, and its values would be asked for
        try:
            with watch:
                target.run(model, given)
        except Exception as error:  # noqa: BLE001  a sweep records whatever a model raises
            said = _said(error)
            needs_values = any(words in said for words in NEEDS_VALUES)
            return {"status": "sharded" if needs_values else "refused", "message": said}
    counts = Counter(f"{seen.op} {seen.payload_bytes}" for seen in watch.collectives)
    return {"status": "runs", "collectives": dict(sorted(counts.items()))}


def _refused(planned: PlannedType, plan: ParallelPlan, stage: str, message: str) -> Record:
    why = cause(planned.config, plan, message)
    return {"status": "refused", "stage": stage, "message": message, "cause": why}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[:MESSAGE_LENGTH]


@contextmanager
def _fake_group(plan: ParallelPlan) -> Iterator[None]:
    from torch import distributed
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _clear_sharding_prop_cache()  # meshes of equal layout share it
    distributed.init_process_group(
        "cpu:fake,meta:fake", store=FakeStore(), rank=plan.rank or 0, world_size=plan.replica_ranks
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()
