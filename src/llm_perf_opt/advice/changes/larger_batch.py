"""More sequences in one decode step, which read the weights together."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.serving.fit import fullest_traced_fit

FACTOR = 8


def _apply(setup: Setup) -> Setup | None:
    """As many as fit, up to eight times as many; engines alone decode what comes at any time together.

    Where other requests are told, they are the batch.
    """
    if not setup.is_engine or setup.decode is None or setup.batch_factor > 1 or setup.load is not None:
        return None
    found = fullest_traced_fit((setup.graphs,), setup.device)
    if found is None or found[1].largest_batch is None:
        return None
    factor = min(FACTOR, found[1].largest_batch // max(found[1].batch, 1))
    return replace(setup, batch_factor=factor) if factor > 1 else None


REWRITE = Rewrite(
    title=f"up to {FACTOR} times as many sequences in a decode step",
    how="send more requests at once; vLLM batches them up to --max-num-seqs",
    may_cost="needs that many requests; each waits longer for a token",
    rests_on="the table of steps that serve asks",
    apply=_apply,
)
