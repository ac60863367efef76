"""Which change saves most: every rewrite applied to the setup and priced again, alone and after those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.advice.changes import CHANGES
from llm_perf_opt.advice.ladder import Ladder, ladder_of
from llm_perf_opt.advice.pricing import Pricer, request_band, seconds_of, steps_of
from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.callgraph.queries import shared_work
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.prices import shipped_prices
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.workload import steps_after_prompt
from llm_perf_opt.costs.memory.need import run_memory, shortage_of
from llm_perf_opt.serving.fit import fullest_traced_fit
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rates import Band

_HOUR_S, _MILLION = 3600, 1_000_000
ENGINE = "engine"
_THOSE_ABOVE = "those above"
_MORE = 1.1  # what a change has to save more than one that is preferred to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one change saves of a request, in seconds.

    `alone_s` is what it saves as the only change, or right after the one that it `needs`. `after_s` is what it saves
    after those above it, and `low_s` to `high_s` the same at both ends of the two times, which are wrong together.
    `where` names the stages that get faster, `step_s` is the time of a decode step with the change. `memory_bytes` is
    what a device then needs less, below zero where it needs more; None: not known. Prices are per million tokens
    generated, on the devices it then takes.
    """

    name: str
    title: str
    where: str
    needs: str  # the title of the change that has to come first; empty: none
    alone_s: float
    after_s: float
    low_s: float
    high_s: float
    left_s: float
    first_s: float
    step_s: float | None
    shared_by: int
    memory_bytes: int | None
    price_per_million: float | None
    how: str
    may_cost: str
    rests_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The ladder, what to change first, and, of code in PyTorch, what it could change and stay in PyTorch."""

    ladder: Ladder
    changes: tuple[Change, ...]
    in_code: tuple[Change, ...]
    written: Band  # one request as it runs now
    engine_s: float | None  # the same with an engine's kernels; None: one runs it already, or would not be faster
    price_per_million: float | None
    currency: str | None
    short_bytes: int | None  # what the run needs beyond the memory of a device; None: it fits, or nobody knows


def advise(
    setup: Setup,
    pricer: Pricer,
    *,
    output_tokens: int,
    measured_s: Mapping[str, float] | None = None,
    names: Sequence[str] | None = None,
) -> Advice:
    """The advice for a setup; `names` are the changes to try, by default all that are registered."""
    with shared_work():
        pricer.meet(setup, measured_s or {})
        _require_load(setup, pricer)
        advisor = _Advisor(setup, pricer, output_tokens)
        tried = {name: CHANGES.get(name) for name in names or CHANGES.names()}
        changes = advisor.ranked({name: one for name, one in tried.items() if not one.is_of_code}, setup)
        in_code = advisor.in_order({name: one for name, one in tried.items() if one.is_of_code}, setup)
        engine = replace(setup, execution=Execution.FUSED, rules=frozenset(), captured=frozenset())
        written, served = advisor.seconds(setup), None
        if not setup.is_engine and setup.decode is not None:
            served = advisor.seconds(engine)
        price = shipped_prices().get(setup.device.id)
        return Advice(
            ladder=ladder_of(setup, pricer, output_tokens, measured_s),
            changes=changes,
            in_code=in_code,
            written=advisor.time(setup),
            engine_s=served if served is not None and served < written else None,
            price_per_million=advisor.price(setup),
            currency=None if price is None else price.currency,
            short_bytes=_short_bytes(setup),
        )


@dataclass(slots=True)
class _Advisor:
    """Prices of whole requests."""

    first: Setup
    pricer: Pricer
    output_tokens: int

    def time(self, setup: Setup) -> Band:
        """One request."""
        return request_band(self.pricer.parts(setup), setup.graphs, self.output_tokens)

    def seconds(self, setup: Setup) -> float:
        """What is expected of it."""
        return seconds_of(self.time(setup))

    def changed(self, rewrite: Rewrite, setup: Setup) -> Setup | None:
        """The setup after a rewrite; None: it does not apply, or its time is not known."""
        changed = rewrite.apply(setup)
        if changed is None or changed == setup:
            return None
        if changed.load is not None and self.pricer.state(changed) is None:
            return None
        is_resized = changed.batch_factor != setup.batch_factor or changed.tp != setup.tp
        return changed if not is_resized or self.pricer.can_resize(setup) else None

    def ranked(self, rewrites: Mapping[str, Rewrite], setup: Setup) -> tuple[Change, ...]:
        """One after the other, each time the one that saves most of what is left; what saves nothing is not told.

        Nor is what loses time by itself: there two estimates disagree about a difference that is small.
        """
        ranked, first = list[Change](), setup
        left = {name: one for name, one in rewrites.items() if (self._saved_s(one, setup) or 0.0) >= 0}
        while left:
            tries = {name: self.changed(one, setup) for name, one in left.items()}
            now = self.seconds(setup)
            saved = {name: now - self.seconds(changed) for name, changed in tries.items() if changed is not None}
            found = {name: seconds for name, seconds in saved.items() if seconds > rewrites[name].least_share * now}
            best = max(found, key=lambda name: found[name], default=None)
            if best is not None and _MORE * found.get(rewrites[best].rather, 0.0) > found[best]:
                best = rewrites[best].rather
            if saved.get(ENGINE, 0.0) > 0 and self._with_the_next(tries[ENGINE], left) + saved[ENGINE] > (
                0.0 if best is None else found[best]
            ):
                best = ENGINE
            after = None if best is None else tries[best]
            if best is None or after is None:
                break
            del left[best]
            ranked.append(self._change(best, setup, after, self._alone(best, rewrites, first)))
            setup = after
        return tuple(ranked)

    def _with_the_next(self, setup: Setup | None, left: Mapping[str, Rewrite]) -> float:
        """What the best change after this setup saves in addition: an engine comes before what it makes worth while."""
        if setup is None:
            return 0.0
        return max((self._saved_s(one, setup) or 0.0 for one in left.values()), default=0.0)

    def in_order(self, rewrites: Mapping[str, Rewrite], setup: Setup) -> tuple[Change, ...]:
        """Changes of code, of which each leaves less to the others: by what they save alone, the largest first.

        One that another has to come before is taken as soon as it can be.
        """
        ranked, first = list[Change](), setup
        alone = {name: self._saved_s(one, setup) for name, one in rewrites.items()}
        left = sorted(rewrites, key=lambda name: (alone[name] is not None, -(alone[name] or 0.0)))
        while (best := next((name for name in left if self.changed(rewrites[name], setup)), None)) is not None:
            left.remove(best)
            after, now = self.changed(rewrites[best], setup), self.seconds(setup)
            if after is not None and now - self.seconds(after) > rewrites[best].least_share * now:
                ranked.append(self._change(best, setup, after, self._alone(best, rewrites, first)))
                setup = after
        return tuple(ranked)

    def _saved_s(self, rewrite: Rewrite, setup: Setup) -> float | None:
        changed = self.changed(rewrite, setup)
        return None if changed is None else self.seconds(setup) - self.seconds(changed)

    def _alone(self, name: str, rewrites: Mapping[str, Rewrite], setup: Setup) -> tuple[str, float | None]:
        """What a change needs before it, and what it saves right after that; None: it needs more than one."""
        if (saved := self._saved_s(rewrites[name], setup)) is not None:
            return "", saved
        for other in (one for key, one in rewrites.items() if key != name):
            before = self.changed(other, setup)
            saved = None if before is None else self._saved_s(rewrites[name], before)
            if saved is not None:
                return other.title, saved
        return _THOSE_ABOVE, None

    def _change(self, name: str, before: Setup, after: Setup, alone: tuple[str, float | None]) -> Change:
        old, new = self.time(before), self.time(after)
        edges = (old.low - new.low, seconds_of(old) - seconds_of(new), old.high - new.high)
        rewrite = CHANGES.get(name)
        return Change(
            name=name,
            title=rewrite.title,
            where=self._where(before, after),
            needs=alone[0],
            alone_s=edges[1] if alone[1] is None else alone[1],
            after_s=edges[1],
            low_s=min(edges),
            high_s=max(edges),
            left_s=seconds_of(new),
            first_s=self._first_s(after),
            step_s=self.step_s(after),
            shared_by=after.batch_factor,
            memory_bytes=_less_memory(before, after),
            price_per_million=self.price(after),
            how=rewrite.how,
            may_cost=rewrite.may_cost,
            rests_on=rewrite.rests_on,
        )

    def _first_s(self, setup: Setup) -> float:
        """Everything before decoding."""
        return sum(seconds_of(part.each) for part in self.pricer.parts(setup) if part.phase != DECODE)

    def step_s(self, setup: Setup) -> float | None:
        """What all sequences of a step wait for a token; None: nothing decodes."""
        decode = setup.decode
        if decode is None:
            return None
        parts = [part for part in self.pricer.parts(setup) if part.phase == DECODE]
        return sum(seconds_of(part.wall) for part in parts) / steps_of(decode)

    def _where(self, before: Setup, after: Setup) -> str:
        """The stages that get faster, the one that saves most of a request first."""
        times = [
            {(part.phase, part.name): seconds_of(part.each) for part in self.pricer.parts(setup)}
            for setup in (before, after)
        ]
        old, new = times
        steps = steps_after_prompt(self.output_tokens)
        saved = {key: (old[key] - new.get(key, old[key])) * (steps if key[0] == DECODE else 1) for key in old}
        whole = sum(seconds for seconds in saved.values() if seconds > 0) or 1.0
        faster = sorted((key for key in saved if saved[key] > 0.02 * whole), key=lambda key: -saved[key])
        return ", ".join(stage for _, stage in faster)

    def price(self, setup: Setup) -> float | None:
        """A million generated tokens on the devices of the setup; None without a price, or where nothing decodes."""
        price = shipped_prices().get(setup.device.id)
        if price is None or setup.decode is None:
            return None
        request_s = self.seconds(setup) / setup.sequences
        if (state := self.pricer.state(setup)) is not None:
            request_s = 1 / (state.requests_per_s * setup.replicas)
        return request_s / self.output_tokens * setup.devices * price.per_hour / _HOUR_S * _MILLION


def _require_load(setup: Setup, pricer: Pricer) -> None:
    """Refuse requests that the deployment cannot answer."""
    if setup.load is None:
        return
    if not setup.is_engine:
        raise UsageError(
            "PyTorch answers one batch after the other.",
            why="only an engine takes requests that come at any time into its steps",
            fix="add --execution fused, or leave --rate out",
        )
    if setup.graphs[0].workload.get("batch", 1) != 1:
        raise UsageError(
            "The trace has several sequences already.",
            why="other requests come and go by themselves, so each is traced alone",
            fix="trace it with --users 1",
        )
    if pricer.state(setup) is None:
        raise UsageError(
            f"{setup.load.text} are more than {setup.device.name} can answer.",
            why="its KV cache or its time does not suffice, so the queue grows without end",
            fix="add devices (--tp 2 --device '2x ...'), or ask for a fleet: llm-perf-opt serve MODEL --rate ...",
        )


def _less_memory(before: Setup, after: Setup) -> int | None:
    """What is not needed any more; None: the change is not one of what is stored."""
    if after.batch_factor != before.batch_factor:
        found = fullest_traced_fit((before.graphs,), before.device)
        cache = None if found is None else found[1].cache_bytes
        return None if cache is None else (before.batch_factor - after.batch_factor) * cache
    if before.graphs is after.graphs:
        return None
    old, new = run_memory(before.graphs).total_bytes, run_memory(after.graphs).total_bytes
    return None if old is None or new is None else old - new


def _short_bytes(setup: Setup) -> int | None:
    short = shortage_of((setup.graphs,), setup.device)
    return None if short is None else short.short_bytes
