"""Token ids of prompts: equal where requests share a prefix, a block or a session, and nowhere else.

A turn of a session repeats the answers before it, so all answers are made of the token that fills prompts.
"""

from __future__ import annotations

from llm_perf_opt.serving.requests import Request

ANSWER_TOKEN = 7  # what every step samples; its value decides nothing
_FIRST_OF_PREFIX = 2**30  # far from the numbers that requests have of their own


class PromptWriter:
    """Writes prompts: each begins with a token that no other has, after the prefix that it shares."""

    def __init__(self, filler: int = ANSWER_TOKEN) -> None:
        self._filler = filler
        self._prefixes: dict[str, int] = {}
        self._count = 0

    def prompt(self, request: Request) -> list[int]:
        """Token ids; an engine compares them and does nothing else with them."""
        self._count += 1
        shared: list[int] = []
        if request.prefix is not None and request.prefix_tokens:
            first = self._first_of(request.prefix)
            shared = [first] + [self._filler] * (min(request.prefix_tokens, request.prompt_tokens) - 1)
        for block in request.blocks:
            first = self._first_of(f"block {block}")
            shared += ([first] + [self._filler] * (request.block_tokens - 1))[: request.prompt_tokens - len(shared)]
        if own := request.prompt_tokens - len(shared):
            shared += [self._count if request.session is None else self._first_of(f"session {request.session}")]
            shared += [self._filler] * (own - 1)
        return shared

    def _first_of(self, name: str) -> int:
        """The token that only what has this name begins with."""
        return self._prefixes.setdefault(name, _FIRST_OF_PREFIX + len(self._prefixes))
