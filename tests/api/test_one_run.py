"""Whatever runs a model, in two threads at once: the forwards of one are over before those of the other begin."""

from __future__ import annotations

import functools
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo
from llm_perf_opt.core import run_lock
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.sources.fvcore_counter import FvcoreCounter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.weightless import Ghost

TINY = "deepseek-ocr-tiny"
PAGE: dict[str, Any] = {"image": "90x130", "mode": "tiny"}
X = torch.ones(2, 4)
Way = Callable[[Path], object]


class Layers(nn.Module):
    def __init__(self, *, on_real_alone: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self._on_real_alone = on_real_alone

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self._on_real_alone and torch.jit.is_tracing() and isinstance(x, Ghost):
            raise RuntimeError("no ghosts in a trace")
        return self.second(torch.relu(x))  # type: ignore[no-any-return]


class OneModel:
    """An adapter of a model that is built when it runs."""

    title = "layers"

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        return (
            Target(
                model="layers",
                phase="forward",
                workload={},
                build=lambda: Layers(on_real_alone=True),
                invoke=lambda model: model(torch.ones(2, 4)),
            ),
        )


class Calls:
    """Of functions that run a model: which thread called each, and whether it had the run to itself."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.alone: list[bool] = []

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.threads.append(threading.get_ident())
            self.alone.append(run_lock._LOCK._is_owned())  # type: ignore[attr-defined]
            time.sleep(1e-4)  # another thread gets its chance
            return function(*args, **kwargs)

        return call


def _picture(folder: Path) -> object:
    return lpo.trace(Layers(), (X,), tracer="torchlens", pictures=[f"first={folder}.svg"])


def _first_arguments(_: Path) -> object:
    session = lpo.DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny())
    config = lpo.AnalysisConfig(130, 90, base_size=64, image_size=40, patch_size=4, seq_len=6)
    return list(lpo.StaticAnalyzer(session).prepare_inputs(config))


def _session(_: Path) -> object:
    session = lpo.DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny(), weights="random")
    return session.run_inference("90x130", 4, 2, mode="tiny")


WAYS: dict[str, Way] = {
    "weightless": lambda _: lpo.trace(Layers(), (X,)),
    "hooks": lambda _: lpo.trace(Layers(), (X,), tracer="hooks", only="Linear"),
    "cost": lambda _: lpo.cost(Layers(), (X,), sources=["torch-counter", "byte-counter", "fvcore"]),
    "fvcore on real tensors": lambda _: FvcoreCounter().figures(OneModel(), Workload()),
    "fvcore, whole runs on real tensors": lambda _: FvcoreCounter().whole_runs(OneModel(), Workload()),
    "profile": lambda _: lpo.profile(Layers(), (X,), repeats=2),
    "memory": lambda _: lpo.trace(TINY, **PAGE).memory(),
    "first arguments": _first_arguments,
    "session": _session,
}
SLOW: dict[str, Way] = {
    "profiler": lambda _: lpo.trace(Layers(), (X,), tracer="profiler", with_stack=True, profile_memory=True),
    "torchlens": lambda _: lpo.trace(Layers(), (X,), tracer="torchlens"),
    "exported": lambda _: lpo.cost(Layers(), (X,), sources=["exported"]),
    "export": lambda folder: lpo.export(
        Layers(), "first", args=(X,), phase="forward", checks=["export"], load_weights="random", out=folder
    ),
    "pages": lambda _: lpo.pages(TINY, page=["90x130", "300x200"]),
}


def require_turns(way: Way, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(nn.Linear, "forward", calls.noted(nn.Linear.forward))
    monkeypatch.setattr(Target, "run", calls.noted(Target.run))
    both = threading.Barrier(2)  # otherwise a quick way is over before the second thread begins

    def run(place: Path) -> object:
        both.wait()
        return way(place)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, folder / name) for name in ("a", "b")]:
            done.result()
    assert len(set(calls.threads)) == 2
    assert all(calls.alone)


@pytest.mark.parametrize("name", WAYS)
def test_one_at_a_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_turns(WAYS[name], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_one_at_a_time_where_much_is_loaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_turns(SLOW[name], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_pictures_are_drawn_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_turns(_picture, tmp_path, monkeypatch)


def test_a_calibration_waits_for_a_run_and_gives_the_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int]] = []
    before = torch.get_num_threads()

    def probes(*_: object) -> list[object]:
        seen.append((run_lock._LOCK._is_owned(), torch.get_num_threads()))  # type: ignore[attr-defined]
        raise RuntimeError("enough")

    monkeypatch.setattr("llm_perf_opt.measurements.calibrate.calibrate._probes", probes)
    with pytest.raises(RuntimeError, match="enough"):
        lpo.calibrate(smoke=True, threads=before + 1)
    assert seen == [(True, before + 1)]
    assert torch.get_num_threads() == before
