"""Prefill and decode on separate GPUs, in a steady state: workers that only read prompts, workers that only decode.

A request waits for a prefill worker, is read there, sends its keys and values over the link, and joins the steps of a
decode worker. Both sides use the step table of their own plan. A prefill worker reads as many waiting prompts together
as its tokens of a step allow. Users who ask again when their answer is there are a closed network: by Little's law
there are as many of them as a second has requests, times the seconds from one request of a user to his next.

The prompts that a request finds before it are those that the same network would have without it, scaled (Schweitzer's
approximation), and the step that runs is half over in the mean: steps of one length, not of random ones (Reiser).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import Cluster, Link
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.queueing import PromptQueue, RelayedQueue
from llm_perf_opt.serving.capacity.steady_state import SteadyReplica, SteadyState
from llm_perf_opt.timing.step.request_time import FirstToken
from llm_perf_opt.timing.step.step_table import RankStep

_ROUNDS, _CLOSE = 80, 1e-4  # until the requests in both queues are as many as there are users
_NEARLY_FULL = 0.999
_IDLE_PART = 16  # an idle worker looks for prompts this often in the time of one


def transfer_seconds(rank_bytes: int, prefill: ParallelPlan, decode: ParallelPlan, link: Link) -> float:
    """One prompt's cache over the link: all ranks of a decoding group receive at once, each `rank_bytes`.

    Where fewer ranks read the prompt than decode it, each of them sends to several.
    """
    receivers_of_sender = max(1.0, decode.tp / prefill.tp)
    return rank_bytes * receivers_of_sender / link.bytes_per_s + (link.latency_ns or 0) / 1e9


class UnknownLink(PerfOptError):
    """Nothing says how fast a cache gets from one worker to another."""


def link_between(cluster: Cluster, gpus: int) -> Link:
    """The link that caches cross: the fast one where all workers lie in one node, otherwise the one between nodes."""
    link = cluster.inside if gpus <= cluster.per_node else cluster.between
    if link is None:
        raise UnknownLink(
            f"No link between nodes of {cluster.device.id} is known.",
            why="prefill workers send the cache of each prompt over it",
            fix=f"name one: --gpus '8x {cluster.device.id} via LINK'; llm-perf-opt devices list shows the links",
        )
    return link


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPair:
    """A plan that reads prompts and a plan that decodes, asked for any number of both and any load.

    `transfer_s` is the time of one prompt's cache on the link. With `client` the first token is as a client sees it.
    """

    prefill: SteadyReplica
    decode: SteadyReplica
    transfer_s: float
    client: FirstToken | None = None

    def __post_init__(self) -> None:
        if self.decode.reads_prompts or not self.prefill.reads_prompts:
            raise ValueError("one side reads the prompts")

    def reading_s(self, prefills: int = 1, decodes: int = 1) -> tuple[float, ...]:
        """An idle look at the queue, and the steps that read one prompt, two and so on, up to the most of a step.

        Each attention group reads prompts of its own in the same step. No step is shorter than the link takes to send
        what it read, or to bring it to the groups that decode.
        """
        table = self.prefill.table
        rounds = [0.0, *self._rounds()]
        groups = table.groups
        sent_s = self.transfer_s * max(1 / groups, prefills / (decodes * self.decode.table.groups))
        steps = [
            max(rounds[ceil(count / groups)], count * sent_s) for count in range(1, groups * (len(rounds) - 1) + 1)
        ]
        return steps[0] / _IDLE_PART, *steps

    def _rounds(self) -> Iterator[float]:
        """Steps in which every group reads one prompt, two and so on; one that takes several steps is read alone."""
        steady, mean, table = self.prefill, self.prefill.mean, self.prefill.table
        budget = steady.limits.batched_tokens // table.groups
        prompt, shared, image = mean.new_tokens, round(mean.found_tokens), round(mean.image_tokens)

        def step(chunks: list[tuple[int, int]], images: int) -> float:
            own = RankStep(decoding=0, cached_tokens=0, chunks=chunks, image_tokens=images)
            return table.seconds_together([own] * table.groups) + table.host_s

        if prompt > budget:
            starts = range(0, prompt, budget)
            yield sum(step([(min(budget, prompt - at), shared + at)], image // len(starts)) for at in starts)
            return
        for count in range(1, budget // prompt + 1):
            yield step([(prompt, shared)] * count, image * count)

    @property
    def prompts_per_s(self) -> float:
        """What one prefill worker reads at most."""
        reading = self.reading_s()
        return (len(reading) - 1) / reading[-1]

    def at_users(self, users: int, prefills: int, decodes: int) -> SteadyState:
        """Users at once, over all workers. What a decode worker cannot hold waits in the queue before it."""
        reading = self.reading_s(prefills, decodes)
        wait_s, waiting, decoding = reading[1], 0.0, users / decodes
        each = users / prefills
        most_s = min(
            prefills * (len(reading) - 1) / reading[-1], decodes * self.decode.at(self.decode.most).requests_per_s
        )
        for _ in range(_ROUNDS):
            state = self.decode.at(min(self.decode.most, max(1, round(decoding))))
            away_s = self._added_s(state, each, reading) + state.steps * state.step_s
            rate = users / (wait_s + away_s)
            rate = min(rate, most_s, decodes * state.requests_per_s * max(1.0, decoding / state.sequences))
            others = max(0.0, 1 - 1 / each)
            last, wait_s = wait_s, _wait_s(reading, others * waiting, others * rate / prefills)
            wait_s = (last + wait_s) / 2
            waiting = rate / prefills * wait_s
            most = float(self.decode.most)
            decoding = (decoding + min(most, rate * state.steps * state.step_s / decodes)) / 2
            if abs(wait_s - last) < _CLOSE * last:
                break
        queue = PromptQueue(requests_per_s=rate / prefills, reading_s=reading, users=max(1, round(each)), away_s=away_s)
        relayed = RelayedQueue(first=queue, wait_s=users / rate - away_s, added_s=self._added_s(state, each, reading))
        return self._with_queue(replace(state, requests_per_s=rate / decodes), relayed)

    def at_rate(self, requests_per_s: float, prefills: int, decodes: int) -> SteadyState | None:
        """Random arrivals; None: the decode workers cannot answer as many."""
        state = self.decode.at_rate(requests_per_s / decodes)
        if state is None:
            return None
        reading = self.reading_s(prefills, decodes)
        queue = PromptQueue(requests_per_s=requests_per_s / prefills, reading_s=reading)
        load = min(_NEARLY_FULL, queue.load)
        wait_s = reading[1] + load * reading[-1] / (2 * (1 - load))
        in_flight = requests_per_s / prefills * (wait_s + state.steps * state.step_s)
        relayed = RelayedQueue(first=queue, wait_s=wait_s, added_s=self._added_s(state, in_flight, reading))
        return self._with_queue(state, relayed)

    def _added_s(self, state: SteadyState, in_flight: float, reading: tuple[float, ...]) -> float:
        """From the end of a prompt to its first token: the transfer, the step that runs, the step that it joins.

        What clients saw beyond that was fitted to measured servers, with `in_flight` requests for each prefill worker.
        """
        engines_s = self.transfer_s + 1.5 * state.plain_s
        if (client := self.client) is None:
            return engines_s
        others_s = client.prompts_of_others * in_flight * reading[-1] / (len(reading) - 1)
        return engines_s + client.constant_s + client.prompts * reading[1] + others_s + client.steps * state.token_s

    def _with_queue(self, state: SteadyState, queue: RelayedQueue) -> SteadyState:
        return replace(state, queue=queue, client=None, alone_s=queue.first.reading_s[1])


def _wait_s(reading: tuple[float, ...], seen: float, requests_per_s: float) -> float:
    """The mean time from a request's arrival at a prefill worker to the end of its step, with `seen` others there."""
    most = len(reading) - 1
    together = min(float(most), 1 + seen)
    step = reading[int(together)]
    busy = min(1.0, requests_per_s * step / together)
    before = max(0.0, seen - busy * together)  # that are not in the step that runs
    return busy * step / 2 + step + max(0.0, before - (most - 1)) / most * reading[-1]
