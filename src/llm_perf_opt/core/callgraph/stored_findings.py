"""What was found out about a trace, kept in the store for the next process that asks the same of the same trace.

A trace knows what it holds by a digest, which it is given where it is read from the store or put there. Whoever makes
another trace out of it by `replace` gets one without a digest, about which nothing is kept; who knows what the change
was says so by `identify`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.store import stored_record

_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


def identify(graph: CallGraph, *content: str | bytes | None) -> CallGraph:
    """The same graph, known by all that determines what it holds but for the hardware it runs on; None: not known."""
    if None not in content:
        parts = (part.encode() if isinstance(part, str) else part for part in content if part is not None)
        digest = hashlib.sha256(b"\n".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
        object.__setattr__(graph, "content_digest", digest)  # the only field that is set later, and by this alone
    return graph


def kept_in_store(
    kind: str, record: Any
) -> Callable[
    [Callable[Concatenate[CallGraph, _Asked], _Found]],
    Callable[Concatenate[CallGraph, _Asked], _Found],
]:
    """Mark a function of a trace that no hardware changes: what it returns, of the type `record`, is kept."""

    def marked(
        function: Callable[Concatenate[CallGraph, _Asked], _Found],
    ) -> Callable[Concatenate[CallGraph, _Asked], _Found]:
        asked = signature(function)

        @wraps(function)
        def kept(graph: CallGraph, /, *args: _Asked.args, **options: _Asked.kwargs) -> _Found:
            if graph.content_digest is None:
                return function(graph, *args, **options)
            given = asked.bind(graph, *args, **options)
            given.apply_defaults()
            _, *others = given.arguments.values()
            found: _Found = stored_record(
                kind,
                {"graph": graph.content_digest, "with": list(map(repr, others))},
                f"{graph.model}, {graph.phase}",
                record,
                lambda: function(graph, *args, **options),
            )
            return found

        return kept

    return marked
