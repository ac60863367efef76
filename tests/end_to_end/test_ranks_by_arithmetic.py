"""One rank of the plans that people run, at full size, against what their configurations give on paper."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.trace import Trace
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.ops.table import price
from tests.slowness import slowness, timed

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[1] / "facts" / "deployment" / "configs"
LIMIT_S = 30


def traced(name: str, **plan: int) -> Trace:
    return timed(LIMIT_S, lambda: lpo.trace(CONFIGS / name, prompt_tokens=1024, decode_steps=0, **plan))


def weights(graph: CallGraph) -> int:
    assert graph.storages is not None
    held = {one.storage: graph.storages.bytes[one.storage] for one in graph.parameters if not one.is_buffer}
    return sum(held.values())


def matrix_flops(graph: CallGraph) -> int:
    found = {kind: price(kind) for kind in count_kinds(graph)}
    assert None not in found.values()
    return sum(cost.flops * count_kinds(graph)[kind] for kind, cost in found.items() if cost is not None)


def collectives(graph: CallGraph) -> Counter[tuple[str, int]]:
    assert graph.ops is not None
    found = (collective_of(graph.op_kinds[row]) for row in graph.ops.kind)
    return Counter((str(one.kind), one.payload_bytes) for one in found if one is not None)


def shared(parameters: int, replicated: int, ranks: int) -> int:
    """Bytes in bfloat16 of one rank: its share of what is spread, and all of what is not."""
    return 2 * ((parameters - replicated) // ranks + replicated)


def test_llama_70b_on_eight_ranks() -> None:
    """80 layers: one all-reduce after attention, one after the MLP, of 1,024 x 8,192 values. Norms are replicated."""
    (whole,), (rank,) = traced("llama31-70b").graphs, traced("llama31-70b", tp=8).graphs
    assert weights(whole) == 2 * 70_553_706_496
    assert weights(rank) == 17_640_734_720 == shared(70_553_706_496, (2 * 80 + 1) * 8192, 8)
    assert matrix_flops(whole) == 8 * matrix_flops(rank)
    assert collectives(rank) == {
        ("all-reduce", 16_777_216): 160 + 1,  # and that of the embedding
        ("all-gather", 2 * 128_256): 1,  # logits of the last position
    }


def test_mixtral_on_eight_ranks_replicates_its_router() -> None:
    (rank,) = traced("mixtral-8x7b", tp=8).graphs
    router, norms = 32 * 8 * 4096, (2 * 32 + 1) * 4096
    assert weights(rank) == shared(46_702_792_704, router + norms, 8)
    assert collectives(rank) == {("all-reduce", 8_388_608): 64 + 1, ("all-gather", 2 * 32_000): 1}


def test_qwen3_30b_sends_tokens_to_experts() -> None:
    """48 layers: 1,024 tokens choose 8 of 128 experts; each rank sends a quarter of the pairs."""
    (rank,) = traced("qwen3-30b-a3b", tp=4, ep=4).graphs
    replicated = (2 * 48 + 1) * 2048 + 48 * 2 * 128 + 48 * 128 * 2048  # norms, those of queries and keys, routers
    assert weights(rank) == shared(30_532_122_624, replicated, 4)
    found = collectives(rank)
    assert found["all-to-all", 2048 * 2048 * 2] == 96  # there and back
    assert found["all-to-all", 128 * 8] == 48  # how many rows go to each expert
    assert found["all-gather", 1024 * 2048 * 2] == 48
    assert found["all-reduce", 1024 * 2048 * 2] == 48 + 1


def test_deepseek_v3_shards_all_but_latent_attention() -> None:
    """transformers' plan leaves attention, norms and routers whole: 11.5 of 671 billion parameters on every rank."""
    (rank,) = traced("deepseek-v3", tp=8).graphs
    attention = 7168 * 1536 + 1536 + 1536 * 24_576 + 7168 * 576 + 512 + 512 * 32_768 + 16_384 * 7168
    replicated = 61 * attention + (2 * 61 + 1) * 7168 + 58 * 256 * 7168
    assert weights(rank) == shared(671_026_404_352, replicated, 8)
    assert collectives(rank)["all-reduce", 1024 * 7168 * 2] == 58 * 2 + 3 + 1  # routed and shared experts apart


MANY = """
import json, re, sys, time
from pathlib import Path
import llm_perf_opt as lpo
from tests.end_to_end.test_ranks_by_arithmetic import CONFIGS, collectives, weights
trace = lpo.trace(CONFIGS / "deepseek-v3", prompt_tokens=1024, decode_steps=0, fsdp=128, tp=8, ep=256)
(graph,) = trace.graphs
most_kib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # of this program alone
print(json.dumps({
    "seconds": time.process_time(), "mebibytes": most_kib / 1024,
    "weights": weights(graph), "groups": sorted({str(kind.arguments["group_ranks"]) for kind in graph.op_kinds
    if "group_ranks" in kind.arguments}), "rows": collectives(graph)["all-to-all", 1024 * 7168 * 2],
}))
"""


def test_deepseek_v3_on_a_thousand_and_twenty_four_ranks_in_half_a_minute_and_a_gibibyte() -> None:
    """Rank 0 of FSDP 128 x TP 8: one of 256 experts in each layer, and 1/1,024 or 1/128 of all else."""
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["seconds"] < LIMIT_S * slowness()
    assert found["mebibytes"] < 1024
    assert found["groups"] == ["0-1016:8", "0-255", "0-7", "0-768:256"]
    assert found["rows"] == 116
    experts = 58 * 3 * 7168 * 2048  # four ranks share one expert, and an expert is not cut: the first holds it
    spread, whole = 5_596_774_400, 11_520_859_136  # parameters that tensor parallelism cuts, and those that it leaves
    # Rows are not cut either: the first of 128 ranks holds 5 rows of 576 / 128, and 127 rows of 16,160 / 128 twice.
    more = 61 * 7168 // 2 + 2 * 7168 * 3 // 4
    assert found["weights"] == 2 * (experts + (spread // 8 + whole) // 128 + more)
