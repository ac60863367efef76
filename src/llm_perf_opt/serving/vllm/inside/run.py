"""The run: requests come when their time has come, vLLM's engine cores step, and their clocks go on by their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.arrivals import ComingRequests
from llm_perf_opt.serving.requests import AnsweredRequests, Request, Traffic
from llm_perf_opt.serving.vllm.inside.launches import Rounds

MakeRequest = Callable[[Request, float], Any]  # one of ours and the time at which it comes -> one of vLLM's
Route = Callable[[Any], int]  # a request of vLLM's -> the replica that gets it
_IDLE_STEPS = 3  # without a token, without an answer: nothing will change by itself


def run(
    cores: Sequence[Any],
    traffic: Traffic,
    make_request: MakeRequest,
    route: Route | None = None,
    rounds: Rounds | None = None,
) -> list[AnsweredRequests]:
    """Let engine cores answer all requests; their executors have a clock and a log of steps. One entry for each core.

    Every core has its own clock. The one that is furthest behind steps next, so no request comes to a core before
    its time. With `rounds` they have one clock, and all step. `route` chooses the core where there are several.
    """
    running = _Run([_Replica(core) for core in cores], traffic, make_request, route or (lambda _: 0), rounds)
    running.to_the_end()
    return [replica.answered() for replica in running.replicas]


class _Replica:
    """One core while it runs: who is in it, and when its requests had their tokens."""

    def __init__(self, core: Any) -> None:
        self.core, self.clock, self._log = core, core.model_executor.clock, core.model_executor.log
        self.requests: list[Request] = []
        self.inside: dict[str, Any] = {}
        self._arrival_s: list[float] = []
        self._first_s: dict[str, float] = {}
        self._ended: dict[str, tuple[float, int, int]] = {}  # when, tokens, preemptions
        self._idle = 0

    @property
    def has_work(self) -> bool:
        return bool(self.core.scheduler.has_requests() or self.core.batch_queue)

    @property
    def is_stuck(self) -> bool:
        """What waits in it is never scheduled, unless something new comes."""
        return self._idle > _IDLE_STEPS

    def admit(self, request: Request, arrival_s: float, made: Any) -> None:
        self.clock.wait_until(arrival_s)  # an idle core has stood still since its last step
        known, wave = self.core.preprocess_add_request(made)
        self.core.add_request(known, wave)
        self.inside[request.id] = known
        self.requests.append(request)
        self._arrival_s.append(arrival_s)
        self._idle = 0

    def step(self) -> Any:
        """One turn of vLLM's busy loop, and what came out of it."""
        core, began_s = self.core, self.clock.now
        outputs, has_run = core.step_fn()
        core.post_step(has_run)
        is_waiting = bool(core.batch_queue) or self.clock.now > began_s  # for a step, or for a copy of cache blocks
        self._idle = 0 if has_run or outputs or is_waiting else self._idle + 1
        return outputs or {}

    def take(self, outputs: Any) -> list[str]:
        """Note when tokens came; return the names of requests that ended."""
        now, first_s = self.clock.now, self._first_s
        ended = []
        for output in outputs.values():
            for answer in output.outputs:
                name = answer.request_id
                if name not in first_s:
                    first_s[name] = now
                if answer.finish_reason is not None:
                    known = self.inside.pop(name)
                    self._ended[name] = now, known.num_output_tokens, known.num_preemptions
                    ended.append(name)
        return ended

    def answered(self) -> AnsweredRequests:
        """All its requests with their times."""
        names = [request.id for request in self.requests]
        return AnsweredRequests(
            ids=names,
            arrival_s=self._arrival_s,
            scheduled_s=[self._log.scheduled_s[name] for name in names],
            first_token_s=[self._first_s[name] for name in names],
            last_token_s=[self._ended[name][0] for name in names],
            prompt_tokens=[request.prompt_tokens for request in self.requests],
            output_tokens=[self._ended[name][1] for name in names],
            cached_tokens=[self._log.cached_tokens[name] for name in names],
            preemptions=[self._ended[name][2] for name in names],
        )


class _Run:
    """Engines, and the client that sends them requests."""

    def __init__(
        self, replicas: list[_Replica], traffic: Traffic, make_request: MakeRequest, route: Route, rounds: Rounds | None
    ) -> None:
        self.replicas, self._make_request, self._route, self._rounds = replicas, make_request, route, rounds
        self._coming = ComingRequests(traffic)

    def to_the_end(self) -> None:
        """Until every request is answered."""
        while True:
            behind = self._furthest_behind()
            if (arrival_s := self._coming.arrival_s()) is not None and (
                behind is None or arrival_s <= behind.clock.now
            ):
                self._admit(arrival_s)
            elif behind is None:
                self._require_all_answered()
                return
            else:
                ended = behind.take(behind.step()) if self._rounds is None else self._round(self._rounds)
                for name in ended:
                    self._coming.ended(name, behind.clock.now)

    def _round(self, rounds: Rounds) -> list[str]:
        """Everyone who has something to do takes a step; tokens come when all of them are done."""
        came = [(replica, replica.step()) for replica in self.replicas if replica.has_work and not replica.is_stuck]
        rounds.close()
        return [name for replica, outputs in came for name in replica.take(outputs)]

    def _furthest_behind(self) -> _Replica | None:
        """Of the replicas with work, the one with the earliest clock."""
        furthest = None
        for replica in self.replicas:
            if (
                (furthest is None or replica.clock.now < furthest.clock.now)
                and replica.has_work
                and not replica.is_stuck
            ):
                furthest = replica
        return furthest

    def _admit(self, arrival_s: float) -> None:
        request = self._coming.take()
        made = self._make_request(request, arrival_s)
        self.replicas[self._route(made)].admit(request, arrival_s, made)

    def _require_all_answered(self) -> None:
        for replica in self.replicas:
            for name in replica.inside:
                raise PerfOptError(
                    f"The engine never schedules request {name!r}.",
                    why="its cache is too small for this request, even alone",
                    fix="give the cache more bytes or blocks, or leave the request out",
                )
