"""A demand in the words of `serve` as traffic, so that its words mean what they mean there, and its mean request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, mean_request
from llm_perf_opt.serving.traffic_text import DeclaredTraffic, Fixed, PageRule, read_declared

SAMPLE = 1000  # the mean of this many requests represents all


@dataclass(frozen=True, slots=True)
class AskedTraffic:
    """What `serve` was told of requests. `prompt` is without the tokens of a page, and with a shared prefix."""

    prompt: str | int | None
    output: str | int
    users: int | None
    rate: str | None
    page: str | None
    pages: int | None
    shared_prefix: float | None
    sessions: str | None

    def declared(self) -> DeclaredTraffic:
        """The same as traffic."""
        counts = (("--users", self.users), ("--rate", self.rate), ("--pages", self.pages))
        given = [name for name, value in counts if value is not None]
        if len(given) > 1:
            raise UsageError(
                f"{' and '.join(given)} exclude each other.",
                why="users wait for their answers, a rate arrives by itself, and pages are there from the start",
                fix="give only one of them",
            )
        if self.prompt is None and self.page is None:
            raise UsageError(
                "The prompt length is missing.",
                why="neither --input nor --page is given",
                fix="write --input 4000 --output 500",
            )
        clients = f"at_once={self.users or 1} requests={SAMPLE}" if self.rate is None else f"rate={self.rate}"
        words = [clients, f"output={self.output}"]
        words += self._prompt_words() if self.prompt is not None or self.shared_prefix is not None else []
        words += [f"pages={self.page}"] if self.page is not None else []
        words += [f"sessions={self.sessions}"] if self.sessions is not None else []
        return read_declared(" ".join(words))

    def _prompt_words(self) -> list[str]:
        """The prompt of a request and, before it, what all requests begin with."""
        prompt, share = self.prompt, self.shared_prefix
        if share is None:
            return [f"prompt={prompt}"]
        if not 0 <= share <= 1 or not str(prompt).isdigit():
            raise UsageError(
                f"A shared prefix of {share:g} of {prompt} tokens is not clear.",
                why="it is a share from 0 to 1 of a prompt of one length",
                fix="write --input 4000 --shared-prefix 0.6",
            )
        shared = round(int(str(prompt)) * share)
        return [f"prompt={max(1, int(str(prompt)) - shared)}", *([f"prefixes=1x{shared}"] if shared else [])]


def require_sessions(declared: DeclaredTraffic, kv_offload: str | None, *, is_disaggregated: bool) -> None:
    """Refuse what sessions are needed for, and what they exclude."""
    if declared.sessions is None and kv_offload is not None:
        raise UsageError(
            "--kv-offload needs --sessions.",
            why="only a turn that comes later finds what has left the GPU's cache",
            fix="add --sessions turns=8,grow=500,think=10s, or replay recorded requests with --traffic",
        )
    if declared.sessions is not None and is_disaggregated:
        raise UsageError(
            "--sessions and --disaggregate exclude each other.",
            why="earlier turns are in the cache of decode workers, and prompts are read on others",
            fix="leave one of the two out",
        )


def has_drawn_lengths(declared: DeclaredTraffic) -> bool:
    """Whether prompts or answers differ from request to request."""
    return declared.sessions is not None or not (
        isinstance(declared.output, Fixed) and isinstance(declared.prompt, Fixed | None)
    )


def mean_of(declared: DeclaredTraffic, page_rule: PageRule) -> MeanRequest:
    """The mean request: of a sample where requests differ, and of whole sessions."""
    sessions, turns = declared.sessions, 1 if declared.sessions is None else declared.sessions.turns
    is_drawn = has_drawn_lengths(declared) or declared.pages is not None or declared.prefixes is not None
    requests = turns * ceil(SAMPLE / turns) if is_drawn else 1
    mean = mean_request(replace(declared, requests=requests, duration_s=None).traffic(page_rule))
    if sessions is None or mean.session is None:
        return mean
    return replace(mean, session=replace(mean.session, think_s=sessions.think_s))  # a sample has another by chance
