"""Concurrent runs: every graph equals a serial run's, and threads that do other work see the plain world.

Two to eight threads trace at once, with every tracer, new models and one module that all of them share. Beside them
other threads train, initialise, print and call the shared module.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from scripts.campaigns.plain_world import changes, describe, fingerprint, look
from scripts.campaigns.rows import Row
from scripts.campaigns.run_faults import DETAILS, counted, counted_for_real, drawn, examined, of_module, outcome, timed
from scripts.campaigns.stand_in import inputs, plain_model

NAMED = "deepseek-ocr-tiny"
THREADS = range(2, 9)
FULL, QUICK = 1050, 56
Work = Callable[[], object]
# How often each is asked for; TorchLens takes seconds, and the profiler a good part of one.
SHARES = {"weightless": 60, "hooks": 24, "shared hooks": 6, "shared weightless": 6, "profiler": 5, "timed": 5}
SHARES |= {"torch-counter": 3, "torchlens": 1, "fvcore": 1, "picture": 1}
SHARES |= {"filtered hooks": 5, "profiler with details": 3, "named model": 5, "pages": 1, "fvcore for real": 3}
ONLY_FULL = ("fvcore", "fvcore for real", "picture", "pages", "export lab", "weighted export")  # they load much
EXPORTS = ("export lab", "weighted export")
LAST_DIGITS = 1e-5  # torch.export switches oneDNN off for the whole process while it works


class Net(nn.Module):
    """Prints, moves to the GPU where there seems to be one, asks for a value, and has a width of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        print("from the model")
        if torch.cuda.is_available():
            x = x.cuda()
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            for layer in self.layers:
                x = torch.relu(layer(self.norm(x)))
        return x * 2 if x.max() > 3 else x


def campaign_threads(*, quick: bool, seed: int) -> list[Row]:
    """One row for each number of threads."""
    shared = plain_model()
    works = {name: work for name, work in _works(shared).items() if name not in ONLY_FULL or not quick}
    for work in works.values():
        work()  # whatever is loaded or cached once
    serial = {name: work() for name, work in works.items()}
    each = (QUICK if quick else FULL) // len(THREADS)
    usual = [name for name in works if name not in EXPORTS]
    shares = [SHARES[name.rpartition(" of ")[0] or name] for name in usual]
    rows = []
    for threads in THREADS:
        asked = random.Random(f"{seed} {threads}").choices(usual, shares, k=each)
        rows.append(_concurrent(threads, asked, works, serial, shared))
    if not quick:
        asked = [*EXPORTS, "weightless of width 16", "shared hooks"] * 6
        rows.append(_concurrent(4, asked, works, serial, shared, LAST_DIGITS))
    return rows


def _works(shared: nn.Module) -> dict[str, Work]:
    works: dict[str, Work] = {}
    for width in (16, 24, 40):
        for tracer in ("weightless", "hooks"):
            works[f"{tracer} of width {width}"] = lambda width=width, tracer=tracer: _traced(
                Net(width), tracer, torch.zeros(3, width)
            )
    for tracer in ("profiler", "torchlens"):
        works[f"{tracer} of width 16"] = lambda tracer=tracer: _traced(Net(16), tracer, torch.zeros(3, 16))
    for tracer in ("weightless", "hooks"):
        works[f"shared {tracer}"] = lambda tracer=tracer: of_module(shared, tracer=tracer)
    works["timed"] = lambda: timed(shared)
    for source in ("torch-counter", "fvcore"):
        works[source] = lambda source=source: counted(source)
    works["fvcore for real"] = lambda: counted_for_real(whole=True)
    works["export lab"] = examined
    works["weighted export"] = lambda: _in_a_folder(examined)
    if shutil.which("dot") is not None:
        works["picture"] = lambda: _in_a_folder(lambda folder: drawn(plain_model(), folder))
    works["pages"] = lambda: lpo.pages(NAMED, crops=["1x2"]).to_dict()
    for tracer in ("weightless", "hooks"):
        works[f"named model of {tracer}"] = lambda tracer=tracer: fingerprint(
            lpo.trace(NAMED, crops=(1, 2), decode_steps=0, tracer=tracer).graphs[0]
        )
    settings = {"only": "Linear"}
    works["filtered hooks"] = lambda: _traced(Net(16), "hooks", torch.zeros(3, 16), **settings)
    works["profiler with details"] = lambda: _traced(Net(16), "profiler", torch.zeros(3, 16), **settings, **DETAILS)
    return works


def _in_a_folder(work: Callable[[Path], object]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        return work(Path(folder))


def _traced(net: nn.Module, tracer: str, x: Tensor, **settings: Any) -> str:
    return fingerprint(lpo.trace(net.eval(), (x,), tracer=tracer, **settings).graphs[0])


def _concurrent(
    threads: int,
    asked: list[str],
    works: dict[str, Work],
    serial: dict[str, object],
    shared: nn.Module,
    tolerance: float = 0.0,
) -> Row:
    wrong: Counter[str] = Counter()
    before, module = look(random_state=False), describe(shared)
    with _beside(shared, tolerance) as unlike, ThreadPoolExecutor(threads) as pool:
        for name, result in zip(asked, pool.map(lambda name: outcome(works[name]), asked), strict=True):
            if result != serial[name]:
                wrong[
                    f"{name}: {result!r:.160}" if isinstance(result, BaseException) else f"{name}: another result"
                ] += 1
    findings = [f"{threads} threads, {what}, {count} times" for what, count in (wrong + unlike).items()]
    findings += [f"after {threads} threads, {change}" for change in changes(before, look(random_state=False))]
    if describe(shared) != module:
        findings.append(f"after {threads} threads, the shared module was changed")
    what = "exports and traces" if tolerance else "runs"
    return Row(f"{what} in {threads} threads", len(asked), findings)


@contextlib.contextmanager
def _beside(shared: nn.Module, tolerance: float) -> Iterator[Counter[str]]:
    """Two more threads work meanwhile; what they find wrong."""
    wrong: Counter[str] = Counter()
    is_over = threading.Event()
    printed = io.StringIO()
    said = Counter[str]()

    def repeat(work: Callable[[], Iterator[str]]) -> None:
        while not is_over.is_set():
            try:
                wrong.update(f"at the same time, {finding}" for finding in work())
            except Exception as error:  # noqa: BLE001  a finding, whatever it is
                wrong[f"at the same time, {error!r:.160}"] += 1
            said[threading.current_thread().name] += 1
            print("from the program")

    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        expected = shared(**inputs())
    with contextlib.redirect_stdout(printed):
        workers = [
            threading.Thread(target=repeat, args=(work,))
            for work in (_training(), _calling(shared, expected, tolerance))
        ]
        for worker in workers:
            worker.start()
        try:
            yield wrong
        finally:
            is_over.set()
            for worker in workers:
                worker.join()
    arrived = printed.getvalue().count("from the program")  # two threads may share a line
    if arrived != said.total():
        wrong[f"{said.total()} times something was printed at the same time, and {arrived} times it arrived"] += 1


def _training() -> Callable[[], Iterator[str]]:
    def step() -> Iterator[str]:
        net = nn.Linear(4, 4)
        nn.init.ones_(net.weight)
        if float(net.weight.detach().sum()) != 16.0:
            yield "nn.init did nothing"
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        if net.weight.grad is None or float(net.weight.grad.sum()) != 32.0:
            yield "a gradient is wrong"
        if type(loss) is not Tensor or loss.device.type != "cpu" or loss.is_cuda or torch.cuda.is_available():
            yield "a tensor is not a plain one"
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            yield "a mode of torch is on"
        if torch.zeros(1).dtype is not torch.float32 or torch.get_default_dtype() is not torch.float32:
            yield "a tensor has another type"

    return step


def _calling(shared: nn.Module, expected: Tensor, tolerance: float) -> Callable[[], Iterator[str]]:
    def step() -> Iterator[str]:
        with torch.no_grad():
            result = shared(**inputs())
        if not torch.allclose(result, expected, rtol=0, atol=tolerance):
            yield "the shared module gave another output"

    return step
