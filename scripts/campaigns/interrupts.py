"""Ctrl-C at any time: exit code 130 and one line, no half file; and in a program of others torch is as it was."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from torch import nn

import llm_perf_opt as lpo
from scripts.campaigns.forward_faults import outcome, quiet_streams, traced
from scripts.campaigns.plain_world import changes, describe, look, put_right
from scripts.campaigns.rows import Row
from scripts.campaigns.stand_in import PLAN, inputs, make_target, plain_model
from scripts.campaigns.verbs import (
    RESUMED,
    VERBS,
    Ended,
    begun_anew,
    half_files,
    restore,
    results,
    seconds_of_child,
    start_child,
    temporaries,
    wait_for,
    workplace,
)
from scripts.campaigns.write_faults import SLOW

NAME = "interrupts"
HERE, QUICK_HERE = {"weightless": 180, "hooks": 120, "module": 80, "profiler": 20}, 15
CHILDREN, QUICK_CHILDREN = 6, 1  # for each verb
STARTS, QUICK_STARTS = 36, 2  # of new processes, which have to import everything


def run(*, quick: bool, seed: int) -> list[Row]:
    """In this process, in processes that have loaded torch, and in new ones."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started this in the background
    rows = list(_in_process(random.Random(seed), quick=quick))
    verbs = [verb for verb in VERBS if verb not in SLOW or not quick]
    with workplace(verbs) as place:
        for verb in verbs:
            wanted = QUICK_CHILDREN if quick else CHILDREN
            rows.append(_children(verb, place, wanted, random.Random(f"{seed} {verb}")))
        rows.append(_starts(place, QUICK_STARTS if quick else STARTS, random.Random(f"{seed} starts")))
    return rows


def _in_process(chosen: random.Random, *, quick: bool) -> Iterator[Row]:
    PLAN.set(0, RuntimeError)
    module = plain_model()
    works: dict[str, Callable[[], object]] = {
        "weightless": lambda: traced("weightless", make_target()),
        "hooks": lambda: traced("hooks", make_target(module)),
        "module": lambda: lpo.trace(module, kwargs=inputs()).stages().to_dict(),
        "profiler": lambda: traced("profiler", make_target(module)),
    }
    for name, work in works.items():
        wanted = (0 if name == "profiler" else QUICK_HERE) if quick else HERE[name]
        if wanted:
            with quiet_streams():
                row = pressed_in_process(name, work, module, wanted, chosen)
            yield row


def pressed_in_process(
    name: str, work: Callable[[], object], module: nn.Module, wanted: int, chosen: random.Random
) -> Row:
    """Ctrl-C while `work` runs: it raises or comes to its end, and leaves everything as it was."""
    work()
    started = time.perf_counter()
    first = work()
    seconds = time.perf_counter() - started
    findings: list[str] = []
    raised = 0
    for _ in range(wanted):
        delay = chosen.uniform(0, seconds)
        caught, found = _pressed(work, delay, module)
        raised += isinstance(caught, KeyboardInterrupt)
        if isinstance(caught, BaseException) and not isinstance(caught, KeyboardInterrupt):
            found.append(f"the caller got {caught!r:.160}")
        if not isinstance(caught, BaseException) and caught != first:
            found.append("the run went on and gave other figures")
        if outcome(work) != first:
            found.append("the next run gave other figures")
        findings += [f"{name}, after {delay * 1e3:.2f} ms: {one}" for one in found]
    if not raised:
        findings.append(f"{name}: no interrupt took effect")
    return Row(campaign=NAME, what=f"{name}, in process, {raised} took effect", tried=wanted, findings=findings)


def _pressed(work: Callable[[], object], delay: float, module: nn.Module) -> tuple[object, list[str]]:
    def press(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    alarm = signal.signal(signal.SIGALRM, press)
    before, plain = look(), describe(module)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-5))
        caught = outcome(work)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:  # between the run and here
        caught = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        found = list(changes(before, look()))
        if describe(module) != plain:
            found.append("the caller's module was changed")
        if found:
            put_right(before)
        signal.signal(signal.SIGALRM, alarm)
    return caught, found


def _children(verb: str, place: Path, wanted: int, chosen: random.Random) -> Row:
    words = VERBS[verb] if verb != "profile" else f"{VERBS[verb]} --force"
    clean = results(place)
    old = begun_anew(words, clean) if verb in RESUMED else clean
    restore(place, old)
    seconds = seconds_of_child(words, place)
    findings: list[str] = []
    for _ in range(wanted):
        restore(place, old)
        delay = chosen.uniform(0.02, seconds)
        pid = start_child(words, place)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        found = [*interrupted(wait_for(pid, place)), *half_files(place, clean)]
        found += [f"{name} was left" for name in temporaries(place)]
        findings += [f"{verb}, after {delay:.3f} s: {one}" for one in found]
    restore(place, clean)
    return Row(campaign=NAME, what=f"{verb}, torch loaded", tried=wanted, findings=findings)


def _starts(place: Path, wanted: int, chosen: random.Random) -> Row:
    """New processes, from the first import on."""
    words = VERBS["trace"].split()
    clean = results(place)
    findings: list[str] = []
    for _ in range(wanted):
        delay = chosen.choice((chosen.uniform(0, 0.5), chosen.uniform(0.5, 6)))
        with subprocess.Popen(
            [sys.executable, "-c", _START, *words], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()  # from here on it is ours
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        ended = Ended(code=process.returncode, out=out, err=err)
        found = [*interrupted(ended), *half_files(place, clean)]
        findings += [f"a new process, after {delay:.3f} s: {one}" for one in found]
    return Row(campaign=NAME, what="new processes, from the first import on", tried=wanted, findings=findings)


_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from llm_perf_opt import __main__ as entry
handled = entry.signal.signal
def installed(*arguments):
    found = handled(*arguments)
    entry.signal.signal = handled
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    return found
entry.signal.signal = installed
entry.main()
"""


def interrupted(ended: Ended) -> Iterator[str]:
    """What is wrong with this end. A run that was finished by then may say so."""
    if ended.is_traceback or "KeyboardInterrupt" in ended.err:
        yield f"a traceback: {ended.err.strip().splitlines()[-1]:.200}"
    if ended.code not in (0, 130):
        yield f"exit code {ended.code}: {ended.err[-200:]!r}"
    if ended.code == 130 and ended.err.count("Interrupted.") != 1:
        yield f"{ended.err.count('Interrupted.')} lines say that it was interrupted: {ended.err[-200:]!r}"
