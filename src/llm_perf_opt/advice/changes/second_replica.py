"""A second replica of the whole, which takes half of the requests."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.advice.setup import Setup


def _apply(setup: Setup) -> Setup | None:
    """Only other requests make a request wait: alone it is no faster on more replicas."""
    if setup.load is None or setup.replicas > 1 or setup.load.users == 1:
        return None
    return replace(setup, replicas=2)


REWRITE = Rewrite(
    title="a second replica, half of the requests each",
    how="the same deployment twice behind a load balancer; vLLM: --data-parallel-size 2",
    may_cost="twice the devices",
    rests_on="the steady state that serve asks, at half of the load",
    apply=_apply,
    least_share=0.25,  # half of the time that twice the devices can save at most
)
