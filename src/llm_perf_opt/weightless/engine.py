"""The engine: a dispatch mode under which unmodified model code runs without weights.

Every op goes one of four ways:

1. no ghost among its arguments: it runs for real, on the CPU (`real_ops`);
2. it needs a value that no tensor holds: a value rule answers, through the oracle (`rules`);
3. it was seen before with these specs: its recipe is followed (the hot path, below);
4. it is new: its shapes are worked out once, on meta tensors or by a shape rule (`propagation`).

Autograd and ADInplaceOrView keys are excluded while the engine is open, as inference mode does, so composite ops
(linear, matmul, attention, layer_norm) arrive whole: half as many ops, and a fused kernel stays one op. For a training
step they are not, and composite ops arrive in the pieces that have a derivative.

The key of an op is everything its output shapes can depend on, cheap enough to build for every dispatch. A ghost
contributes its interned spec, a real tensor its layout, a number its value. For element-wise ops the value of a Python
number cannot change a shape, so only its type counts: a loop that scales by a new number each step still hits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from llm_perf_opt.core.callgraph import CallGraphBuilder, OpKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import Interruptible, puts_back
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.work_limits import OPS_BETWEEN_CHECKS, WorkBudget
from llm_perf_opt.weightless import fallbacks, propagation, real_ops
from llm_perf_opt.weightless.autograd import training_patches
from llm_perf_opt.weightless.collectives import functional_facts, is_collective, run_collective, takes_ops_apart
from llm_perf_opt.weightless.composites import composite_parts, scratch_bytes
from llm_perf_opt.weightless.dispatcher import OtherRanks, UserRule
from llm_perf_opt.weightless.environment import Disguise, Environment
from llm_perf_opt.weightless.fallbacks import run_higher_order
from llm_perf_opt.weightless.ghost import ENGINES, Ghost, adopt_module, choice_counts, choice_of, new_ghost, stands_by
from llm_perf_opt.weightless.oracle import Limits, Oracle
from llm_perf_opt.weightless.recipes import Fresh, Recipe
from llm_perf_opt.weightless.recording import OpRecorder, flat_tensors, is_mutating, is_pointwise
from llm_perf_opt.weightless.refusal import Refusal, locate
from llm_perf_opt.weightless.routing import RoutingPolicy, routing_policy
from llm_perf_opt.weightless.rules import SHAPE_RULES, VALUE_RULES
from llm_perf_opt.weightless.spec import Spec, contiguous_spec, spec_of_tensor
from llm_perf_opt.weightless.storage import RealStorages, Storage

_Tensor = torch.Tensor
_PLAIN = frozenset({int, bool, type(None)})

Key = tuple[Any, ...]

T = TypeVar("T")

_EMPTY: Mapping[str, Any] = {}
_RETRIES = 6
# What model code raises when a value is not what it expects. Memory, files, imports and recursion are not a value's.
_OF_A_GUESS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)


def op_key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[list[Any], list[torch.Tensor]]:
    """The key as a list, and every tensor argument in order. `id(func)`: hashing an OpOverload is a Python call."""
    key: list[Any] = [id(func)]
    tensors: list[torch.Tensor] = []
    for value in args:
        kind = type(value)
        if kind is Ghost:
            key.append(value.spec)
            tensors.append(value)
        elif kind in _PLAIN:
            key.append(value)
        else:
            _append(key, tensors, kind, value)
    if kwargs:
        for name, value in kwargs.items():
            key.append(name)
            _append(key, tensors, type(value), value)
    return key, tensors


def _append(key: list[Any], tensors: list[torch.Tensor], kind: type, value: Any) -> None:
    if kind is Ghost:
        key.append(value.spec)
        tensors.append(value)
    elif kind is list or kind is tuple:
        key.append(_sequence_key(tensors, value))
    elif isinstance(value, _Tensor):
        key.append((value.shape, value.stride(), value.dtype))
        tensors.append(value)
    else:
        key.append(value)
        key.append(kind)  # 1 and 1.0 are equal keys but not equal dtypes


def _sequence_key(tensors: list[torch.Tensor], values: Sequence[Any]) -> Key:
    if values and type(values[0]) is int:
        return tuple(values)
    key: list[Any] = []
    for value in values:
        _append(key, tensors, type(value), value)
    return tuple(key)


def shape_key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[list[Any], list[torch.Tensor]]:
    """`op_key` of an element-wise op: numbers count by type alone.

    Written out again, not shared with `op_key`: every op of a trace comes through one of the two, and a flag or a
    function call in the loop is a measurable part of a trace's time.
    """
    key: list[Any] = [id(func)]
    tensors: list[torch.Tensor] = []
    for value in args:
        kind = type(value)
        if kind is Ghost:
            key.append(value.spec)
            tensors.append(value)
        elif kind is float or kind is int:
            key.append(kind)
        else:
            _append(key, tensors, kind, value)
    if kwargs:
        for name, value in kwargs.items():
            kind = type(value)
            key.append(name)
            if kind is float or kind is int:
                key.append(kind)
            else:
                _append(key, tensors, kind, value)
    return key, tensors


class ShapeCacheEntry:
    """A line of the shape-propagation cache: how to make the outputs, and what kind of op it is."""

    __slots__ = ("fresh", "kind", "mutates", "recipe", "scratch")

    def __init__(self, func: Any, recipe: Recipe) -> None:
        self.recipe = recipe
        self.fresh: Spec | None = recipe.spec if type(recipe) is Fresh else None
        self.mutates = is_mutating(func)
        self.kind: OpKind | None = None
        self.scratch = 0


class Engine(TorchDispatchMode):
    """Runs model code on ghosts.

    Parameters
    ----------
    device
        The device model code sees: `cpu`, or `cuda` for code that expects a GPU. Nothing is ever placed there.
    routing
        How `topk` of router scores is answered: a policy, or its name (`uniform`, `balanced`, `one`, `random:SEED`).
    overrides
        Answers for scalar questions at given places, by the end of `file.py:line`.
    rules
        Shape functions for ops torch cannot propagate: op -> function of the engine and the op's arguments.
    autograd
        Whether torch's autograd runs above the engine, so that `loss.backward()` does what it does on a GPU. Composite
        ops then come in the pieces that have a derivative, and what they save for the backward lives until it is used.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        *,
        device: str = "cpu",
        routing: str | RoutingPolicy = "uniform",
        limits: Limits | None = None,
        overrides: Mapping[str, bool | int | float] | None = None,
        rules: Mapping[Any, UserRule] | None = None,
        autograd: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The slot of FakeTensorMode: while it is taken, torch does not initialise CUDA for `.to("cuda")` or
        # `device="cuda"`, and modes of the caller (a FLOP counter) stack above.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        policy = routing_policy(routing) if isinstance(routing, str) else routing
        self.limits = limits or Limits()
        self.oracle = Oracle(policy, limits=self.limits, overrides=overrides)
        self.user_rules = dict(rules or {})
        self.autograd = autograd
        self.disguise = Disguise(device)
        self.real_storages = RealStorages()
        self.recorder: OpRecorder | None = None
        self.other_ranks: OtherRanks | None = None
        self.ops_dispatched = 0
        self._cache: dict[tuple[Any, ...], ShapeCacheEntry] = {}
        self._pointwise: dict[int, bool] = {}
        self._check_at = 0  # the op at which the limits are looked at next
        self._ops_before = 0
        self._budget = WorkBudget()
        self._open: list[ExitStack] = []  # one per nested entry
        self._depth = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap every dispatch in `torch._disable_dynamo`: 2 microseconds per op.
        return False

    # ---- opening and closing

    @puts_back  # until it has returned, nobody would undo what it did
    def __enter__(self) -> Engine:
        with ExitStack() as opening:
            opening.enter_context(OneRun())
            if self._depth == 0:
                _refuse_other_modes()
                self.disguise.inside = 0  # whatever an interrupted run left
                self._budget, self._ops_before = WorkBudget(), self.ops_dispatched
                self._check_at = self.ops_dispatched + min(OPS_BETWEEN_CHECKS, self._budget.max_ops)
                opening.enter_context(Environment(self.disguise))
                if self.autograd:
                    opening.enter_context(training_patches(is_cuda=self.disguise.is_cuda))
                else:
                    opening.enter_context(torch.no_grad())
                    # Not inference_mode: its tensors refuse views of ordinary parameters.
                    opening.enter_context(torch._C._AutoDispatchBelowADInplaceOrView())
            super().__enter__()  # type: ignore[no-untyped-call]
            opening.push(super().__exit__)
            self._depth += 1
            opening.callback(self._leave)
            ENGINES.open.append(self)
            ENGINES.latest = self
            opening.enter_context(Interruptible())
            self._open.append(opening.pop_all())
        return self

    @puts_back
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)

    def _leave(self) -> None:
        self._depth -= 1
        ENGINES.open.pop()

    @contextmanager
    def recording(self, builder: CallGraphBuilder) -> Iterator[OpRecorder]:
        """Write every op, oracle answer and freed storage into `builder` while the block runs."""
        recorder = OpRecorder(builder, self.disguise.shown, self.real_storages)
        try:
            self.recorder = recorder
            self.oracle.on_answer = builder.answer
            Storage.on_free = builder.free
            yield recorder
        finally:
            Storage.on_free = None
            self.oracle.on_answer = None
            self.recorder = None
            self.real_storages.forget_tensors()

    # ---- what a caller does

    def run(self, forward: Callable[[], T]) -> T:
        """Call `forward` under the engine; if it raises because of an oracle comparison, revise that and try again.

        A weightless run takes a fraction of a second, so a wrong guess (`if x.max() > limit: raise`) is cheaper to take
        back than to foresee. Errors that no guess can cause are raised at once, and the first error is the one that is
        raised when no revision helps. What was revised is in the record: the answer's policy says so.
        """
        first: Exception | None = None
        for _ in range(_RETRIES + 1):
            self.oracle.begin_run()
            try:
                with self:
                    return forward()
            except PerfOptError:
                raise  # a refusal, or recorded counts that do not fit: no other guess would make it right
            except _OF_A_GUESS as error:
                first = first or error
                if self.oracle.revise(error) is None:
                    break
        assert first is not None
        raise first

    def ghost(self, *shape: int, dtype: torch.dtype = torch.float32) -> Ghost:
        """A tensor without values, to be used as input."""
        return new_ghost(contiguous_spec(shape, dtype))

    def adopt(self, module: T) -> T:
        """Turn the parameters and meta buffers of a module built elsewhere into ghosts, keeping ties."""
        return adopt_module(module)

    def materialise(self, tensor: torch.Tensor, why: str) -> torch.Tensor:
        """A real tensor in place of a ghost, where code needs values."""
        if type(tensor) is not Ghost:
            return tensor
        spec, uniform = tensor.spec, tensor.memory.uniform
        if spec.numel > 4 * self.limits.stand_in:
            raise Refusal(
                f"{why} of a ghost with {spec.numel:,} elements",
                why="inventing that many values would take more memory than the run",
                fix="patch the code that reads them, or raise Limits.stand_in",
            )
        with _disable_current_modes():
            if uniform is not None:
                return torch.full(spec.shape, uniform, dtype=spec.dtype)
            counts = choice_counts(tensor)
            return self.oracle.values(spec) if counts is None else choice_of(counts, spec)

    def new_block(self, tensor: Ghost) -> None:
        """The ghost has memory under a new number."""
        if self.recorder is not None:
            self.recorder.builder.allocate(tensor.memory.number, tensor.spec.bytes)

    # ---- dispatch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops_dispatched += 1
        if self.ops_dispatched >= self._check_at:
            self._check_limits()
        disguise = self.disguise
        disguise.inside += 1  # our own machinery sees the true device
        try:
            return self.dispatch(func, types, args, kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            locate(error, func, self.recorder)
            raise
        finally:
            disguise.inside -= 1

    def _check_limits(self) -> None:
        ops = self.ops_dispatched - self._ops_before
        reached = self._budget.exceeded(ops)
        if reached is not None:
            raise reached
        self._check_at = self.ops_dispatched + max(1, min(OPS_BETWEEN_CHECKS, self._budget.max_ops - ops + 1))

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """One op, by one of the four ways."""
        if type(func) is not torch._ops.OpOverload:
            if is_collective(func):
                return run_collective(self, func, args)
            return run_higher_order(self, func, args, kwargs or _EMPTY)
        if not types:
            return real_ops.run_real(self, func, args, kwargs or _EMPTY)
        if (types[0] is not Ghost or len(types) > 1) and any(map(takes_ops_apart, types)):
            return NotImplemented  # a DTensor: its ops come back on the tensors that this rank holds
        rule = VALUE_RULES.get(id(func))
        if rule is None:
            return self.propagate(func, args, kwargs)
        output = rule(self, func, args, kwargs or _EMPTY)
        if output is NotImplemented:
            return self.propagate(func, args, kwargs)
        if type(output) is fallbacks.Done:
            return output.value
        if self.recorder is not None:
            self.recorder.observe(func, args, kwargs or _EMPTY, output)
        return output

    def propagate_unrecorded(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`propagate` for a value rule; the rule's op is recorded when the rule returns."""
        recorder, self.recorder = self.recorder, None
        try:
            return self.propagate(func, args, kwargs)
        finally:
            self.recorder = recorder

    def propagate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Follow the recipe of an op that has ghosts among its arguments, finding it first if it is new."""
        pointwise = self._pointwise.get(id(func))
        if pointwise is None:
            pointwise = self._pointwise[id(func)] = is_pointwise(func)
        # The shapes of an element-wise op do not depend on the numbers it is given, so one recipe serves all of them.
        key_list, tensors = shape_key(func, args, kwargs) if pointwise else op_key(func, args, kwargs)
        key = tuple(key_list)
        entry = self._cache.get(key)
        if entry is None:
            traced = self._find(func, args, kwargs or _EMPTY)
            if not isinstance(traced, ShapeCacheEntry):
                return traced.value
            entry = self._cache[key] = traced
        spec = entry.fresh
        output = new_ghost(spec) if spec is not None else entry.recipe.follow(self.oracle, args, kwargs or _EMPTY)
        if entry.mutates:
            self.note_write(args, kwargs or _EMPTY)
        if self.recorder is not None:
            kind = entry.kind
            if kind is None:  # made when a recorder first sees the entry: it takes longer than the shapes
                kind = entry.kind = self._kind(func, args, kwargs or _EMPTY, output)
                entry.scratch = scratch_bytes(func, args, kwargs or _EMPTY, is_cuda=self.disguise.is_cuda)
            self.recorder.hit(kind, tensors, output, entry.scratch)
        return output

    def _kind(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> OpKind:
        assert self.recorder is not None
        parts = composite_parts(func, args, kwargs, self.recorder)
        kind = self.recorder.kind(func, args, kwargs, list(flat_tensors(output)), parts=parts)
        group = functional_facts(func, args, kwargs)
        return kind if group is None else replace(kind, arguments={**kind.arguments, **group})

    def _find(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ShapeCacheEntry | fallbacks.Done:
        user_rule = self.user_rules.get(func) or self.user_rules.get(func._overloadpacket)
        if user_rule is not None:
            output = user_rule(self, *args, **kwargs)
            if self.recorder is not None:
                self.recorder.observe(func, args, kwargs, output)
            return fallbacks.Done(output)
        rule = SHAPE_RULES.get(id(func))
        # A rule declines what it does not know, and torch's meta kernel is asked; only then the fallbacks.
        recipe = rule(self, func, args, kwargs) if rule is not None else NotImplemented
        if recipe is NotImplemented:
            return self._find_on_meta(func, args, kwargs)
        return ShapeCacheEntry(func, recipe)

    def _find_on_meta(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ShapeCacheEntry | fallbacks.Done:
        twins = propagation.meta_arguments(args, kwargs)
        try:
            output = func(*twins.args, **twins.kwargs)
            recipe = propagation.describe(func, output, twins, self.limits)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            return fallbacks.without_meta(self, func, args, kwargs, error)
        if func in propagation.CHANGES_LAYOUT and type(args[0]) is Ghost:
            propagation.relabel(args[0], twins.args[0])
            if self.recorder is not None:
                self.recorder.observe(func, args, kwargs, args[0])
            return fallbacks.Done(args[0])
        return ShapeCacheEntry(func, recipe)

    # ---- writes

    def note_write(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """After an in-place op: what was known of a ghost holds no more, a real float buffer holds stale values."""
        target = args[0] if args else kwargs.get("self")
        for tensor in (target, kwargs.get("out")):
            if type(tensor) is Ghost:
                tensor.memory.uniform = tensor.memory.counts = tensor.memory.chosen = None
            elif isinstance(tensor, torch.Tensor) and spec_of_tensor(tensor).is_float:
                self.real_storages.taint(tensor)


def _refuse_other_modes() -> None:
    """A run within another one, or under FakeTensorMode, would see neither world whole."""
    if ENGINES.open:
        raise PerfOptError(
            "A weightless run is open in this thread already.",
            why="the model code that is being traced has started another one",
            fix="start a trace before or after a traced forward, not inside it",
        )
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise PerfOptError(
            "FakeTensorMode is on in this thread.",
            why="a weightless run needs the same place in torch's dispatcher, and torch has only one",
            fix="leave the FakeTensorMode block before tracing",
        )


stands_by(Engine)
