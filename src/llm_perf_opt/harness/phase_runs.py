"""One real run of all phases of a model: each begins with what the one before it left, and every stage is watched.

Some models write down in one phase, in attributes of their modules, what a later phase reads: the offset between
positions and tokens that an image causes, a table of angles for the longest sequence so far. Such a phase says the
truth only after the one before it; `state_of` and `is_same_state` find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import DECODE, PREPROCESS, SAMPLING
from llm_perf_opt.core.protocols import StageWatch
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.target import PhaseBefore, Stage, Target
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.stage_ranges import ranges_named, stages_watched
from llm_perf_opt.harness.trace_header import autocast_of
from llm_perf_opt.harness.twins import tensors_in

_OWN_TABLES = frozenset(("_modules", "_parameters", "_buffers"))  # of torch: their entries count, not the tables

State = Mapping[tuple[str, str], object]  # (path of a module, attribute) -> its value


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasesDone:
    """What a run made: the tokens of the first sequence, and lengths. `input_shapes` belong to the first phase."""

    token_ids: tuple[int, ...]
    decode_steps: int
    cache_tokens: int | None  # None: the model does not tell
    input_shapes: tuple[tuple[int, ...], ...]


@torch.no_grad()
def run_phases(
    model: torch.nn.Module,
    targets: Sequence[Target],
    watch: StageWatch,
    *,
    device: str,
    eos_token_id: int | None = None,
    ranges: str = "none",
) -> PhasesDone:
    """Run the phases of one workload in order, the most likely token after each step.

    `eos_token_id` ends the run; None never does. `ranges` names "stages", or "modules" too, in the profilers' records.
    The inputs are made as the stage "preprocess", a token is chosen as the stage "sampling".
    """
    with OneRun(), silenced(), _cuda_calls_stay(device), ranges_named(model, watch, ranges) as watched:
        return _Run(model, watched, device, eos_token_id).of(targets)


class _Run:
    """The state that phases hand on. Nothing of an earlier phase is held while the next one runs."""

    def __init__(self, model: torch.nn.Module, watch: StageWatch, device: str, eos_token_id: int | None) -> None:
        self._model, self._watch, self._device = model, watch, device
        self._sampling = _Sampling(watch, eos_token_id)

    def of(self, targets: Sequence[Target]) -> PhasesDone:
        before: PhaseBefore | None = None
        shapes: tuple[tuple[int, ...], ...] = ()
        steps, held = 0, None
        for target in targets:
            start = self._start(target, before)
            if before is None:
                shapes = tuple(tuple(tensor.shape) for tensor in tensors_in(start))
            before = None
            calls, output = self._phase(target, start)
            steps += calls if target.phase == DECODE else 0
            held = _held_tokens(target, output, steps)
            token = None if target.chain.logits is None else self._sampling(target.chain.logits(output))
            if self._sampling.is_over:
                break
            before = PhaseBefore(start=start, output=output, token=token, choose=self._sampling)
            del output
        return PhasesDone(
            token_ids=self._sampling.token_ids(), decode_steps=steps, cache_tokens=held, input_shapes=shapes
        )

    def _start(self, target: Target, before: PhaseBefore | None) -> object:
        with _made_on(self._device):
            if before is None and target.prepare is not None:
                with self._watch.stage(PREPROCESS):
                    return target.start(self._model)
            if before is None or target.chain.follow is None:
                return target.start(self._model)
            return target.chain.follow(self._model, before)

    def _phase(self, target: Target, start: object) -> tuple[int, object]:
        """The calls of the model, and what the phase returned."""
        watch = _PhaseWatch(target, self._watch)
        stages = (Stage(name=target.phase, paths=("",)), *target.stages)
        with stages_watched(self._model, stages, watch, target.chain.entry), autocast_of(target, self._model):
            output = target.run(self._model, start)
        if not watch.calls:
            raise PerfOptError(
                f"The {target.phase} of {target.model} never called {target.chain.entry} of the model.",
                why="a step is timed as one such call, so there is nothing to time",
                fix="name the method that it calls in the target: chain=Chain(entry=...)",
            )
        return watch.calls, output


class _PhaseWatch:
    """Passes stages on, counts the calls of the model, and refuses a stage if the cache holds its work already."""

    def __init__(self, target: Target, watch: StageWatch) -> None:
        self.calls = 0
        self._phase = target.phase
        self._cached = frozenset(target.chain.cached_stages)
        self._watch = watch

    def stage(self, name: str) -> AbstractContextManager[object]:
        if name == self._phase:
            self.calls += 1
        elif name in self._cached:
            raise PerfOptError(
                f"The stage {name!r} ran during {self._phase}.",
                why="a decode step must see one token and the cache, not the page",
                fix="check that the model's forward skips this stage when it is given a single token",
            )
        return self._watch.stage(name)


class _Sampling:
    """Chooses the most likely token, as a stage of its own.

    Without an end token the ids stay on the device until the run is over, so that no step waits for the host.
    """

    def __init__(self, watch: StageWatch, eos_token_id: int | None) -> None:
        self.is_over = False
        self._watch = watch
        self._eos_token_id = eos_token_id
        self._tokens: list[Tensor] = []

    def __call__(self, logits: Tensor) -> Tensor | None:
        with self._watch.stage(SAMPLING):
            token = logits[:, -1].argmax(dim=-1, keepdim=True)
            self._tokens.append(token)
            if self._eos_token_id is not None and bool((token == self._eos_token_id).all()):
                self.is_over = True
                return None
        return token

    def token_ids(self) -> tuple[int, ...]:
        """Of the first sequence."""
        return tuple(torch.cat(self._tokens, dim=1)[0].tolist()) if self._tokens else ()


def _held_tokens(target: Target, output: Any, steps: int) -> int | None:
    """How many tokens the cache holds; it must be the context and one for each step, where both are known."""
    if target.chain.cache_tokens is None:
        return None
    held = target.chain.cache_tokens(output)
    context = target.workload.get("context_tokens")
    if context is not None and held != context + steps:
        raise PerfOptError(
            f"The cache holds {held} tokens after a prompt of {context} and {steps} decode steps.",
            why="each step must add one token to it; figures by context length would be wrong",
            fix="check the forward's handling of past_key_values",
        )
    return held


def _made_on(device: str) -> AbstractContextManager[object]:
    """Tensors without a device of their own are made on this one; on a CPU they are anyway."""
    return nullcontext() if device == "cpu" else torch.device(device)


@contextmanager
def _cuda_calls_stay(device: str) -> Iterator[None]:
    """Some model code moves tensors with `.cuda()` wherever it runs; on a CPU that call leaves them where they are."""
    if torch.device(device).type == "cuda":
        yield
        return
    with ThreadPatches() as patches:
        patches.replace(torch.Tensor, "cuda", lambda tensor, *args, **kwargs: tensor)
        yield


def state_of(model: torch.nn.Module) -> State:
    """Every attribute and every buffer of all modules."""
    return {(path, name): value for path, module in model.named_modules() for name, value in _attributes(module)}


def is_same_state(before: State, after: State) -> bool:
    """Whether each attribute holds the same object, or an equal number or text."""
    return before.keys() == after.keys() and all(_is_same(value, after[key]) for key, value in before.items())


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    yield from ((name, value) for name, value in vars(module).items() if name not in _OWN_TABLES)
    yield from module.named_buffers(recurse=False)


def _is_same(before: object, after: object) -> bool:
    if before is after:
        return True
    plain = (bool, int, float, str)
    return isinstance(before, plain) and isinstance(after, plain) and before == after
