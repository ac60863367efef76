"""Token ids of prompts: two prompts are equal where their requests share a prefix or a block, and nowhere else."""

from __future__ import annotations

from llm_perf_opt.serving.requests import Request

_FILLER = 11
_FIRST_OF_PREFIX = 2**30  # far from the numbers that requests have of their own


class PromptWriter:
    """Writes prompts: each begins with a token that no other has, after the prefix that it shares."""

    def __init__(self, first_of_prefix: int = _FIRST_OF_PREFIX) -> None:
        self._first_of_prefix = first_of_prefix
        self._prefixes: dict[str, int] = {}
        self._count = 0

    def prompt(self, request: Request) -> list[int]:
        """Token ids; an engine compares them and does nothing else with them."""
        self._count += 1
        shared: list[int] = []
        if request.prefix is not None and request.prefix_tokens:
            first = self._prefixes.setdefault(request.prefix, self._first_of_prefix + len(self._prefixes))
            shared = [first] + [_FILLER] * (min(request.prefix_tokens, request.prompt_tokens) - 1)
        for block in request.blocks:
            first = self._prefixes.setdefault(f"block {block}", self._first_of_prefix + len(self._prefixes))
            shared += ([first] + [_FILLER] * (request.block_tokens - 1))[: request.prompt_tokens - len(shared)]
        if own := request.prompt_tokens - len(shared):
            shared += [self._count]
            shared += [_FILLER] * (own - 1)
        return shared
