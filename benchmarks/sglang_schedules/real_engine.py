"""Runs in SGLang's Python: its own server loop, sockets and all, on the real clock, with a device that only waits.

A client in a thread of its own sends requests over SGLang's socket and reads its answers. The device takes as long as
a small model would, in real seconds. Nothing of a replay runs here but the pools of its worker, which hold no values.

A replay's clock stands still while the host works, so real times are told as the host saw them: a step lasts from the
end that the host last waited for, or from the end of the step before; a request came at the end that was waited for
before the turn of the loop in which it was received. A request that finds the server idle came when it was sent.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import zmq
from sglang.srt.managers.io_struct import sock_recv, sock_send
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.utils.network import get_zmq_socket
from sglang.version import __version__

from benchmarks.sglang_schedules.cases import CASES, FOLDER, STEP_S
from benchmarks.vllm_schedules.recorded import RecordedSchedule, write
from llm_perf_opt.serving.engine_process.prompts import PromptWriter
from llm_perf_opt.serving.requests import AnsweredRequests, Traffic
from llm_perf_opt.serving.sglang.inside.engine import build
from llm_perf_opt.serving.sglang.inside.run import engine_request
from llm_perf_opt.serving.sglang.inside.schedules import record
from llm_perf_opt.serving.sglang.inside.worker import VirtualWorker

DIGITS = 6


class RealEvent:
    """The end of a step on the real clock."""

    def __init__(self, told: Told, step: int) -> None:
        self._told, self._step = told, step

    def record(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        self._told.wait(self._step)


class Told:
    """Real times, and the same as a replay's clock would have them."""

    def __init__(self) -> None:
        self.real_ends: list[float] = []
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.durations: list[float] = []
        self.now = 0.0  # the end that the host last waited for
        self.has_waited = True  # since the server woke up; before that two launches follow at once
        self.origin = time.monotonic()

    def real(self) -> float:
        return time.monotonic() - self.origin

    def launch(self, seconds: float) -> int:
        """A step of so many real seconds, after the step before."""
        before = self.real_ends[-1] if self.real_ends else 0.0
        self.real_ends.append(max(self.real(), before) + seconds)
        start = max(self.now, self.ends[-1] if self.ends else 0.0)
        self.starts.append(start)
        self.durations.append(round(max(self.real_ends[-1] - start, 1e-6), DIGITS))
        self.ends.append(start + self.durations[-1])
        return len(self.ends) - 1

    def wait(self, step: int) -> None:
        time.sleep(max(0.0, self.real_ends[step] - self.real()))
        self.now, self.has_waited = max(self.now, self.ends[step]), True


class WaitingWorker(VirtualWorker):
    """A device that takes real time and computes nothing."""

    def start(self, scheduler: Any) -> None:
        self.told, self.scheduler, self._chance = Told(), scheduler, random.Random(3)

    def forward_batch_generation(self, batch: Any, **_: object) -> Any:
        count = len(batch.reqs) if batch.forward_mode.is_decode() else sum(batch.extend_lens)
        self.step = self.told.launch(STEP_S * self._chance.uniform(0.7, 1.0) + 5e-6 * count)
        if not self.scheduler.enable_overlap:
            self.told.wait(self.step)
        return GenerationBatchResult(
            next_token_ids=torch.full((len(batch.reqs),), self.token), can_run_cuda_graph=False
        )

    def event(self) -> Any:
        return RealEvent(self.told, self.step)


class Client(threading.Thread):
    """Sends requests at their times, or when others end, over SGLang's sockets."""

    def __init__(self, told: Told, sockets: tuple[Any, Any], traffic: Traffic, concurrency: int | None) -> None:
        super().__init__(daemon=True)
        self._told, (self._out, self._back) = told, sockets
        self._traffic, self._most = traffic, concurrency
        self.sent: dict[str, float] = {}
        self.ended: set[str] = set()

    def run(self) -> None:
        writer = PromptWriter()
        for request in self._traffic.requests:
            if self._most is None:
                time.sleep(max(0.0, request.arrival_s - self._told.real()))
            while self._most is not None and len(self.sent) - len(self.ended) >= self._most:
                self._read()
            message = engine_request(request, writer)
            while not self._told.has_waited:
                time.sleep(0.001)
            self.sent[request.id] = self._told.real()
            sock_send(self._out, message)
        while len(self.ended) < len(self.sent):
            self._read()

    def _read(self) -> None:
        output = sock_recv(self._back)
        self.ended.update(
            name for name, why in zip(output.rids, output.finished_reasons, strict=True) if why is not None
        )


class Watched:
    """SGLang's own receiver, and when each request was received."""

    def __init__(self, scheduler: Any, client: Client) -> None:
        self._scheduler, self._receiver, self._client = scheduler, scheduler.request_receiver, client
        self._told, self._before = scheduler.tp_worker.told, -1.0
        self.arrival_s: dict[str, float] = {}
        self.unclear = 0  # requests that came while a step was launched that nobody had waited for before

    def recv_requests(self, local_reqs: Any = None) -> list[Any]:
        came = self._receiver.recv_requests(local_reqs=local_reqs)
        told = self._told
        is_idle = self._scheduler.last_batch is None and self._scheduler.is_fully_idle()
        if came and is_idle:
            told.now, told.has_waited = max(told.now, self._client.sent[came[0].rid]), False
        elif told.now == self._before:
            self.unclear += len(came)
        for message in came:
            sent = told.now if is_idle else self._client.sent[message.rid]
            self.arrival_s[message.rid] = min(told.now, max(sent, (self._before + told.now) / 2))
        self._before = told.now
        if not self._client.is_alive() and not came:
            self._scheduler.gracefully_exit = True
        return came


def record_case(name: str) -> Path:
    case = CASES[name]
    settings = case.settings()
    scheduler = build(replace(settings, model=str(FOLDER.with_name("vllm_schedules") / settings.model)), WaitingWorker)
    worker = scheduler.tp_worker
    context = zmq.Context(1)
    sockets = tuple(
        get_zmq_socket(context, kind, address, True)
        for kind, address in (
            (zmq.PUSH, _address(scheduler.ipc_channels.recv_from_tokenizer)),
            (zmq.PULL, _address(scheduler.output_streamer.send_to_detokenizer.socket)),
        )
    )
    steps = record(scheduler)
    worker.start(scheduler)
    traffic = case.traffic()
    client = Client(worker.told, sockets, traffic, case.concurrency)
    watched = scheduler.request_receiver = Watched(scheduler, client)
    times = Times(scheduler)
    client.start()
    time.sleep(0.1)  # those that come at once are all there
    scheduler.run_event_loop()
    if watched.unclear:
        raise RuntimeError(f"{watched.unclear} requests came between two launches: record {name} again")
    order = sorted(traffic.requests, key=lambda request: watched.arrival_s[request.id])
    requests = tuple(replace(request, arrival_s=watched.arrival_s[request.id]) for request in order)
    recorded = RecordedSchedule(
        case=name,
        version=__version__,
        settings=settings,
        traffic=Traffic(requests=requests, origin="recorded"),
        step_seconds=tuple(worker.told.durations),
        tokens=(),
        steps=steps,
        answered=times.answered(requests),
    )
    return write(recorded, FOLDER)


def _address(socket: Any) -> str:
    return str(socket.getsockopt(zmq.LAST_ENDPOINT).decode())


class Times:
    """When SGLang knew of the tokens of each request, as the host saw it."""

    def __init__(self, scheduler: Any) -> None:
        self._told = scheduler.tp_worker.told
        self._scheduled: dict[str, tuple[float, int]] = {}
        self._first: dict[str, float] = {}
        self._last: dict[str, tuple[float, int, int]] = {}
        launch, process = scheduler.run_batch, scheduler.process_batch_result

        def launched(batch: Any) -> Any:
            before = list(batch.prefix_lens or ())
            result = launch(batch)
            if not batch.forward_mode.is_decode():
                for req, cached in zip(batch.reqs, before, strict=True):
                    self._scheduled.setdefault(req.rid, (self._told.starts[-1], cached))
            return result

        def processed(batch: Any, result: Any) -> None:
            process(batch, result)
            now = self._told.now
            for req in batch.reqs:
                if req.output_ids:
                    self._first.setdefault(req.rid, now)
                if req.finished():
                    self._last.setdefault(req.rid, (now, len(req.output_ids), req.retraction_count))

        scheduler.run_batch, scheduler.process_batch_result = launched, processed

    def answered(self, requests: Any) -> AnsweredRequests:
        names = [request.id for request in requests]
        return AnsweredRequests(
            ids=names,
            arrival_s=[request.arrival_s for request in requests],
            scheduled_s=[self._scheduled[name][0] for name in names],
            first_token_s=[self._first[name] for name in names],
            last_token_s=[self._last[name][0] for name in names],
            prompt_tokens=[request.prompt_tokens for request in requests],
            output_tokens=[self._last[name][1] for name in names],
            cached_tokens=[self._scheduled[name][1] for name in names],
            preemptions=[self._last[name][2] for name in names],
        )


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        print(chosen, record_case(chosen), flush=True)
    os._exit(0)  # SGLang's sockets would wait for their readers
