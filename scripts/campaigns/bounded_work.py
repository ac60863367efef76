"""Absurd requests, and work without end by absurd numbers and by code: answered, refused or stopped; then all is well.

A request on the command line takes 10 s and 1 GiB above an idle process at most; seconds are those of the processor, so
that a busy machine is no finding. What is stopped tells the place and the option. Each runs in a fork of this process,
in which torch is loaded, and is killed when nothing else ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.work_limits import process_memory_bytes
from scripts.campaigns.endless_models import BUILDING, RUNNING, WIDTH, write_folder
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.plain_world import changes, fingerprint, look
from scripts.campaigns.rows import Row
from scripts.campaigns.verbs import CONFIG, Ended, run_here

MOST_SECONDS = 10.0
MOST_BYTES = 1 << 30
PATIENCE_S = 120.0  # then it was not bounded
QUICK_REQUESTS = 4
_PEAK = "VmHWM:"
_BIG = 10**9
OPS, SECONDS, MEMORY = "--max-ops", "--max-seconds", "--max-memory"
_MODELS = {
    "tiny": {},
    "layers": {"num_hidden_layers": 10**6},
    "hidden": {"hidden_size": 10**12, "intermediate_size": 10**13},
}
_RUSH = 'rate = "1000000000/s"\nprompt = 9\noutput = 9\nfor = "9d"\n'
_SIZES = {  # the numbers that each verb takes, and the limit that ends them
    "10^9 decode steps": (f"--decode-steps {_BIG}", OPS),
    "10^9 prompt tokens": (f"--prompt-tokens {_BIG}", MEMORY),
    "a batch of 10^9": (f"--batch {_BIG}", MEMORY),
}
_VERBS = {
    "trace": "trace {}",
    "cost": "cost {}",
    "report": "report {}",
    "trace on a device": "trace {} --device h100-sxm",
    "export": "export {} --part model --check export",
    "trace, hooks": "trace {} --tracer hooks",
}
_OTHERS = {
    "a long context for a large batch": "trace tiny --batch 64 --prompt-tokens 1024000",
    "the same within 2 GiB": "trace tiny --batch 64 --prompt-tokens 1024000 --max-memory 2",
    "sweep to a million tokens": "sweep tiny --users 1..64 --input 1k..1000k",
    "sweep to a batch of 10^9": f"sweep tiny --users 1..{_BIG} --input 16..64",
    "sweep to 2^40 tokens": "sweep tiny --users 1 --input 1..1048576m",
    "sweep of a million rows": "sweep tiny --users 1..100000 --input 1..100000 --points 1000",
    "sweep with 10^9 traces": f"sweep tiny --users 1..4 --input 16..64 --traces {_BIG}",
    "sweep of no range": "sweep tiny --users 9..1 --input 1..2",
    "crops, trace": "trace deepseek-ocr --crops 99x99",
    "crops, pages": "sweep deepseek-ocr --crops 99x99",
    "an image of 10^10 pixels": "trace deepseek-ocr --image 100000x100000",
    "a thousand grids": "sweep deepseek-ocr --crops " + ",".join(["9x9"] * 1000),
    "serve on 10^6 devices": "serve tiny --gpus 1000000xh100-sxm --input 4 --output 2 --users 2",
    "serve 10^9 users": f"serve tiny --gpus 2xh100-sxm --input 4 --output 2 --users {_BIG}",
    "serve on at most 10^9 GPUs": f"serve tiny --gpus h100-sxm --input 4 --output 2 --users 2 --max-gpus {_BIG}",
    "serve prompts of 10^9 tokens": f"serve tiny --gpus h100-sxm --input {_BIG} --output 2 --users 2",
    "serve traffic of 10^9 a second": "serve tiny --gpus 2xh100-sxm --traffic rush.toml",
    "a cluster of 10^12": "devices cluster 1000000000000xh100-sxm",
    "profile of 10^9 tokens": f"profile model=tiny workload.max_new_tokens={_BIG}",
    "profile of a long prompt": f"profile model=tiny workload.prompt_tokens={_BIG}",
    "profile of 10^6 layers": "profile model=deep",
    "profile repeated 10^9 times": f"profile model=wide run.repeats={_BIG}",
    "a name of a million letters": "trace " + "x" * 100_000,
    "a word of a million letters": "models --search " + "y" * 100_000,
    "no seconds": "trace tiny --max-seconds 0",
    "no ops": "trace tiny --max-ops 1",
    "no memory": "trace tiny --max-memory 0.001",
}


def _spelled(verb: str, options: str) -> str:
    """The options in the words of the verb: a report speaks of a server."""
    if verb != "report":
        return options
    words = {"--decode-steps": "--gpus h100-sxm --output", "--prompt-tokens": "--input", "--batch": "--users"}
    return " ".join(words.get(word, word) for word in options.split())


def requests() -> dict[str, str]:
    sizes = {name: options for name, (options, _) in _SIZES.items()}
    sizes["all of them"] = " ".join(sizes.values())
    words = {
        f"{name}, {verb}": f"{_VERBS[verb].format('tiny')} {_spelled(verb, options)}"
        for verb in _VERBS
        for name, options in sizes.items()
    }
    words |= {f"{model}, {verb}": _VERBS[verb].format(model) for verb in _VERBS for model in ("layers", "hidden")}
    return {**words, **_OTHERS}


def write_models(folder: Path) -> None:
    """A tiny model, one with absurdly many layers, and an absurdly wide one."""
    for name, fields in _MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**CONFIG, **fields}), "utf-8")


def campaign_absurd_requests(*, quick: bool, seed: int) -> list[Row]:
    del seed  # every request is tried
    chosen = list(requests().items())[:: len(requests()) // QUICK_REQUESTS] if quick else list(requests().items())
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        write_models(place)
        (place / "rush.toml").write_text(_RUSH, "utf-8")
        with quiet():
            run_here("trace tiny --prompt-tokens 4", place)
        tried = {name: in_child(partial(_asked, words, place)) for name, words in chosen}
    findings = [f"{name}: {finding}" for name, trial in tried.items() for finding in trial["findings"]]
    slowest, largest = (max(tried, key=lambda name: tried[name][field]) for field in ("seconds", "above_bytes"))
    what = (
        f"answered or refused within {MOST_SECONDS:.0f} s and {MOST_BYTES >> 30} GiB; "
        f"the longest {tried[slowest]['seconds']:.1f} s ({slowest}), "
        f"the largest {tried[largest]['above_bytes'] / 2**30:.2f} GiB ({largest})"
    )
    return [Row(what, len(chosen), findings)]


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` finds in a fork of this process, by way of JSON; that it takes too long or says nothing is found."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)  # what the child has started may hold the other end
    began = time.monotonic()
    with os.fdopen(reading, "rb") as answer:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() - began > PATIENCE_S:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return {**_NOTHING, "findings": [f"nothing stopped it within {PATIENCE_S:.0f} s"]}
            time.sleep(0.02)
        text = answer.read()
        return dict(json.loads(text)) if text else {**_NOTHING, "findings": ["the process ended without a word"]}


_NOTHING = {"seconds": 0.0, "above_bytes": 0}


def _asked(words: str, place: Path) -> dict[str, Any]:
    with quiet():
        Path("/proc/self/clear_refs").write_text("5")  # the kernel begins anew with the largest memory that it held
        idle, began = process_memory_bytes() or 0, time.process_time()
        ended = run_here(words, place)
        seconds, above_bytes = time.process_time() - began, _peak_bytes() - idle
    return {"findings": [*judged(ended, seconds, above_bytes)], "seconds": seconds, "above_bytes": above_bytes}


def judged(ended: Ended, seconds: float, above_bytes: int) -> Iterator[str]:
    """Whether it was answered, or refused with a reason, and within the bounds."""
    if ended.is_traceback or ended.code not in (0, 1, 2):
        yield f"exit code {ended.code}: {ended.err.strip()[-200:]!r}"
    elif ended.code and "rror" not in ended.err:
        yield f"refused without a reason: {ended.err[-200:]!r}"
    if seconds > MOST_SECONDS:
        yield f"took {seconds:.1f} s"
    if above_bytes > MOST_BYTES:
        yield f"took {above_bytes / 2**30:.2f} GiB"


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text("ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(_PEAK))


MEMORY_BYTES = 6 << 30  # that a child may take, whatever else is there
_GIB = 1 << 30
TRACERS = ("weightless", "hooks")
ROW = "absurd numbers, Python", "absurd numbers, each verb", "endless code, Python", "endless code, each verb"


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work. `option` is what the fix must name: None where no limit is the cause, as an overflow."""

    row: str
    name: str
    run: Callable[[], str]  # what the caller was told; an empty text where nothing stopped it
    option: str | None
    is_stopped: bool = False  # at work, so that the place must be told: the module, the phase and the seconds

    @property
    def limit(self) -> str | None:
        """The option as whoever asks would write it: `--max-ops` on the command line, `max_ops=` in Python."""
        if self.option is None or not self.row.endswith("Python"):
            return self.option
        return self.option.removeprefix("--").replace("-", "_") + "="


def campaign_bounded_work(*, quick: bool, seed: int) -> list[Row]:
    """A row for numbers and for code, through Python and through the command."""
    del seed  # every case is tried
    with tempfile.TemporaryDirectory() as name, _own_caches(Path(name)):
        chosen = [case for case in cases(Path(name)) if not quick or case.name in QUICK]
        warm_up(Path(name), quick=quick)
        findings: dict[str, list[str]] = {row: [] for row in ROW}
        counts = dict.fromkeys(ROW, 0)
        for case in chosen:
            counts[case.row] += 1
            findings[case.row] += [f"{case.name}: {finding}" for finding in bounded(case)]
    return [Row(row, counts[row], findings[row]) for row in ROW]


@contextlib.contextmanager
def _own_caches(folder: Path) -> Iterator[None]:
    """Code of model folders is copied there, and not into the caches of whoever runs this."""
    import transformers.utils.hub as hub
    from transformers import dynamic_module_utils

    place = {"HF_MODULES_CACHE": str(folder / "modules")}
    with mock.patch.multiple(hub, **place), mock.patch.multiple(dynamic_module_utils, **place):
        yield


def warm_up(folder: Path, *, quick: bool = False) -> None:
    """Libraries load once, here and not in each child; what they change for good is no finding."""
    tiny = f"{folder / 'tiny'} --prompt-tokens 4"
    verbs = [f"trace {tiny}", f"trace {tiny} --tracer hooks", f"cost {tiny}"]
    if not quick:
        verbs += [f"export {tiny} --part model --check export", f"report {tiny} --format json"]
        verbs += [f"profile model={folder / 'tiny'} run.folder={folder / 'warm'} run.repeats=1 run.warmup=0"]
    with quiet():
        for words in verbs:
            run_here(words, folder)


# ---- the cases


def cases(folder: Path) -> Iterator[Case]:
    """All of them; the folders of models are made below `folder`."""
    yield from _numbers(folder)
    yield from _numbers_by_verb(folder)
    yield from _code()
    yield from _code_by_verb(folder)


def _numbers(folder: Path) -> Iterator[Case]:
    write_models(folder)
    tiny, layers, hidden = (str(folder / name) for name in _MODELS)
    absurd: dict[str, tuple[str, dict[str, Any], str | None]] = {
        "10^6 layers": (layers, {}, OPS),
        "10^9 decode steps": (tiny, {"decode_steps": _BIG}, OPS),
        "10^9 prompt tokens": (tiny, {"prompt_tokens": _BIG}, MEMORY),
        "a batch of 10^9": (tiny, {"batch": _BIG}, MEMORY),
        "hidden size 10^12": (hidden, {}, None),
        "99x99 crops": ("deepseek-ocr", {"crops": (99, 99)}, MEMORY),
        "10^9 decode steps of DeepSeek-OCR": ("deepseek-ocr", {"decode_steps": _BIG}, OPS),
        "10^12 prompt tokens of DeepSeek-OCR": ("deepseek-ocr", {"prompt_tokens": 10**12}, MEMORY),
    }
    for tracer in TRACERS:
        for name, (model, workload, option) in absurd.items():
            yield Case(ROW[0], f"{name}, {tracer}", _python(model, tracer=tracer, **workload), option)


def _numbers_by_verb(folder: Path) -> Iterator[Case]:
    """The numbers that each verb takes, as its user gives them."""
    tiny, layers = str(folder / "tiny"), str(folder / "layers")
    for verb, words in _VERBS.items():
        yield Case(ROW[1], f"10^6 layers, {verb}", _command(words.format(layers)), OPS)
        for name, (options, option) in _SIZES.items():
            yield Case(ROW[1], f"{name}, {verb}", _command(f"{words.format(tiny)} {_spelled(verb, options)}"), option)
    others = {
        "99x99 crops, trace": ("trace deepseek-ocr --crops 99x99", MEMORY),
        "99x99 crops, pages": ("sweep deepseek-ocr --crops 99x99", MEMORY),
        "10^9 decode steps, pages": ("sweep deepseek-ocr --crops 1x1 --output 1000000000", OPS),
        "10^9 new tokens, profile": (f"profile model={tiny} workload.max_new_tokens=1000000000", OPS),
        "10^9 prompt tokens, profile": (f"profile model={tiny} workload.prompt_tokens=1000000000", MEMORY),
        "10^6 layers, profile": (f"profile model={layers}", OPS),
    }
    for name, (words, option) in others.items():
        yield Case(ROW[1], name, _command(words), option)


_LIMITS: dict[str, dict[str, float]] = {OPS: {"max_ops": 3000}, SECONDS: {"max_seconds": 1.0}, MEMORY: {}}
_ENDS: dict[str, tuple[str, ...]] = {  # by which limit each way of running ends
    "ops": (OPS, SECONDS),
    "a Python loop": (SECONDS,),
    "Python objects": (MEMORY, SECONDS),
    "tensors": (MEMORY, OPS),
    "exponential recursion of modules": (OPS, SECONDS),
}


def _code() -> Iterator[Case]:
    """Modules of a script, under each tracer, and in the other questions that run a module."""
    for way, kind in RUNNING.items():
        for option in _ENDS[way]:
            for tracer in TRACERS:
                if (way, option, tracer) == ("tensors", OPS, "hooks"):
                    continue  # which sees modules, and this way calls none
                yield Case(
                    ROW[2],
                    f"{way}, {option}, {tracer}",
                    _limited(option, lambda kind=kind, tracer=tracer: _traced(kind(), tracer)),
                    option,
                    is_stopped=True,
                )
    yield Case(
        ROW[2],
        "a Python loop, profiled",
        _limited(SECONDS, lambda: lpo.profile(RUNNING["a Python loop"](), (torch.zeros(1, WIDTH),))),
        SECONDS,
        is_stopped=True,
    )


def _code_by_verb(folder: Path) -> Iterator[Case]:
    """Folders with code. A real run looks for inputs without weights first: code that ends there goes on for real."""
    verbs = {verb: words.replace("--part model", "--part inner") for verb, words in _VERBS.items() if "," not in verb}
    for way in (*RUNNING, *BUILDING):
        option = OPS if way in BUILDING else _ENDS[way][0]
        place = write_folder(folder / "code" / way.replace(" ", "-").replace("^", ""), way)
        chosen = verbs if way == "ops" else {"trace": verbs["trace"]}
        for verb, words in chosen.items():
            yield _case_of_folder(f"{way}, {verb}", f"{words.format(place)} --trust-remote-code", option)
    for way in RUNNING:
        place = write_folder(folder / "real" / way.replace(" ", "-"), way, only_for_real=True)
        option = SECONDS if way == "tensors" else _ENDS[way][0]
        words = f"trace {place} --trust-remote-code --tracer hooks"
        yield _case_of_folder(f"{way} for real, hooks", words, option)
    place = folder / "real" / "a-Python-loop"
    words = f"profile model={place} model.trust_remote_code=true run.folder={folder / 'profiled'}"
    yield _case_of_folder("a Python loop for real, profile", words, SECONDS)


def _case_of_folder(name: str, words: str, option: str) -> Case:
    def run() -> str:
        limit = {OPS: "3000", SECONDS: "1", MEMORY: f"{_gib_allowed():.3f}"}[option]
        return _command(f"{words} {option} {limit}")()

    return Case(ROW[3], f"{name}, {option}", run, option, is_stopped=True)


QUICK = frozenset(
    {
        "10^6 layers, weightless",
        "99x99 crops, hooks",
        "10^9 decode steps, trace on a device",
        "ops, --max-ops, weightless",
        "a Python loop, --max-seconds, hooks",
        "Python objects, --max-memory, weightless",
        "exponential recursion of modules, --max-ops, hooks",
        "10^7 experts, trace, --max-ops",
        "ops, cost, --max-ops",
    }
)


# ---- running one


def _python(model: str, **options: Any) -> Callable[[], str]:
    return _told(lambda: lpo.trace(model, **options))


def _told(work: Callable[[], object]) -> Callable[[], str]:
    """The message of the error that the work ends with, as the command would print it."""

    def run() -> str:
        try:
            work()
        except PerfOptError as error:
            return f"error: {error}"
        return ""

    return run


def _traced(module: nn.Module, tracer: str) -> object:
    return lpo.trace(module, (torch.zeros(1, WIDTH),), tracer=tracer)


def _limited(option: str, work: Callable[[], object]) -> Callable[[], str]:
    def run() -> str:
        given: Mapping[str, float] = _LIMITS[option] or {"max_memory": _gib_allowed()}
        with lpo.limits(**given):
            return _told(work)()

    return run


def _gib_allowed() -> float:
    """A little more than this process holds now."""
    return ((process_memory_bytes() or 0) + (200 << 20)) / _GIB


def _command(words: str) -> Callable[[], str]:
    def run() -> str:
        ended: Ended = run_here(words, Path.cwd())
        if ended.is_traceback or ended.code not in (0, 1, 2):
            return f"exit code {ended.code}: {ended.err[-300:]}"
        return ended.err[ended.err.rfind("error: ") :] if ended.code else ""

    return run


def bounded(case: Case) -> list[str]:
    """What went wrong with one case, tried in a child."""
    return list(in_child(lambda: {"findings": _found(case)})["findings"])


def _found(case: Case) -> list[str]:
    """In the child, with a bound on its memory."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        return list(faults(case))[:20]
    except BaseException as error:  # noqa: BLE001  a finding
        return [f"{type(error).__name__}: {str(error)[:200]} at {traceback.extract_tb(error.__traceback__)[-1]}"[:500]]


def faults(case: Case) -> Iterator[str]:
    """Whether the work is ended as it should be, and leaves the process as it was."""
    with quiet(), tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        expected = _next_trace()
        before, threads = look(random_state=False), set(threading.enumerate())
        message = case.run()
        yield from message_faults(case, message)
        yield from changes(before, look(random_state=False))
        if _next_trace() != expected:
            yield "the next trace is another"
        left = [thread.name for thread in threading.enumerate() if thread not in threads]
        if left:
            yield f"threads are left: {', '.join(left)}"


def message_faults(case: Case, message: str) -> Iterator[str]:
    """What is missing in the message."""
    if not message:
        yield "nothing refused or stopped it"
    elif not all(word in message for word in ("error: ", "why: ", "fix: ")):
        yield f"no message: {message[-200:]!r}"
    else:
        fix = message.rpartition("fix: ")[2]
        if case.limit is not None and case.limit not in fix:
            yield f"the fix does not name {case.limit}: {message[:300]!r}"
        if case.is_stopped and not ("stopped " in message and " of " in message and "after " in message):
            yield f"the message does not say what was being done: {message[:300]!r}"


def _next_trace() -> str:
    (graph,) = lpo.trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (torch.zeros(2, 3),)).graphs
    return fingerprint(graph)
