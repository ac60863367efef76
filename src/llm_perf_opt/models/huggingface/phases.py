"""Prefill and decode of any transformers model, as plain torch code that runs on real tensors and on ghosts alike.

What a prefill leaves in the cache is kept without its tensors, so that a decode phase stands alone.

Each phase is prepared before it runs: its inputs, and for a decode the cache that a prefill would have left, are there
when it begins.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from llm_perf_opt.core.target import Chain, Choose, PhaseBefore, World
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.models.huggingface.inputs import Plan, make_inputs
from llm_perf_opt.models.huggingface.inputs.plan import LOGITS_ARGUMENTS, Integers
from llm_perf_opt.models.huggingface.inputs.search import REJECTIONS
from llm_perf_opt.weightless import Engine


class ZerosLike:
    """Where a tensor was: rebuilt as zeros of the same shape and dtype."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype

    def make(self) -> torch.Tensor:
        """The tensor, on the device of the moment."""
        return torch.zeros(self.shape, dtype=self.dtype)


def without_tensors(value: Any) -> Any:
    """A copy of a cache (tuples, lists, dicts, objects) in which every tensor is a `ZerosLike`."""
    return _copied(value, {}, lambda leaf: ZerosLike(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def with_zeros(template: Any) -> Any:
    """A fresh cache from the template; each call makes its own, since a decode step writes into it."""
    return _copied(template, {}, lambda leaf: leaf.make() if isinstance(leaf, ZerosLike) else leaf)


def _copied(value: Any, seen: dict[int, Any], leaf: Callable[[Any], Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)]
    match value:
        case torch.Tensor() | ZerosLike():
            made = leaf(value)
        case dict():
            made = copy.copy(value)
            seen[id(value)] = made
            made.update({key: _copied(item, seen, leaf) for key, item in value.items()})
            _copy_attributes(value, made, seen, leaf)
        case list():
            made = [_copied(item, seen, leaf) for item in value]
        case tuple():
            items = [_copied(item, seen, leaf) for item in value]
            made = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        case _ if _is_plain_object(value):
            made = copy.copy(value)
            seen[id(value)] = made
            _copy_attributes(value, made, seen, leaf)
        case _:
            made = value
    seen[id(value)] = made
    return made


def _copy_attributes(value: Any, made: Any, seen: dict[int, Any], leaf: Callable[[Any], Any]) -> None:
    for name, item in vars(value).items() if hasattr(value, "__dict__") else ():
        object.__setattr__(made, name, _copied(item, seen, leaf))


def _is_plain_object(value: Any) -> bool:
    """A cache or one of its layers: an instance with attributes, and neither a class, a module nor a configuration."""
    is_shared = isinstance(value, type | torch.nn.Module) or callable(value) or hasattr(value, "to_dict")
    return hasattr(value, "__dict__") and not is_shared


CACHES = ("past_key_values", "cache_params", "state", "mems")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeState:
    """What the prefill left for the next step, and how to ask for it.

    `with_mask`: whether the step carries a mask over the whole context. Without one every position is visible, which is
    the same for an unpadded prompt; some models accept only the one, some only the other, and a state space model that
    accepts both stretches its one token over all positions of a mask.

    `new_tokens`: how many a step computes. With more than one the model's own code hides from each those that follow
    it, as in a prefill.
    """

    entry: str
    cache_name: str
    cache: Any
    encoder_states: Any
    context_tokens: int
    batch: int
    token: int
    with_mask: bool
    new_tokens: int = 1

    def tokens(self) -> torch.Tensor:
        """The ids of one step: always the same, which changes no shape."""
        return torch.full((self.batch, self.new_tokens), self.token)


@dataclass(slots=True, kw_only=True)
class DecodeStart:
    """What a decode begins with; the cache is handed to the first step and not kept here."""

    entry: str
    cache_name: str
    cache: Any
    token_name: str
    steps: list[dict[str, Any]]  # the other arguments of each step, and the token of the first in each
    choose: Choose


def prefill(model: Any, inputs: dict[str, Any], entry: str = "forward") -> Any:
    """One forward over everything that is known at the start; models without a forward name another method."""
    with torch.no_grad():
        return _entered(model, entry)(**inputs)


def _entered(model: Any, entry: str) -> Any:
    return model if entry == "forward" else getattr(model, entry)


def decode_state(output: Any, plan: Plan, entry: str, *, with_mask: bool, new_tokens: int = 1) -> DecodeState | None:
    """What a decode needs from the output of a prefill; None when it left no cache to continue from."""
    name = next((name for name in CACHES if getattr(output, name, None) is not None), None)
    ids = plan.get("decoder_input_ids", plan.get("input_ids"))
    if name is None or not isinstance(ids, Integers) or len(ids.shape) != 2:
        return None
    return DecodeState(
        entry=entry,
        cache_name=name,
        cache=without_tensors(getattr(output, name)),
        encoder_states=without_tensors(getattr(output, "encoder_last_hidden_state", None)),
        context_tokens=ids.shape[1],
        batch=ids.shape[0],
        token=ids.values[-1],
        with_mask=with_mask,
        new_tokens=new_tokens,
    )


def prepare_decode(state: DecodeState, plan: Plan, steps: int) -> DecodeStart:
    """A decode that stands alone: a cache of zeros as long as the prefill left it, and `steps` forwards on it."""
    cache = with_zeros(state.cache)
    token = state.tokens()
    given = _steps(state, plan, steps, token, with_zeros(state.encoder_states))
    return _decode_start(state, cache, given, lambda _: token)


def follow_prefill(_: Any, before: PhaseBefore, state: DecodeState, plan: Plan, steps: int) -> DecodeStart:
    """A decode that continues a prefill: its cache, and the tokens that are chosen, where the model gives logits."""
    is_chosen = before.token is not None and state.new_tokens == 1
    token = before.token if is_chosen else state.tokens()
    encoded = None if state.encoder_states is None else before.output.encoder_last_hidden_state
    given = _steps(state, plan, steps, token, encoded)
    return _decode_start(
        state, getattr(before.output, state.cache_name), given, before.choose if is_chosen else lambda _: token
    )


def _decode_start(state: DecodeState, cache: Any, steps: list[dict[str, Any]], choose: Choose) -> DecodeStart:
    return DecodeStart(
        entry=state.entry,
        cache_name=state.cache_name,
        cache=cache,
        token_name="input_ids" if state.encoder_states is None else "decoder_input_ids",
        steps=steps,
        choose=choose,
    )


def decode(model: Any, start: DecodeStart) -> Any:
    """One forward for each step that was prepared, until there is no further token."""
    cache, start.cache = start.cache, None
    call, output, token = _entered(model, start.entry), None, start.steps[0][start.token_name]
    with torch.no_grad():
        for arguments in start.steps:
            output = call(**{**arguments, start.token_name: token, start.cache_name: cache}, use_cache=True)
            cache = getattr(output, start.cache_name)
            token = start.choose(getattr(output, "logits", None))
            if token is None:
                break
    return output


def cache_tokens(cache_name: str, output: Any) -> int:
    """How many tokens the cache of an output holds, as the cache says it."""
    return int(getattr(output, cache_name).get_seq_length())


def generate_passes_mask(model: Any, state: DecodeState) -> bool:
    """Whether the model's own `generate` hands a step the mask that `state` asks for, or drops it after the prefill."""
    cache = {state.cache_name: with_zeros(state.cache)}
    (step,) = _steps(state, {}, 1, state.tokens(), with_zeros(state.encoder_states))
    generator = _entered(model, state.entry)
    given = generator.prepare_inputs_for_generation(**step, **cache, use_cache=True, is_first_iteration=False)
    return given.get("attention_mask") is not None


def _encoder_output(states: Any) -> Any:
    """What `generate` hands to every step; its fields can be asked for by name and by number."""
    outputs = importlib.import_module("transformers.modeling_outputs")
    return outputs.BaseModelOutput(last_hidden_state=states)


def _steps(
    state: DecodeState, plan: Plan, steps: int, token: torch.Tensor, encoder_states: Any
) -> list[dict[str, Any]]:
    """What each step takes besides the cache; masks are views of the last one, so that many steps take no more memory.

    Of several new tokens the logits are asked for as the prefill asks for them: of the last one where it can be told.
    """
    logits_arguments = {name: plan[name] for name in LOGITS_ARGUMENTS if name in plan and state.new_tokens > 1}
    logits = make_inputs(logits_arguments)
    if encoder_states is not None:
        given = {"attention_mask": plan["attention_mask"]} if "attention_mask" in plan else {}
        encoded = {"encoder_outputs": _encoder_output(encoder_states), **make_inputs(given)}
        return [{"decoder_input_ids": token, **encoded, **logits} for _ in range(steps)]
    if not state.with_mask:
        return [{"input_ids": token, **logits} for _ in range(steps)]
    ends = [state.context_tokens + state.new_tokens * step for step in range(1, steps + 1)]
    mask = torch.ones((state.batch, ends[-1]), dtype=torch.int64)
    return [{"input_ids": token, "attention_mask": mask[:, :end], **logits} for end in ends]


class ModelProbe:
    """A weightless copy of the model, and what its last prefill returned.

    `decode_refusal` is what the model said when it would not continue after a prefill that left a cache.
    """

    def __init__(self, build: Callable[[], Any], dtype: torch.dtype, world: World | None = None) -> None:
        self._engine = Engine(device="cuda")
        self._engine.other_ranks = None if world is None else world.integers
        self._dtype = dtype
        with self._engine:
            self.model = self._engine.adopt(build())
        self.output: Any = None
        self.decode_refusal: Exception | None = None

    def prefill(self, plan: Plan, entry: str) -> None:
        """Run once with `plan`; whatever the model raises is for the caller to learn from."""
        self.output = self._engine.run(lambda: prefill(self.model, make_inputs(plan, self._dtype), entry))

    def decode_state(self, plan: Plan, entry: str, new_tokens: int = 1) -> DecodeState | None:
        """How to continue after the last prefill, or None when the model keeps no cache or refuses to go on."""
        masked = decode_state(self.output, plan, entry, with_mask=True, new_tokens=new_tokens)
        if masked is None:
            return None
        bare = replace(masked, with_mask=False)
        for state in (masked, bare) if self._passes_mask(masked) else (bare, masked):
            try:
                self._engine.run(lambda state=state: decode(self.model, prepare_decode(state, plan, 1)))  # type: ignore[misc]
            except REJECTIONS as error:
                self.decode_refusal = self.decode_refusal or error
            else:
                return state
        return None

    def chain(self, plan: Plan, entry: str, *, generates: bool) -> Chain:
        """What a real run may read of the last prefill: logits to choose a token from, and the length of the cache."""
        logits = getattr(self.output, "logits", None)
        is_choice = generates and isinstance(logits, torch.Tensor) and logits.ndim == 3
        state = decode_state(self.output, plan, entry, with_mask=True)
        return Chain(
            entry=entry,
            logits=attrgetter("logits") if is_choice else None,
            cache_tokens=None
            if state is None or not self._tells_length(state)
            else partial(cache_tokens, state.cache_name),
        )

    def _tells_length(self, state: DecodeState) -> bool:
        """Whether the cache says that it holds the tokens that were fed; some are no caches of tokens."""
        try:
            return cache_tokens(state.cache_name, self.output) == state.context_tokens
        except REJECTIONS:
            return False

    def step_shapes(self, state: DecodeState, plan: Plan) -> dict[str, list[int]]:
        """Argument -> shape of the first step, the cache apart."""
        with self._engine:
            (step,) = prepare_decode(state, plan, 1).steps
        return {name: list(tensor.shape) for name, value in step.items() for tensor in tensors_in(value)}

    @property
    def encoder_tokens(self) -> int | None:
        """Positions that the encoder of the last prefill handed to its decoder; None where there is no encoder."""
        states = getattr(self.output, "encoder_last_hidden_state", None)
        return states.shape[1] if isinstance(states, torch.Tensor) and states.ndim == 3 else None

    def _passes_mask(self, state: DecodeState) -> bool:
        """What `generate` does; where it cannot be asked, the mask comes first: most models take one."""
        try:
            return self._engine.run(lambda: generate_passes_mask(self.model, state))
        except REJECTIONS:
            return True
