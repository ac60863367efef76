"""One training step on ghosts: which phase each op is in, which module it belongs to, what each block of memory is for.

The step is the user's own code. Where backward and optimizer begin and end is seen from outside: in the function that
starts autograd, and in torch's hooks around `Optimizer.step`. What runs from the end of a backward to the next forward
(clipping, the step, the zeroing of gradients) is the optimizer's phase. The loss is what a forward runs after its last
module that calls no other, or from a loss module on.

Autograd numbers its nodes in the order in which the forward made them, so the number of a node tells the module call
that was open then. The ops of a backward are recorded as calls of that module and of those around it. A call is one
stretch of ops, so a module with interleaved nodes is called more than once. What is recomputed is inside real forwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from llm_perf_opt.core.callgraph import CallGraphBuilder, OpKind, TensorMeta
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import InterruptsWait
from llm_perf_opt.core.recorded_step import (
    BACKWARD,
    FORWARD,
    LOSS,
    OPTIMIZER,
    RecordedTrainingStep,
    StepStoppedError,
    Stretch,
)
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.harness.module_calls import watch_forwards
from llm_perf_opt.harness.quiet import few_collections, silenced
from llm_perf_opt.harness.trace_header import RuntimeFacts, declare_inputs, declare_modules, finished_graph, observing
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.weightless import Engine
from llm_perf_opt.weightless.ghost import local_tensor
from llm_perf_opt.weightless.recording import OpRecorder, bytes_of
from llm_perf_opt.weightless.routing import even_over_ranks

Chain = tuple[str, ...]  # open module calls, outermost first


@dataclass(slots=True)
class TrainingStart:
    """What a training step begins with: its inputs, and the optimizer with states as an earlier step left them."""

    inputs: dict[str, Any]
    optimizer: Any = field(default=None)


class StepBuilder(CallGraphBuilder):
    """Follows the phases of a step, and opens module calls around the ops of a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.stretches = [Stretch(phase=FORWARD, first_op=0)]
        self.recomputed: list[range] = []
        self.chain_of_path: dict[str, Chain] = {}
        self.owner_of_weight: dict[int, str] = {}
        self._firsts: list[int] = []  # numbers of autograd nodes from which on the chain of the same place is open
        self._chains: list[Chain] = []
        self._open: Chain = ()  # forwards that are running
        self._around: Chain = ()  # calls that were opened around the ops of a backward
        self._recomputes_from: int | None = None  # the first op of the recomputation that is running
        self._calls_made = 0
        self._called_last = -1
        self._leaf_end: int | None = None  # where the last call ended that called nothing
        self._backwards = 0

    # ---- phases

    def begin(self, phase: str, first_op: int | None = None) -> None:
        """The ops from here on, or from an earlier one of this phase, are in `phase`."""
        first = self.op_count if first_op is None else first_op
        while self.stretches and self.stretches[-1].first_op >= first:
            self.stretches.pop()
        if not self.stretches or self.stretches[-1].phase != phase:
            self.stretches.append(Stretch(phase=phase, first_op=first))

    @property
    def phase(self) -> str:
        """Of the next op."""
        return self.stretches[-1].phase

    @property
    def op_count(self) -> int:
        """Ops so far."""
        return len(self._op_kind)

    def begin_backward(self) -> None:
        """Autograd starts; a backward within a backward is part of it."""
        self._backwards += 1
        if self._backwards > 1:
            return
        if self.phase == FORWARD and self._leaf_end is not None:
            self.begin(LOSS, self._leaf_end)
        self._leaf_end = None
        self.begin(BACKWARD)

    def end_backward(self) -> None:
        """Autograd is done; what follows belongs to the optimizer until a module is called."""
        self._end_recomputation()
        self._backwards -= 1
        if not self._backwards:
            self._surround(())
            self.begin(OPTIMIZER)

    # ---- module calls

    def enter_forward(self, path: str, tensors: Sequence[tuple[TensorMeta, int]], *, is_loss: bool) -> None:
        """A module's forward begins, in the forward of a step or where a backward runs it again."""
        if self._backwards:
            if not self._open:
                self._surround(self.chain_of_path.get(path, (path,))[:-1])
            self._begin_recomputation()
        elif not self._open and self.phase != FORWARD:
            self.begin(FORWARD)
        if is_loss and not self._backwards:
            self.begin(LOSS)
        self._open = (*self._open, path)
        self._called_last = self._calls_made = self._calls_made + 1
        self._note(self._chain())
        self.chain_of_path.setdefault(path, self._chain())
        self.enter(path, tensors)

    def leave_forward(self, tensors: Sequence[tuple[TensorMeta, int]]) -> None:
        """The forward entered last is over."""
        self.leave(tensors)
        if self._called_last == self._calls_made and not self._backwards and self.phase == FORWARD:
            self._leaf_end = self.op_count
        self._called_last = -1
        self._open = self._open[:-1]
        self._note(self._chain())

    def op(self, kind: OpKind, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """An op ran; within a backward it is put into the calls of its module first."""
        if self._backwards:
            self._place(is_view=bool(outputs) and not kind.mutates and min(kind.output_aliases) >= 0)
        super().op(kind, inputs, outputs)

    def _place(self, *, is_view: bool) -> None:
        """Autograd runs its own ops without gradients; what has gradients on is a forward that runs again.

        A view tells nothing: recomputation detaches what it keeps.
        """
        if is_view and self._recomputes_from is not None:
            return
        if torch.is_grad_enabled():
            is_new = self._recomputes_from is None
            self._begin_recomputation()
            if is_new and not self._open:
                self._find_owner()
            return
        self._end_recomputation()
        if not self._open:
            self._find_owner()

    def _begin_recomputation(self) -> None:
        if self._recomputes_from is None:
            self._recomputes_from = self.op_count

    def _end_recomputation(self) -> None:
        if self._recomputes_from is not None:
            if self.op_count > self._recomputes_from:
                self.recomputed.append(range(self._recomputes_from, self.op_count))
            self._recomputes_from = None

    def _chain(self) -> Chain:
        return (*self._around, *self._open)

    def _note(self, chain: Chain) -> None:
        self._firsts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._chains.append(chain)

    def _find_owner(self) -> None:
        """Open the calls that were open when the forward made the node that runs; between nodes nothing changes."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return
        if (weight := getattr(node, "variable", None)) is not None:  # it adds up the gradient of a weight
            path = self.owner_of_weight.get(id(weight))
            self._surround(() if path is None else self.chain_of_path.get(path, ()))
            return
        place = bisect_right(self._firsts, node._sequence_nr()) - 1
        self._surround(self._chains[place] if place >= 0 else ())

    def _surround(self, chain: Chain) -> None:
        """Leave and enter modules until just these are open around the next op."""
        if chain == self._around:
            return
        shared = 0
        for ours, wanted in zip(self._around, chain, strict=False):
            if ours != wanted:
                break
            shared += 1
        for _ in self._around[shared:]:
            self.leave(())
        for path in chain[shared:]:
            self.enter(path, ())
        self._around = chain


def record_step(target: Target, engine: Engine) -> RecordedTrainingStep:
    """Run a target that trains, once, on an engine with autograd. What it prepares is no part of the step."""
    with nullcontext() if target.world is None else target.world:
        return _step_of_rank(target, engine)


def _step_of_rank(target: Target, engine: Engine) -> RecordedTrainingStep:
    with engine, torch.no_grad():
        model = engine.adopt(target.build())
    if target.world is not None:
        engine.other_ranks = target.world.integers
        engine.oracle.routing = even_over_ranks(engine.oracle.routing, target.world.expert_ranks)
    builder, memory, facts = engine.run(lambda: _recorded(target, engine, model))
    settings = {"routing": engine.oracle.routing.name, "device": engine.disguise.shown}
    graph = finished_graph(builder, target, facts, "weightless", settings, notes=engine.oracle.revisions())
    return RecordedTrainingStep(
        graph=graph,
        stretches=tuple(builder.stretches),
        recomputed=tuple(builder.recomputed),
        gradients=builder.storage_rows(memory.gradients),
        optimizer_states=builder.storage_rows(memory.states),
        trainable=frozenset(name for name, weight in model.named_parameters() if weight.requires_grad),
    )


def _recorded(target: Target, engine: Engine, model: torch.nn.Module) -> tuple[StepBuilder, _Purposes, RuntimeFacts]:
    builder = StepBuilder()
    given = target.start(model)
    memory = _Purposes(model)
    with InterruptsWait(), engine.recording(builder) as recorder, few_collections():
        declare_modules(builder, model, lambda tensor: _described(recorder, tensor))
        declare_inputs(builder, given, lambda tensor: _described(recorder, tensor))
        memory.declare_states(builder, recorder, given)
        builder.owner_of_weight = {
            id(weight): path for path, module in model.named_modules() for weight in module._parameters.values()
        }
        with observing(target, model) as facts, _watched(builder, recorder, memory, model), silenced():
            try:
                target.run(model, given)
            except PerfOptError:
                raise
            except Exception as error:
                raise StepStoppedError(error) from error
        memory.note_gradients(recorder)
    return builder, memory, facts


class _Purposes:
    """Tokens of the memory that holds gradients and optimizer states."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.gradients: set[int] = set()
        self.states: set[int] = set()
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]

    def note_gradients(self, recorder: OpRecorder) -> None:
        for weight in self._weights:
            if weight.grad is not None:
                self.gradients.add(recorder.token(local_tensor(weight.grad)))

    def note_states(self, recorder: OpRecorder, optimizer: Any) -> None:
        self.states.update(recorder.token(tensor) for tensor in _states(optimizer))

    def declare_states(self, builder: CallGraphBuilder, recorder: OpRecorder, given: object) -> None:
        """The states that an earlier step left."""
        if isinstance(given, TrainingStart) and given.optimizer is not None:
            for tensor in _states(given.optimizer):
                builder.given(recorder.token(tensor), bytes_of(tensor))
            self.note_states(recorder, given.optimizer)


def _states(optimizer: Any) -> list[torch.Tensor]:
    return [local_tensor(tensor) for state in optimizer.state.values() for tensor in tensors_in(list(state.values()))]


@contextmanager
def _watched(builder: StepBuilder, recorder: OpRecorder, memory: _Purposes, model: torch.nn.Module) -> Iterator[None]:
    """While open, calls, backwards and optimizer steps are reported to the builder."""

    def before(path: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        is_loss = isinstance(module, torch.nn.modules.loss._Loss)
        builder.enter_forward(path, _described_all(recorder, tensors_in((args, kwargs))), is_loss=is_loss)

    def after(path: str, output: Any) -> None:
        builder.leave_forward(_described_all(recorder, tensors_in(output)))

    def backward(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            builder.begin_backward()
            try:
                return plain(*args, **kwargs)
            finally:
                builder.end_backward()
                memory.note_gradients(recorder)

        return run

    def before_step(optimizer: Any, *_: Any) -> None:
        memory.note_gradients(recorder)
        builder.begin(OPTIMIZER)

    def after_step(optimizer: Any, *_: Any) -> None:
        memory.note_states(recorder, optimizer)

    with ExitStack() as undo:
        patches = undo.enter_context(ThreadPatches())
        patches.wrap(torch.autograd, "_engine_run_backward", backward)
        undo.callback(optimizers.register_optimizer_step_pre_hook(before_step).remove)
        undo.callback(optimizers.register_optimizer_step_post_hook(after_step).remove)
        undo.enter_context(watch_forwards(model, before, after))
        yield


def _described(recorder: OpRecorder, tensor: torch.Tensor) -> tuple[TensorMeta, int, int]:
    held = local_tensor(tensor)
    return recorder.meta(held), recorder.token(held), bytes_of(held)


def _described_all(recorder: OpRecorder, tensors: Iterable[torch.Tensor]) -> list[tuple[TensorMeta, int]]:
    return [(recorder.meta(held), recorder.token(held)) for held in map(local_tensor, tensors)]


def start_with_states(model: torch.nn.Module, inputs: dict[str, Any], optimizer: Any) -> TrainingStart:
    """The start of a later step: the optimizer has stepped once, so its states are there."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.empty_like(weight)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return TrainingStart(inputs, optimizer)
