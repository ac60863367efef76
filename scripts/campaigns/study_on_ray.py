"""The kills and the pairs of studies on a Ray cluster of two nodes, which is started here: real Ray, real processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from scripts.campaigns.rows import Row
from scripts.campaigns.study_kills import kill_rows
from scripts.campaigns.study_places import study_place
from scripts.campaigns.study_writers import pair_row

NAME = "study_on_ray"
KILLS, PAIRS = {True: 2, False: 6}, {True: 1, False: 2}  # by `quick`
# A process of its own: forks of this one must not inherit the threads of Ray. It ends with its input.
_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "memory": 4 * 2**30}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
try:
    cluster.add_node(**node)
    print("address", cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
"""


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each half of the kills, and one for the pairs."""
    return rows_on_ray(KILLS[quick], PAIRS[quick], seed)


def rows_on_ray(kills: int, pairs: int, seed: int) -> list[Row]:
    """So many of each, on one cluster."""
    draw = random.Random(f"{seed} {NAME}")
    with two_nodes() as address, study_place() as place:
        on_ray = replace(place, engine=f"--engine ray --address {address}")
        rows = kill_rows(on_ray, kills, draw, NAME)
        return [*rows, pair_row(on_ray, pairs, draw, NAME, "on two nodes")]


@contextmanager
def two_nodes() -> Iterator[str]:
    """The address of a cluster, which ends with the block."""
    command = [sys.executable, "-c", _CLUSTER]
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert running.stdin is not None and running.stdout is not None  # for type checkers: pipes were asked for
    try:
        addresses = (line.split()[1] for line in running.stdout if line.startswith("address "))
        yield next(addresses)
    finally:
        running.stdin.close()
        running.wait(timeout=120)
        running.stdout.close()
