"""Requests that are still to come: at times of their own, when a client has a place, or after the turn before."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from llm_perf_opt.serving.requests import Request, Traffic


class ComingRequests:
    """A client: it takes requests in order, keeps at most `concurrency` sessions open, and thinks between their turns.

    A place is taken by the first turn of a session and is free when the last one has ended. A request that is no
    session's has one turn.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._first_turns = deque(request for request in traffic.requests if request.after is None)
        self._turn_after = {request.after: request for request in traffic.requests if request.after is not None}
        self._next_turns: list[tuple[float, int, Request]] = []  # by their time
        self._free_s = None if traffic.concurrency is None else [0.0] * traffic.concurrency  # when places became free
        self._count = 0

    def arrival_s(self) -> float | None:
        """The arrival of the next request; None if there is none, or no place for it yet."""
        first_s = self._first_s()
        if not self._next_turns:
            return first_s
        turn_s = self._next_turns[0][0]
        return turn_s if first_s is None else min(first_s, turn_s)

    def _first_s(self) -> float | None:
        if not self._first_turns:
            return None
        own_s = self._first_turns[0].arrival_s
        if self._free_s is None:
            return own_s
        return max(own_s, self._free_s[0]) if self._free_s else None

    def take(self) -> Request:
        """The request that comes next, which takes its place."""
        first_s = self._first_s()
        if self._next_turns and (first_s is None or self._next_turns[0][0] < first_s):
            return heappop(self._next_turns)[2]
        if self._free_s is not None:
            heappop(self._free_s)
        return self._first_turns.popleft()

    def ended(self, name: str, now_s: float) -> None:
        """The answer to this request is complete: its user thinks, or its place is free."""
        turn = self._turn_after.pop(name, None)
        if turn is not None:
            self._count += 1
            heappush(self._next_turns, (now_s + turn.think_s, self._count, turn))
        elif self._free_s is not None:
            heappush(self._free_s, now_s)
