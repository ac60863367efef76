"""The run: SGLang's own event loop, which asks for requests in every turn and gets what has come by then."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.arrivals import ComingRequests
from llm_perf_opt.serving.engine_process.prompts import PromptWriter
from llm_perf_opt.serving.requests import AnsweredRequests, Request, Traffic

_STUCK_TURNS = 3  # without a batch, without a request to come: nothing will change by itself


class _Answer(NamedTuple):
    """When a request ended, and what it took."""

    last_s: float
    output_tokens: int
    retractions: int


class Client:
    """Sends the requests of a replay and notes when their tokens came: at both ends of SGLang's scheduler.

    A real loop turns on while there is nothing to do, and tidies up in such a turn: it gets one of them here too,
    before the clock goes on to the next request.
    """

    def __init__(self, scheduler: Any, traffic: Traffic, writer: PromptWriter) -> None:
        self._scheduler, self._clock, self._writer = scheduler, scheduler.tp_worker.clock, writer
        self._coming, self._count, self._idle_turns = ComingRequests(traffic), len(traffic.requests), 0
        self._requests: list[Request] = []  # that have come
        self._arrival_s: list[float] = []
        self._first_s: dict[str, float] = {}
        self._ended: dict[str, _Answer] = {}

    def recv_requests(self, local_reqs: object = None) -> list[Any]:
        """What has come since the last turn."""
        if self._scheduler.last_batch is None and not (came := list(self._came())):
            return self._wait()
        if self._scheduler.last_batch is not None:
            came = list(self._came())
        self._idle_turns = 0
        return came

    def _wait(self) -> list[Any]:
        """Nothing ran in the turn before, and nobody has come."""
        self._idle_turns += 1
        if self._idle_turns == 1:
            return []
        arrival_s = self._coming.arrival_s()
        if arrival_s is not None:
            self._clock.wait_until(arrival_s)
            self._idle_turns = 0
            return list(self._came())
        if len(self._ended) == self._count:
            self._scheduler.gracefully_exit = True
        elif self._idle_turns > _STUCK_TURNS:
            raise PerfOptError(
                f"The engine never schedules request {self._waiting()!r}.",
                why="its cache is too small for this request, even alone",
                fix="give the cache more bytes or blocks, or leave the request out",
            )
        return []

    def _waiting(self) -> str:
        return next(request.id for request in self._requests if request.id not in self._ended)

    def _came(self) -> Iterator[Any]:
        while (arrival_s := self._coming.arrival_s()) is not None and arrival_s <= self._clock.now:
            request = self._coming.take()
            self._requests.append(request)
            self._arrival_s.append(arrival_s)
            yield engine_request(request, self._writer)

    def processed(self, batch: Any) -> None:
        """Note the first token of each request in a batch of prompts."""
        for req in batch.reqs:
            if req.output_ids:
                self._first_s.setdefault(req.rid, self._clock.now)

    def send_output(self, output: Any, recv_obj: object = None) -> None:
        """What SGLang tells the next of its processes, when an answer is complete."""
        for at, reason in enumerate(output.finished_reasons):
            if reason is not None:
                answer = _Answer(self._clock.now, output.completion_tokens[at], output.retraction_counts[at])
                self._ended[output.rids[at]] = answer
                self._coming.ended(output.rids[at], self._clock.now)

    def answered(self, scheduled_s: Mapping[str, float], cached_tokens: Mapping[str, int]) -> AnsweredRequests:
        """All requests with their times."""
        names = [request.id for request in self._requests]
        ended = [self._ended[name] for name in names]
        return AnsweredRequests(
            ids=names,
            arrival_s=self._arrival_s,
            scheduled_s=[scheduled_s[name] for name in names],
            first_token_s=[self._first_s[name] for name in names],
            last_token_s=[answer.last_s for answer in ended],
            prompt_tokens=[request.prompt_tokens for request in self._requests],
            output_tokens=[answer.output_tokens for answer in ended],
            cached_tokens=[cached_tokens[name] for name in names],
            preemptions=[answer.retractions for answer in ended],
        )


def engine_request(request: Request, writer: PromptWriter) -> Any:
    """What SGLang's tokenizer hands to its scheduler. The answer has its full length: no token ends it before.

    It could end before as far as SGLang knows. Told to `ignore_eos`, it would reserve the cache of whole answers.
    """
    sampling = SamplingParams(max_new_tokens=request.output_tokens, temperature=0.0)
    sampling.normalize(None)
    return TokenizedGenerateReqInput(
        rid=request.id,
        input_text="",
        input_ids=array("q", writer.prompt(request)),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=sampling,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=False,
        priority=request.priority,
    )


def run(scheduler: Any, traffic: Traffic, writer: PromptWriter) -> AnsweredRequests:
    """Let a scheduler answer all requests in its own loop; its worker has a clock and a log of steps."""
    client = Client(scheduler, traffic, writer)
    process = type(scheduler).process_batch_result

    def processed(batch: Any, result: Any) -> None:
        process(scheduler, batch, result)
        if not batch.forward_mode.is_decode():
            client.processed(batch)

    scheduler.request_receiver, scheduler.process_batch_result = client, processed
    scheduler.output_streamer.send_to_detokenizer = client
    scheduler.gracefully_exit = False
    scheduler.run_event_loop()
    log = scheduler.tp_worker.log
    return client.answered(log.scheduled_s, log.cached_tokens)
