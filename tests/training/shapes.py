"""A decoder small enough to work out by hand."""

from __future__ import annotations

from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.costs.necessary.attention_sites import VisibleSpan
from llm_perf_opt.costs.necessary.decoder_needs import AttentionLayers
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks, EngineMatmul, Split
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.training_run import StateBytes, TrainingMethod, TrainingPlan, TrainingRun

HIDDEN, INNER, HEADS, WIDTH, LAYERS, VOCABULARY = 8, 16, 2, 4, 2, 32


def matmul(
    columns: int, depth: int, split: Split, part: DecoderPart, layers: int = LAYERS, keys: int = 0
) -> EngineMatmul:
    return EngineMatmul(
        columns=columns,
        depth=depth,
        weight_format="bfloat16",
        dtype="bfloat16",
        split=split,
        part=part,
        layers=layers,
        key_columns=keys,
        key_heads=HEADS if keys else 1,
    )


def blocks() -> EngineBlocks:
    """Query, key and value joined; a gated MLP; a head of its own."""
    return EngineBlocks(
        hidden=HIDDEN,
        layers=LAYERS,
        reduced=2 * LAYERS,
        layer_norms=2 * LAYERS + 1,
        matmuls=(
            matmul(3 * HIDDEN, HIDDEN, Split.COLUMNS, DecoderPart.ATTENTION, keys=2 * HIDDEN),
            matmul(HIDDEN, HIDDEN, Split.ROWS, DecoderPart.ATTENTION),
            matmul(2 * INNER, HIDDEN, Split.COLUMNS, DecoderPart.MLP),
            matmul(HIDDEN, INNER, Split.ROWS, DecoderPart.MLP),
            matmul(VOCABULARY, HIDDEN, Split.COLUMNS, DecoderPart.HEAD, layers=1),
        ),
        attentions=(
            AttentionLayers(
                layers=LAYERS,
                heads=HEADS,
                qk_width=WIDTH,
                v_width=WIDTH,
                span=VisibleSpan(is_causal=True),
                latent=None,
                cached_bytes=2 * HEADS * 2 * WIDTH,
                dtype="bfloat16",
                is_tail=False,
            ),
        ),
        experts=(),
        norms=(),
        states=None,
        cache_number_bytes=2,
    )


LAYER_MATRICES = LAYERS * (HIDDEN * 3 * HIDDEN + HIDDEN * HIDDEN + HIDDEN * 2 * INNER + INNER * HIDDEN)
NORMS = (2 * LAYERS + 1) * HIDDEN


def shape() -> ModelShape:
    return ModelShape(
        name="tiny",
        blocks=blocks(),
        layers=LAYERS,
        parameters=LAYER_MATRICES + NORMS + 2 * VOCABULARY * HIDDEN,
        expert_parameters=0,
        embedding_parameters=VOCABULARY * HIDDEN,
        head_parameters=VOCABULARY * HIDDEN,
        tower_parameters=0,
        factored_numbers=100,
        linear_names=("q_proj",),
        learnt_positions=None,
    )


def run(plan: TrainingPlan | None = None, **changed: object) -> TrainingRun:
    settings = {
        "method": TrainingMethod(),
        "states": StateBytes(weights=4, gradients=4, states=8),
        "plan": plan or TrainingPlan(),
        "cluster": parse_cluster("8x h100-sxm"),
        "sequence": 16,
        "micro_batch": 1,
        "sequences": 1,
    }
    return TrainingRun(**(settings | changed))  # type: ignore[arg-type]
