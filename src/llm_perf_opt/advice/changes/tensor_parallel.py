"""The matrices of the decoder shared between two devices."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.hardware.links import find_hardware, hardware_id, load_links
from llm_perf_opt.costs.memory.need import run_memory

RANKS = 2
LEAST_MEMORY = 0.25  # of a device: a smaller model is better served by a replica on each device


def _apply(setup: Setup) -> Setup | None:
    """On devices that are sold in nodes, of which two hold the model, and one is filled by it to a quarter or more.

    Where a larger batch was chosen, throughput is what counts: a replica on each device has more of it.
    """
    name = hardware_id(setup.hardware)
    if not setup.is_engine or setup.is_spread or setup.decode is None or name is None:
        return None
    needed = run_memory(setup.graphs).total_bytes
    if setup.batch_factor > 1 or needed is None:
        return None
    if not LEAST_MEMORY <= needed / setup.device.memory_bytes <= RANKS:
        return None
    node = load_links().nodes.get(setup.device.id)
    if node is None or node.gpus < RANKS:
        return None
    return replace(setup, hardware=find_hardware(f"{RANKS}x {name}"), tp=RANKS)


REWRITE = Rewrite(
    title=f"tensor parallel over {RANKS} devices",
    how=f"vLLM: --tensor-parallel-size {RANKS}",
    may_cost=f"{RANKS} devices for one replica, which cost more per token",
    rests_on="the table of steps that serve asks, with the collectives of the link",
    apply=_apply,
    least_share=0.25,  # half of the time that two devices can save at most
)
