"""A process in vLLM's Python that takes one job after another: file in, file out, a line when it is done."""

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
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Replayed, Traffic
from llm_perf_opt.serving.vllm.environment import VllmEnvironment, find
from llm_perf_opt.serving.vllm.jobs import Failure, ReplayJob, read_message, write_message
from llm_perf_opt.timing.step.step_table import StepTable

log = logging.getLogger(__name__)
T = TypeVar("T")
_MODULE = "llm_perf_opt.serving.vllm.inside"
_LEAVE_S = 20.0
_LOG_TAIL = 1500
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # nothing is computed there
    "PYTHONHASHSEED": "0",  # the order of sets of names, so that two runs are alike
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_KIMI_K3_GEMM_AR": "0",  # a fused kernel of Kimi's layers, written with a library of GPU machines
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
_UNSET = ("VLLM_TARGET_DEVICE", "VLLM_PLUGINS", "PYTHONHOME")  # they would hide the devices that vLLM shall believe in


class VllmProcess:
    """One process of vLLM's Python, open for jobs until the block ends."""

    def __init__(self, environment: VllmEnvironment) -> None:
        self._environment = environment
        self._cleanup = ExitStack()
        self._jobs = 0

    def __enter__(self) -> Self:
        self._folder = self._cleanup.enter_context(scratch_folder())
        self._log = self._folder / "log.txt"
        said = self._cleanup.enter_context(self._log.open("wb"))
        log.info("Starting vLLM %s (%s) ...", self._environment.version, self._environment.python)
        self._process = subprocess.Popen(
            [str(self._environment.python), "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment_variables(),
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
        code = self._process.wait()
        tail = self._log.read_text(errors="replace")[-_LOG_TAIL:].strip()
        return PerfOptError(
            f"The process of vLLM {self._environment.version} ended with code {code} before it answered.",
            why=tail or "it said nothing",
            fix=f"try `{self._environment.python} -c 'import vllm'`; if that fails, make the environment again",
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
    """Replays one after another, in one process per kind of device: what vLLM learnt of its device it never forgets."""

    def __init__(self, environment: VllmEnvironment | None = None) -> None:
        self._environment = environment
        self._open: dict[SeenDevice, VllmProcess] = {}
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
        return self._for(job.settings.device).ask("replay", replace(job, replicas=1), Replayed)

    def replay_replicas(self, job: ReplayJob) -> list[Replayed]:
        """What becomes of these requests in each of the replicas among which vLLM deals them."""
        return self._for(job.settings.device).ask("replicas", job, list[Replayed])

    def _for(self, device: SeenDevice) -> VllmProcess:
        if device not in self._open:
            self._environment = self._environment or find()
            self._open[device] = self._cleanup.enter_context(VllmProcess(self._environment))
        return self._open[device]


def replay(settings: EngineSettings, traffic: Traffic, table: StepTable) -> Replayed:
    """These requests through vLLM's own scheduler, with step times from the table."""
    with ReplayProcess() as process:
        return process.replay(ReplayJob(settings=settings, traffic=traffic, table=table))


def environment_variables() -> dict[str, str]:
    """The variables of a process in vLLM's Python. It finds our package by its folder; it is not installed there."""
    inherited = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return {**inherited, **_SETTINGS, "PYTHONPATH": str(Path(llm_perf_opt.__file__).parents[1])}
