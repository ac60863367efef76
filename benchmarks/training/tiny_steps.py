"""One training step of a tiny architecture twice: for real on this processor, and without weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from benchmarks.training.real_step import Witness, tensors_of, witness
from llm_perf_opt.core.recorded_step import RecordedTrainingStep
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.harness.trace_header import autocast_of
from llm_perf_opt.harness.training_run import record_step, start_with_states
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.models.huggingface.training import make_optimizer, prepared_model
from llm_perf_opt.ops.table import price
from llm_perf_opt.training.step_memory import memory_of
from llm_perf_opt.weightless import Engine, RoutingPolicy

# Looks at memory that is there. On ghosts autograd makes some of them by other ops than on plain tensors: it repeats
# the views that led to a tensor where it would otherwise describe the result by its strides.
VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "_unsafe_view.default", "alias.default", "as_strided.default", "detach.default", "diagonal.default",
        "expand.default", "permute.default", "select.int", "slice.Tensor", "split.Tensor", "split_with_sizes.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "t.default", "transpose.int", "unbind.int", "unfold.default",
        "unsqueeze.default", "view.default", "lift_fresh.default", "_reshape_alias.default",
        "_has_compatible_shallow_copy_type.default",
    )
)  # fmt: skip
NO_FORMULA = ("flash_attention_for_cpu", "_grouped_mm", "mkldnn_rnn_layer")  # torch's counter reports 0 for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between the two; empty mappings where nothing does."""

    peak_bytes: int
    real_peak_bytes: int
    flops: int
    real_flops: int
    flops_differ: Mapping[str, tuple[int, int]]  # op -> ours, torch's, where torch has a formula
    ops_differ: Mapping[str, tuple[int, int]]  # views left out
    views_differ: Mapping[str, tuple[int, int]]
    unpriced: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def peak_error(self) -> float:
        """Relative to the real step."""
        return self.peak_bytes / self.real_peak_bytes - 1

    @property
    def is_exact(self) -> bool:
        """FLOPs equal, ops that move data equal, and the peak within 1 %."""
        return not self.flops_differ and not self.ops_differ and abs(self.peak_error) <= 0.01


def tiny_target(
    name: str,
    build: Callable[[], torch.nn.Module],
    inputs: Mapping[str, Any],
    setup: TrainingSetup,
    gradients: dict[str, tuple[int, ...]] | None = None,
) -> Target:
    """A step of any model: its own loss where the inputs have labels, otherwise the mean of what it returns.

    The shape of every parameter's gradient is written into `gradients`.
    """

    def start(model: Any) -> Any:
        dtype = getattr(torch, setup.dtype)
        cast = tree_map_only(torch.Tensor, lambda tensor: _as_given(tensor, dtype), dict(inputs))
        return start_with_states(model, cast, make_optimizer(model, setup.optimizer))

    return Target(
        model=name,
        phase="training step",
        workload={"autocast": setup.autocast} if setup.autocast else {},
        build=lambda: prepared_model(build(), setup),
        prepare=start,
        invoke=partial(_step, micro_batches=setup.accumulation, gradients=gradients),
    )


def _as_given(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.clone().to(dtype) if tensor.is_floating_point() else tensor.clone()


def _step(model: Any, start: Any, micro_batches: int, gradients: dict[str, tuple[int, ...]] | None) -> None:
    for _ in range(micro_batches):
        output = model(**start.inputs)
        loss = getattr(output, "loss", None)
        if loss is None:
            floats = [tensor for tensor in tensors_in(output) if tensor.is_floating_point() and tensor.requires_grad]
            loss = sum(tensor.float().mean() for tensor in floats)
            del floats
        del output
        if micro_batches > 1:
            loss = loss / micro_batches
        loss.backward()
        del loss
    if gradients is not None:
        gradients.clear()
        gradients.update(
            (name, tuple(weight.grad.shape)) for name, weight in model.named_parameters() if weight.grad is not None
        )
    start.optimizer.step()
    start.optimizer.zero_grad(set_to_none=True)


def run_real(target: Target) -> Witness:
    """The step on this processor with random weights."""
    torch.manual_seed(0)
    model = target.build()
    start = target.start(model)

    def step() -> None:
        torch.manual_seed(0)
        with autocast_of(target, model):
            target.run(model, start)

    return witness(step, lambda: tensors_of(model, start.optimizer, start.inputs))


def run_weightless(target: Target, routing: str | RoutingPolicy = "uniform") -> RecordedTrainingStep:
    """The same step on ghosts, as code on a CPU sees it."""
    return record_step(target, Engine(device="cpu", autograd=True, routing=routing))


def compare(step: RecordedTrainingStep, real: Witness) -> Comparison:
    """Figures of both, and what differs."""
    graph = step.graph
    assert graph.ops is not None
    counts = Counter(graph.ops.kind)
    ops: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    unpriced: Counter[str] = Counter()
    for row, count in counts.items():
        kind = graph.op_kinds[row]
        ops[kind.name] += count
        cost = price(kind)
        if cost is None:
            unpriced[kind.name] += count
        elif cost.flops:
            flops[_packet(kind.name)] += count * cost.flops
    differing = {name: pair for name, pair in _differences(ops, real.ops).items() if not name.startswith("profiler.")}
    theirs = Counter({_packet(name): count for name, count in real.flops_by_op.items()})
    return Comparison(
        peak_bytes=max(memory_of(step).total),
        real_peak_bytes=real.peak_bytes,
        flops=sum(flops.values()),
        real_flops=real.flops,
        flops_differ={
            name: pair
            for name, pair in _differences(flops, theirs).items()
            if not any(word in name for word in NO_FORMULA)
        },
        ops_differ={name: pair for name, pair in differing.items() if name not in VIEWS},
        views_differ={name: pair for name, pair in differing.items() if name in VIEWS},
        unpriced=unpriced,
        problems=tuple(graph.problems()),
    )


def _packet(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def _differences(ours: Counter[str], theirs: Counter[str]) -> dict[str, tuple[int, int]]:
    return {name: (ours[name], theirs[name]) for name in {*ours, *theirs} if ours[name] != theirs[name]}
