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
from typing import Any, ParamSpec, TypeVar

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


def kept_in_store(kind: str, record: Any) -> Callable[[Callable[_Asked, _Found]], Callable[_Asked, _Found]]:
    """Mark a function of a trace, or of its phases, that no hardware changes: the `record` it returns is kept."""

    def marked(function: Callable[_Asked, _Found]) -> Callable[_Asked, _Found]:
        asked = signature(function)

        @wraps(function)
        def kept(*args: _Asked.args, **options: _Asked.kwargs) -> _Found:
            given = asked.bind(*args, **options)
            given.apply_defaults()
            first, *others = given.arguments.values()
            graphs = (first,) if isinstance(first, CallGraph) else tuple(first)
            digests = [graph.content_digest for graph in graphs]
            finding: _Found = stored_record(
                kind,
                None if None in digests else {"graphs": digests, "with": list(map(repr, others))},
                f"{graphs[0].model}, {', '.join(graph.phase for graph in graphs)}",
                record,
                lambda: function(*args, **options),
            )
            return finding

        return kept

    return marked
