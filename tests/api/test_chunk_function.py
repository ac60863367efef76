"""A step of several new tokens as a function of three variables: exact against fresh traces, and packed steps."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.api.trace_function import MixedSteps
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.ops.table import price
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.program.alignment import same_run
from llm_perf_opt.sweeps.run_function import ChunkTraces, chunk_function
from tests.models.huggingface.folders import LLAMA, TEXT, write_folder

transformers = pytest.importorskip(
    "transformers", reason="a Hugging Face folder is run by transformers, an optional extra"
)
pytestmark = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="the configurations are those of transformers 5"
)

LONG = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 8192}
SMALL_LLAMA = {**LLAMA, **LONG}
MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
    **LONG,
}
WINDOW = 512
MISTRAL = {"model_type": "mistral", "sliding_window": WINDOW, **LONG}
BATCH, NEW, CONTEXT = (1, 8), (2, 64), (1, 200)


def made_of(folder: Path, config: dict[str, Any]) -> ChunkTraces:
    folder.mkdir(exist_ok=True)
    origin = lpo.trace(write_folder(folder, config), prompt_tokens=16).origin
    assert origin is not None
    return ChunkTraces(origin=origin, media_tokens=0)


def function_of(made: ChunkTraces, context: tuple[int, int] = CONTEXT, batch: tuple[int, int] = BATCH) -> PhaseFunction:
    return chunk_function(made, batch=batch, context=context, new_tokens=NEW, hints=(WINDOW,), traces=40)


def random_points(count: int, context: tuple[int, int]) -> list[dict[str, int]]:
    rng = random.Random(11)
    return [
        {"batch": rng.randint(*BATCH), "new_tokens": rng.randint(*NEW), "context": rng.randint(*context)}
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("config", "context", "points", "proven"),
    [
        pytest.param(SMALL_LLAMA, CONTEXT, 6, 6, id="llama"),
        pytest.param(SMALL_LLAMA, (1, 3000), 20, 20, id="llama, far", marks=pytest.mark.slow),
        pytest.param(MOE, CONTEXT, 20, 20, id="experts", marks=pytest.mark.slow),
        pytest.param(MISTRAL, (1, 1000), 20, 8, id="window", marks=pytest.mark.slow),
    ],
)
def test_every_proven_point_is_what_a_trace_of_it_is(
    tmp_path: Path, config: dict[str, Any], context: tuple[int, int], points: int, proven: int
) -> None:
    """Every point lies in one cell or in one open region; in a cell the graph is that of a fresh trace, op by op."""
    made = made_of(tmp_path, config)
    function = function_of(made, context)
    assert function.traces <= 40
    exact = 0
    for point in random_points(points, context):
        regions = [one.region for one in (*function.cells, *function.open_regions)]
        holding = [one for one in regions if all(low <= point[name] <= high for name, (low, high) in one.items())]
        assert len(holding) == 1
        found = function.graph_at(point)
        if found is not None:
            assert same_run(found, made.graph(point)) is None
            exact += 1
    assert exact >= proven


def test_a_chunk_begins_at_two_tokens(tmp_path: Path) -> None:
    made = made_of(tmp_path, SMALL_LLAMA)
    with pytest.raises(UsageError, match="A chunk has 2 or more new tokens"):
        chunk_function(made, batch=(1, 2), context=(1, 9), new_tokens=(1, 4), hints=(), traces=4)


SEQUENCES = [(32, 0), (20, 100), (1, 50), (1, 50), (1, 7)]
# What a model runs on packed rows as on any others. Attention and its cache are ours here, masks there are none.
ON_ROWS = (
    *("embedding", "linear", "mean", "pow", "rsqrt", "silu", "neg"),
    *("topk", "softmax", "sort", "histc", "_grouped_mm"),
)


class Packed(torch.nn.Module):
    """A model of transformers on one row of tokens that belong to several sequences, each with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = transformers.AutoConfig.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="packed_by_a_test", dtype=torch.bfloat16
        ).eval()
        self.heads = (config.num_key_value_heads, 16)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor) -> Any:
        cache = PackedCache(self.heads, len(self.model.model.layers))
        return self.model(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=last
        ).logits


class PackedCache(transformers.Cache):  # type: ignore[misc]
    """Keys and values of each sequence; the new ones come in one row."""

    def __init__(self, heads: tuple[int, int], layers: int) -> None:
        self.layers = []
        self.held = [
            [torch.zeros(2, 1, heads[0], cached, heads[1], dtype=torch.bfloat16) for _, cached in SEQUENCES]
            for _ in range(layers)
        ]

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        new = [new for new, _ in SEQUENCES]
        pairs = zip(self.held[layer], keys.split(new, dim=2), values.split(new, dim=2), strict=True)
        whole = [(torch.cat([held[0], k], dim=2), torch.cat([held[1], v], dim=2)) for held, k, v in pairs]
        return torch.cat([k for k, _ in whole], dim=2), torch.cat([v for _, v in whole], dim=2)


def _attend_packed(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> tuple[Any, None]:
    new, keys = [new for new, _ in SEQUENCES], [new + cached for new, cached in SEQUENCES]
    parts = zip(query.split(new, dim=2), key.split(keys, dim=2), value.split(keys, dim=2), strict=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(*part, enable_gqa=True) for part in parts], dim=2).transpose(1, 2).contiguous(), None


def ragged_trace(folder: Path) -> CallGraph:
    positions = torch.cat([torch.arange(cached, cached + new) for new, cached in SEQUENCES])
    last = torch.tensor([new for new, _ in SEQUENCES]).cumsum(0) - 1
    return lpo.trace(Packed(folder), (torch.ones_like(positions)[None], positions[None], last)).graphs[0]


@pytest.mark.parametrize(
    "config", [pytest.param(SMALL_LLAMA, id="llama"), pytest.param(MOE, id="experts", marks=pytest.mark.slow)]
)
def test_a_packed_step_is_a_trace_of_the_same_ragged_batch(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own code on packed rows. FLOPs in all, and every figure of the ops that only see rows, are equal."""
    attentions: Any = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(attentions, "packed_by_a_test", _attend_packed)
    chunk = function_of(made_of(tmp_path, config), batch=(2, 8))
    steps = MixedSteps(model="small", chunk=chunk, phases={})
    chunks, decodes = SEQUENCES[:2], [cached for new, cached in SEQUENCES if new == 1]
    answer = steps.answer(chunks, decodes)
    traced, mine = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for kind, count in count_kinds(ragged_trace(tmp_path)).items():
        cost = price(kind)
        assert cost is not None
        name = kind.name.split(".")[1]
        traced[name, "flops"] += count * cost.flops
        traced[name, "vector_flops"] += count * cost.vector_flops
        traced[name, "bytes_moved"] += count * cost.bytes_moved
    for op in steps.by_op(chunks, decodes):
        mine.update({(op.op.split(".")[1], figure): value for figure, value in op.figures.items()})
    assert answer.flops == sum(value for (_, figure), value in traced.items() if figure == "flops")
    assert answer.flops == sum(value for (_, figure), value in mine.items() if figure == "flops")
    rows = {key: value for key, value in traced.items() if key[0] in ON_ROWS}
    assert len(rows) >= 20
    assert {key: mine[key] for key in rows} == rows
    attention = "scaled_dot_product_attention", "vector_flops"
    assert mine[attention] == traced[attention] > 0
    assert not {op.op.split(".")[1] for op in answer.unpacked} & {*ON_ROWS, "scaled_dot_product_attention"}


@pytest.mark.slow
def test_a_packed_step_in_python(tmp_path: Path) -> None:
    """Decodes and first chunks have the FLOPs of the traced phases; what cannot be packed is named, with a bound."""
    folder = write_folder(tmp_path, SMALL_LLAMA)
    function = lpo.trace(folder, prompt_tokens=16).over(batch=(1, 4), context=(1, 100), new_tokens=(2, 32))
    step = function.mixed_step(chunks=[(32, 0), (8, 90)], decodes=[50] * 20)
    assert (step.sequences, step.new_tokens, step.cached_tokens, step.checked) == (22, 60, 1090, 21)
    alone = function.chunk_at(context=90, new_tokens=8).stages().total.flops
    begun = function.at(context=32).graphs[0]
    one = function.at(context=50).graphs[1]
    parts = [sum(cost.flops * n for k, n in count_kinds(g).items() if (cost := price(k))) for g in (begun, one)]
    assert alone is not None
    assert step.flops == alone + parts[0] + 20 * parts[1]
    assert step.bytes_moved < step.bytes_moved_at_most
    assert {"aten.cos.default", "aten.le.Tensor"} <= {op.op for op in step.unpacked}
    weights = 2 * (2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 64 * 200)
    assert weights <= step.shared_bytes <= weights * 1.01  # and the scales of norms
    assert "One packed step" in step.tables
    with pytest.raises(UsageError, match="outside every proven cell"):
        function.mixed_step(decodes=[101])
    with pytest.raises(UsageError, match="at least one sequence"):
        function.mixed_step()
    with pytest.raises(UsageError, match="cannot have 0 new"):
        function.mixed_step(chunks=[(0, 4)])
