"""The exported graph as a source: each stage's modules exported by themselves and run under torch's counter.

The trace has another graph and other formulas, so agreement to the FLOP is no accident.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.node import Node, map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from llm_perf_opt.core.callgraph import OpKind, TensorMeta
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.export_outcome import Check, GraphOp
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, SourceFigures, WorkFamily, family_of
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.exports.failure import EXPORT_ERRORS, failed, quiet
from llm_perf_opt.exports.part_under_test import TensorsOnly, autocast_knows_meta
from llm_perf_opt.harness.isolation import IsolatedCall, LooseOp, cut_apart, stage_roots
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.twins import meta_twin
from llm_perf_opt.weightless import Engine, routing_policy
from llm_perf_opt.weightless.recording import flat_tensors, is_mutating, named_tensors, op_name, plain_arguments
from llm_perf_opt.weightless.spec import dtype_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCount:
    """Totals by operator, and the matrix work that the counter has no formula for."""

    flops_by_operator: dict[str, int]
    calls_by_operator: dict[str, int]
    unknown: dict[str, int]  # operator -> calls

    @property
    def flops(self) -> int:
        """What the counter adds up to; too low by what is unknown."""
        return sum(self.flops_by_operator.values())


def torch_count(forward: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> TorchCount:
    """Run `forward` once and count; on the meta device fused attention is taken apart into matmuls it can count."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), autocast_knows_meta(), _Matrices() as seen, counter:
        forward(*inputs)
    totals, known = counter.get_flop_counts().get("Global", {}), set(map(str, flop_registry))
    return TorchCount(
        flops_by_operator={str(packet): int(flops) for packet, flops in totals.items()},
        calls_by_operator=dict(seen.calls),
        unknown={name: calls for name, calls in seen.calls.items() if name not in known},
    )


class _Matrices(TorchDispatchMode):
    """Counts the calls of every operator that does matrix work, with or without a formula."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func._overloadpacket)
        if family_of(name) is not WorkFamily.OTHER:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


SOURCE = "exported"
_UNCOUNTED = {WorkFamily.ATTENTION: "fused-attention-uncounted", WorkFamily.GROUPED: "grouped-matmul-uncounted"}


class ExportSource:
    """Exports the modules that together are the run; a stage with a module that does not export says where it stops."""

    runs_model = True

    def __init__(self, *, routing: str = "uniform", device: str = "cpu") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase, in the order in which they run."""
        with OneRun(), Interruptible():
            return tuple(
                replace(figures, routing=self._engine.oracle.routing.name)
                for target in adapter.targets(workload)
                for figures in _of_phase(target, self._engine, self._routing)
            )


def _of_phase(target: Target, engine: Engine, routing: str) -> Iterator[SourceFigures]:
    names = (*(stage.name for stage in target.stages), target.phase)
    try:
        engine.oracle.routing = routing_policy(routing, target.phase)
        cut = cut_apart(target, stage_roots(target, engine), engine)
    except (PerfOptError, *EXPORT_ERRORS) as error:
        for name in names:
            yield replace(_without_figures(target, name), failure=f"{type(error).__name__}: {error_text(error)}")
        return
    for name in names:
        calls = [call for call in cut.calls if call.stage == name]
        if calls:
            loose = [op for op in cut.loose if op.stage == name]
            with quiet(), silenced():
                figures = _of_stage(_without_figures(target, name), calls, loose)
            yield figures


def _without_figures(target: Target, stage: str) -> SourceFigures:
    return SourceFigures(
        source=SOURCE, phase=target.phase, stage=stage, method=Method.ISOLATED, is_cross_check=True
    )  # of a static graph, which holds one way through the code: the count of the run is the figure that stands


def _of_stage(figures: SourceFigures, calls: Sequence[IsolatedCall], loose: Sequence[LooseOp]) -> SourceFigures:
    started = time.perf_counter()
    total = _Tally()
    for call in calls:
        try:
            total.add(_exported_count(call), call.calls)
        except EXPORT_ERRORS as error:
            where = failed(Check.EXPORT, error)
            return replace(figures, failure=f"{call.path} does not export: {where.reason}, at {where.site}")
    return replace(
        figures,
        flops=total.flops.total(),
        operators=tuple(
            OperatorFigure(name=name, family=family_of(name), flops=flops, calls=total.calls[name])
            for name, flops in total.flops.most_common()
        ),
        blind_spots=(*_uncounted(total), *_outside(loose)),
        notes=(f"{len(calls)} distinct graphs, each at the shapes of the run",),
        seconds=time.perf_counter() - started,
    )


def _exported_count(call: IsolatedCall) -> TorchCount:
    """Export on the meta device, then run the graph there, where every fused op falls into countable matmuls."""
    on_meta = meta_twin(TensorsOnly(call.module, call.args, call.kwargs))
    inputs = tuple(on_meta.given)
    with torch.no_grad(), autocast_knows_meta():
        graph = torch.export.export(on_meta, inputs).module()
    return torch_count(graph, inputs)


@dataclass(slots=True)
class _Tally:
    """Sums over the calls of a stage."""

    flops: Counter[str]
    calls: Counter[str]
    unknown: Counter[str]

    def __init__(self) -> None:
        self.flops, self.calls, self.unknown = Counter(), Counter(), Counter()

    def add(self, count: TorchCount, times: int) -> None:
        """A graph that stands for this many calls of the run."""
        for total, part in (
            (self.flops, count.flops_by_operator),
            (self.calls, count.calls_by_operator),
            (self.unknown, count.unknown),
        ):
            total.update({name: value * times for name, value in part.items()})


def _uncounted(total: _Tally) -> Iterator[BlindSpot]:
    for name, calls in total.unknown.items():
        cause = _UNCOUNTED.get(family_of(name), "op-without-formula")
        yield BlindSpot(cause=cause, operator=name, calls=calls)


def _outside(loose: Sequence[LooseOp]) -> Iterator[BlindSpot]:
    """Matmuls between the modules, which are in no graph."""
    for op in loose:
        name = str(op.func._overloadpacket)
        if family_of(name) is not WorkFamily.OTHER:
            args, kwargs = meta_twin((op.args, op.kwargs))
            count = torch_count(partial(op.func, *args, **kwargs), ())
            yield BlindSpot(
                cause="outside-isolated-modules", operator=name, calls=op.calls, flops=count.flops * op.calls
            )


# Regions under another grad or autocast mode: their body is part of the graph and runs exactly once.
_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def graph_ops(program: ExportedProgram) -> tuple[GraphOp, ...]:
    """Every op with tensors in it, alike ones counted together, in the order of first appearance.

    Checks of shapes and dtypes have no outputs and are left out: they are no work of the model.
    """
    ops: dict[tuple[Any, ...], tuple[OpKind, int]] = {}
    for node in _op_nodes(program.graph_module):
        kind = _kind(node)
        if not kind.outputs and not kind.mutates:
            continue
        key = (kind.name, kind.inputs, kind.outputs, kind.output_aliases, repr(kind.arguments))
        known, count = ops.get(key, (kind, 0))
        ops[key] = (known, count + 1)
    return tuple(GraphOp(kind=kind, count=count) for kind, count in ops.values())


def _op_nodes(module: torch.fx.GraphModule) -> Iterator[Node]:
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            yield node
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            bodies = [getattr(module, str(arg.target)) for arg in node.all_input_nodes if arg.op == "get_attr"]
            if node.target.name() in _REGIONS and len(bodies) == 1:
                yield from _op_nodes(bodies[0])
            else:
                yield node


def _kind(node: Node) -> OpKind:
    args = map_arg(node.args, _value)
    kwargs = map_arg(node.kwargs, _value)
    inputs = named_tensors(node.target, args, kwargs)
    outputs = list(flat_tensors(node.meta.get("val")))
    return OpKind(
        name=op_name(node.target),
        inputs=tuple(_meta(tensor) for _, tensor in inputs),
        outputs=tuple(map(_meta, outputs)),
        arguments=plain_arguments(node.target, args, kwargs),
        input_names=tuple(name for name, _ in inputs),
        output_aliases=_aliases([tensor for _, tensor in inputs], outputs),
        mutates=is_mutating(node.target),
    )


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(shape=tuple(map(int, tensor.shape)), dtype=dtype_name(tensor.dtype), device=tensor.device.type)


def _aliases(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    places: dict[int, int] = {}
    for place, tensor in enumerate(inputs):
        places.setdefault(_memory(tensor), place)
    return tuple(places.get(_memory(tensor), -1) for tensor in outputs)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class PartFiles:
    """Writes into a folder, or nowhere without one; none of the files that it writes itself holds weights."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._name = name
        self._folder = folder
        self._written: list[Path] = []

    @property
    def written(self) -> tuple[Path, ...]:
        """What is there now, in the order of writing."""
        return tuple(self._written)

    def save_program(self, program: ExportedProgram, *, is_alone: bool = True) -> None:
        """The program for `torch.export.load`, its weights on the meta device, and the graph as text.

        Without `is_alone` only the text: a program with weights will are next to it.
        """
        if self._folder is None:
            return
        if is_alone:
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            self._write(".pt2", buffer.getvalue())
        self._write(".fx.txt", program.graph_module.print_readable(print_output=False).encode())

    def add(self, files: Sequence[Path]) -> None:
        """Files that were written to the folder elsewhere."""
        self._written += files

    def save_onnx(self, content: bytes | None) -> None:
        """The ONNX graph, if there is one."""
        if content is not None:
            self._write(".onnx", content)

    def _write(self, suffix: str, content: bytes) -> None:
        if self._folder is not None:
            file = self._folder / f"{self._name}{suffix}"
            write_whole(file, [content])
            self._written.append(file)
