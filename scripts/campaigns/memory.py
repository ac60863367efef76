"""Many traces in one process: after a warm-up neither the resident memory nor the number of objects grows."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from itertools import count

import llm_perf_opt as lpo
from llm_perf_opt.harness.first_call import first_call
from llm_perf_opt.harness.timing.operator_pass import resident_bytes
from scripts.campaigns.forward_faults import DETAILS, counted, counted_for_real, outcome, quiet_streams, timed, traced
from scripts.campaigns.rows import Row
from scripts.campaigns.stand_in import ERRORS, PLAN, inputs, make_target, plain_model

NAME = "memory"
NAMED = "deepseek-ocr-tiny"
WARM_UP = 20
ROUNDS = 3
GROWTH_BYTES = 4 << 20  # an allocator keeps some pages
GROWTH_OBJECTS = 40  # fewer than there are traces: a leak of one object for each would show


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each kind of run."""
    module, numbers = plain_model(), count(1)

    def fails() -> None:
        number = next(numbers)
        PLAN.set(1 + number % 25, ERRORS[number % len(ERRORS)])
        outcome(lambda: traced("weightless", make_target()))
        PLAN.set(0, RuntimeError)

    works: dict[str, tuple[Callable[[], object], int, int]] = {
        "weightless traces, each of a new model": (lambda: traced("weightless", make_target()), 200, 40),
        "weightless traces of one module": (lambda: lpo.trace(module, kwargs=inputs()), 200, 40),
        "weightless traces that fail": (fails, 200, 40),
        "traces with hooks of one module": (lambda: lpo.trace(module, kwargs=inputs(), tracer="hooks"), 200, 40),
        "traces with the profiler of one module": (
            lambda: lpo.trace(module, kwargs=inputs(), tracer="profiler"),
            100,
            0,
        ),
        "traces with the profiler's details of some modules": (
            lambda: lpo.trace(module, kwargs=inputs(), tracer="profiler", only="Linear", **DETAILS),
            60,
            0,
        ),
        "weightless traces of a named model": (lambda: lpo.trace(NAMED, crops=(1, 2), decode_steps=0), 60, 0),
        "first arguments of a model": (lambda: first_call(make_target()), 200, 0),
        "figures of fvcore": (lambda: counted("fvcore", whole=True), 100, 0),
        "figures of fvcore on real tensors": (lambda: counted_for_real(whole=True), 100, 0),
        "timed runs of one module": (lambda: timed(module), 100, 0),
    }
    with quiet_streams():
        return [
            _row(what, work, few if quick else many) for what, (work, many, few) in works.items() if few or not quick
        ]


def _row(what: str, work: Callable[[], object], times: int) -> Row:
    """Flat in one of some rounds: a leak grows in each of them, what an allocator keeps to itself does not."""
    for _ in range(WARM_UP):
        work()
    findings = ["not tried"]
    rounds = 0
    while findings and rounds < ROUNDS:
        findings = _grown(what, work, times)
        rounds += 1
    return Row(campaign=NAME, what=what, tried=times * rounds, findings=findings)


def _grown(what: str, work: Callable[[], object], times: int) -> list[str]:
    bytes_before, objects_before = _held()
    for _ in range(times):
        work()
    bytes_after, objects_after = _held()
    findings = []
    if bytes_before is not None and bytes_after is not None and bytes_after - bytes_before > GROWTH_BYTES:
        findings.append(f"{what}: resident memory grew by {bytes_after - bytes_before:,} bytes in {times} traces")
    more = objects_after - objects_before
    if more.total() > GROWTH_OBJECTS:
        most = ", ".join(f"{number} {kind}" for kind, number in more.most_common(4))
        findings.append(f"{what}: {more.total():,} objects more after {times} traces: {most}")
    return findings


def _held() -> tuple[int | None, Counter[str]]:
    """Resident bytes, and the objects that are alive, by type."""
    gc.collect()
    return resident_bytes(), Counter(type(one).__qualname__ for one in gc.get_objects())
