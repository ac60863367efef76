"""The oracle: every value the run needs and no tensor holds, answered in one place and written down.

Answers are in range, deterministic and away from zero, so that unmodified control flow goes on. They are where a
weightless trace is a model of the run and not the run itself; `on_answer` receives each of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.weightless.refusal import Site, calling_site, failing_site, site_text
from llm_perf_opt.weightless.routing import RoutingPolicy, UniformRouting
from llm_perf_opt.weightless.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest tensors, in elements, that the engine holds or computes for real.

    Integers and booleans stay real far longer than floats, because they steer control flow. Above a limit a tensor is a
    ghost, and asking it for values is an oracle answer.
    """

    real_float: int = 1 << 20
    real_integer: int = 1 << 23
    eager_mask: int = 1 << 16  # a larger comparison of activations stays a ghost: usually only `where` reads it
    stand_in: int = 1 << 24  # total input of an op that runs its CPU kernel on invented values
    routing: int = 1 << 20  # above it `topk` indices stay a ghost
    routed_counts: int = 1 << 12  # candidates of which such a ghost knows how often each is chosen: no indexer's
    same_site_answers: int = 1000  # a comparison asked this often at one line is a loop: it gets the other answer


# A last dimension this long is a vocabulary: answers stay clear of the special tokens at either end.
_VOCABULARY = 8192

_TRUE_OPS = frozenset({"isfinite", "ne", "not_equal", "isreal", "any", "all"})
_FALSE_OPS = frozenset({"isnan", "isinf", "isneginf", "isposinf", "eq", "equal", "isclose", "signbit"})

AnswerSink = Callable[[str, str, str], None]


class Oracle:
    """Answers for values, by a fixed policy per question.

    `overrides` maps a site, given as the end of `file.py:line`, to the value that a scalar question there receives.
    """

    def __init__(
        self,
        routing: RoutingPolicy | None = None,
        *,
        limits: Limits | None = None,
        overrides: Mapping[str, bool | int | float] | None = None,
    ) -> None:
        self.routing: RoutingPolicy = routing or UniformRouting()
        self.limits = limits or Limits()
        self.on_answer: AnswerSink | None = None
        self._overrides = dict(overrides or {})
        self._asked: Counter[Site] = Counter()
        self._flipped: dict[Site, bool] = {}
        self._undecided: dict[Site, bool] = {}  # comparison sites in order of last use -> is a tensor, not a scalar
        self._forced: dict[Site, bool] = {}
        self._revised_after: dict[Site, str] = {}  # a forced comparison -> the error that the first guess led to
        self._routing_calls = 0

    def begin_run(self) -> None:
        """Forget what depends on the order of questions; decisions forced by `revise` stay."""
        self._asked.clear()
        self._undecided.clear()
        self._routing_calls = 0

    def revise(self, error: Exception) -> Site | None:
        """After the model raised: change the most recent comparison that can still change, and say which.

        An assertion of the model is about a guess only where the comparison stands in the assertion itself.
        """
        if isinstance(error, (RecursionError, torch.OutOfMemoryError)):
            return None  # RuntimeErrors to Python
        recent = list(reversed(self._undecided))
        if isinstance(error, AssertionError):
            failed = failing_site(error)
            recent = [site for site in recent if site == failed]
        for site in recent:
            if site not in self._forced:
                self._forced[site] = True
                self._revised_after[site] = type(error).__name__
                return site
        for site in recent:
            if self._forced[site] and self._undecided[site]:
                self._forced[site] = False
                return site
        return None

    def revisions(self) -> list[str]:
        """A sentence for each guess that the last run revised."""
        return [
            f"A guess was revised: with the first answer at {site_text(site)} the model raised {after}."
            for site, after in self._revised_after.items()
            if site in self._undecided
        ]

    def note(self, op: str, policy: str, site: Site | None = None) -> None:
        """Write one answer down."""
        if self.on_answer is not None:
            self.on_answer(op, policy, site_text(site or calling_site()))

    # ---- scalars

    def item(self, spec: Spec, op: str = "item") -> Any:
        """One Python number: 1 of its kind, 0 at a site that keeps asking, or what the site was told to answer."""
        site = calling_site()
        override = self._override(site)
        if override is not None:
            self.note(op, f"override {override}", site)
            return override
        self.note(op, "one", site)
        is_loop = self._is_loop(site)
        if spec.dtype is torch.bool:
            return not is_loop
        if spec.dtype.is_complex:
            return complex(0 if is_loop else 1)
        return (0.0 if is_loop else 1.0) if spec.is_float else (0 if is_loop else 1)

    # ---- tensors

    def values(self, spec: Spec, func: Any = None) -> torch.Tensor:
        """A real tensor for a ghost that has to have values; `func` is the op that made it."""
        name = func._overloadpacket.__name__ if func is not None else "value"
        if spec.dtype is torch.bool:
            return self._comparison(spec, func, name)
        self.note(name, "constant")
        if spec.is_float:
            return torch.full(spec.shape, 0.5, dtype=spec.dtype)
        return torch.ones(spec.shape, dtype=spec.dtype)

    def _comparison(self, spec: Spec, func: Any, name: str) -> torch.Tensor:
        if name in _FALSE_OPS:
            self.note(name, "false")
            mask = torch.zeros(spec.shape, dtype=torch.bool)
            if func is torch.ops.aten.eq.Tensor and spec.numel and spec.ndim:
                mask.select(-1, 0).fill_(True)  # `x == x.max(-1)`: one hit per row
            return mask
        if name in _TRUE_OPS:
            self.note(name, "true")
            return torch.ones(spec.shape, dtype=torch.bool)
        site = calling_site()
        decided = self._decide(site, is_tensor=spec.numel > 1)
        if decided is not None:
            after = self._revised_after.get(site)
            self.note(name, f"decided {decided}" + (f", revised after {after}" if after else ""), site)
            return torch.full(spec.shape, decided, dtype=torch.bool)
        if spec.numel <= 1:  # `if x.min() < low: raise`, `while error > tolerance`
            self.note(name, "false", site)
            return torch.zeros(spec.shape, dtype=torch.bool)
        self.note(name, "alternating", site)
        return (torch.arange(spec.numel) % 2 == 0).view(spec.shape)

    def _decide(self, site: Site, *, is_tensor: bool) -> bool | None:
        self._undecided.pop(site, None)
        self._undecided[site] = is_tensor
        override = self._override(site)
        if override is not None:
            return bool(override)
        if site in self._forced:
            return self._forced[site]
        if self._is_loop(site):
            self._flipped[site] = not self._flipped.get(site, True)
            return self._flipped[site]
        return None

    def _is_loop(self, site: Site) -> bool:
        self._asked[site] += 1
        if self._asked[site] <= self.limits.same_site_answers:
            return False
        self._asked[site] = 0
        return True

    def _override(self, site: Site) -> bool | int | float | None:
        if not self._overrides:
            return None
        place = site_text(site).split(" in ", maxsplit=1)[0]
        return next((value for suffix, value in self._overrides.items() if place.endswith(suffix)), None)

    @staticmethod
    def uniform_verdict(func: Any) -> bool | None:
        """What a comparison too large to hold is known to be everywhere; `None` when it is mixed."""
        name = func._overloadpacket.__name__
        if name in _FALSE_OPS:
            return False
        return True if name in _TRUE_OPS else None

    # ---- selections

    def topk(self, shape: torch.Size, dim: int, k: int) -> torch.Tensor:
        """Indices of the k largest along `dim`: the routing policy's choice."""
        if not shape:
            return torch.zeros((), dtype=torch.long)
        dim %= len(shape)
        candidates = shape[dim]
        others = [*shape[:dim], *shape[dim + 1 :]]
        call_index, self._routing_calls = self._routing_calls, self._routing_calls + 1
        self.note("topk", self.routing.name)
        chosen = self.routing.choose(math.prod(others), candidates, k, call_index)
        if candidates >= _VOCABULARY:
            chosen = (chosen + candidates // 3) % candidates
        chosen = chosen.view([*others, k])
        return chosen.movedim(-1, dim).contiguous() if dim != len(shape) - 1 else chosen

    def topk_counts(self, shape: torch.Size, dim: int, k: int) -> torch.Tensor:
        """How often each candidate is among the k largest along `dim`, for a choice too large to be held."""
        candidates = shape[dim]
        call_index, self._routing_calls = self._routing_calls, self._routing_calls + 1
        self.note("topk", self.routing.name)
        return self.routing.counts(math.prod(shape) // candidates, candidates, k, call_index)

    def one_of(self, op: str, shape: tuple[int, ...], candidates: int) -> torch.Tensor:
        """An index in range for every element: argmax, multinomial, bucketize."""
        self.note(op, "in range")
        count = math.prod(shape)
        if candidates >= _VOCABULARY:
            return (candidates // 3 + torch.arange(count) % 97).view(shape)
        return (torch.arange(count) % max(candidates, 1)).view(shape)

    def identity_order(self, op: str, shape: torch.Size, dim: int) -> torch.Tensor:
        """The permutation of something already in order: sort, argsort, cummax."""
        self.note(op, "already in order")
        if not shape:
            return torch.zeros((), dtype=torch.long)
        dim %= len(shape)
        along = [-1 if axis == dim else 1 for axis in range(len(shape))]
        return torch.arange(shape[dim]).view(along).expand(shape).contiguous()
