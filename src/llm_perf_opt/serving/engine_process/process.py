"""A process in an engine's Python that takes one job after another: file in, file out, a line when it is done."""

from __future__ import annotations

import logging
import os
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import llm_perf_opt
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.serving.engine_process.environment import VLLM, EngineEnvironment, EngineRecipe, find
from llm_perf_opt.serving.engine_process.jobs import Failure, ReplayJob, read_message, write_message
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Replayed, Traffic
from llm_perf_opt.timing.step.step_table import StepTable

log = logging.getLogger(__name__)
T = TypeVar("T")
_MODULE = "llm_perf_opt.serving.engine_process"
_LEAVE_S = 20.0
_LOG_TAIL = 1500


class EngineProcess:
    """One process of an engine's Python, open for jobs until the block ends."""

    def __init__(self, environment: EngineEnvironment) -> None:
        self._environment = environment
        self._cleanup = ExitStack()
        self._jobs = 0

    def __enter__(self) -> Self:
        self._folder = self._cleanup.enter_context(scratch_folder())
        self._log = self._folder / "log.txt"
        said = self._cleanup.enter_context(self._log.open("wb"))
        engine = self._environment.engine
        log.info("Starting %s %s (%s) ...", engine.title, self._environment.version, self._environment.python)
        self._process = subprocess.Popen(
            [str(self._environment.python), "-P", "-m", _MODULE, engine.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment_variables(engine),
            text=True,
        )
        self._cleanup.callback(self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def ask(self, kind: str, job: object, answer: type[T]) -> T:
        """The answer to one job of that kind. Its progress goes to the log."""
        self._jobs += 1
        question, reply = (self._folder / f"{self._jobs}.{end}" for end in ("job", "answer"))
        write_message(question, job)
        word = self._round_trip(f"{kind}\t{question}\t{reply}\n")
        question.unlink()
        if word not in ("done", "failed"):
            raise self._died()
        try:
            if word == "failed":
                raise read_message(reply, Failure).as_error()
            return read_message(reply, answer)
        finally:
            reply.unlink()

    def _round_trip(self, line: str) -> str:
        """Hand in a line; the word that ends the job, or nothing if the process ended instead."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        for said in self._process.stdout:
            word, _, text = said.rstrip("\n").partition("\t")
            if word != "progress":
                return word
            log.info("%s", text)
        return ""

    def _died(self) -> PerfOptError:
        code, engine = self._process.wait(), self._environment.engine
        tail = self._log.read_text(errors="replace")[-_LOG_TAIL:].strip()
        return PerfOptError(
            f"The process of {engine.title} {self._environment.version} ended with code {code} before it answered.",
            why=tail or "it said nothing",
            fix=f"try `{self._environment.python} -c '{engine.check}'`; if that fails, make the environment again",
        )

    def _leave(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=_LEAVE_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class ReplayProcess:
    """Replays one after another, in one process for what an engine learns once and never forgets.

    vLLM keeps its device for ever, SGLang all of its settings.
    """

    def __init__(self, environment: EngineEnvironment | None = None, engine: EngineRecipe = VLLM) -> None:
        self._environment, self._engine = environment, engine
        self._open: list[tuple[SeenDevice | EngineSettings, EngineProcess]] = []
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()
        self._open.clear()

    def replay(self, job: ReplayJob) -> Replayed:
        """What becomes of these requests in one engine."""
        return self._for(job.settings).ask("replay", replace(job, replicas=1), Replayed)

    def replay_replicas(self, job: ReplayJob) -> list[Replayed]:
        """What becomes of these requests in each of the replicas among which the engine deals them."""
        return self._for(job.settings).ask("replicas", job, list[Replayed])

    def _for(self, settings: EngineSettings) -> EngineProcess:
        key = settings.device if self._engine is VLLM else settings
        for known, process in self._open:
            if known == key:
                return process
        self._environment = self._environment or find(self._engine)
        process = self._cleanup.enter_context(EngineProcess(self._environment))
        self._open.append((key, process))
        return process


def replay(settings: EngineSettings, traffic: Traffic, table: StepTable) -> Replayed:
    """These requests through vLLM's own scheduler, with step times from the table."""
    with ReplayProcess() as process:
        return process.replay(ReplayJob(settings=settings, traffic=traffic, table=table))


def environment_variables(engine: EngineRecipe = VLLM) -> dict[str, str]:
    """The variables of a process in an engine's Python. Our package is found by its folder, not installed there."""
    inherited = {name: value for name, value in os.environ.items() if name not in engine.unset}
    return {**inherited, **engine.settings, "PYTHONPATH": str(Path(llm_perf_opt.__file__).parents[1])}
