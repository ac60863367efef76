"""Closed forms of DeepSeek-OCR: FLOPs, weights and memory from the configuration alone, without torch.

One multiply-add is two FLOPs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DecoderConfig, DeepSeekOcrConfig, SamConfig
from llm_perf_opt.ops.grouped_experts import expected_distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixWork:
    """One kind of matmul that one module does, over all its calls.

    `path` is the module that runs it in its forward; a `*` in it stands for every routed expert in use. `outputs` are
    elements put out, `weights` elements of the matrix that it multiplies with in one forward. `calls` is None where it
    depends on the routing.
    """

    path: str
    kind: str  # "linear", "conv", "attention scores", ...
    family: WorkFamily
    flops: int
    outputs: int
    calls: int | None
    weights: int = 0

    @property
    def operator(self) -> str:
        """Kind and place with the layer left out: `linear layers.self_attn.q_proj`."""
        place = re.sub(r"\.(\d+|\*)(?=\.|$)", "", self.path)
        return f"{self.kind} {place.removeprefix('model.')}"


def linear(path: str, rows: int, inputs: int, outputs: int, calls: int | None) -> MatrixWork:
    """`rows` vectors through one matrix; a bias adds no multiply-add."""
    plain = matmul(path, "linear", rows=rows, inner=inputs, columns=outputs, calls=calls)
    return replace(plain, weights=inputs * outputs)


def matmul(path: str, kind: str, *, rows: int, inner: int, columns: int, calls: int | None) -> MatrixWork:
    """Matmuls with `rows` rows, over all of them."""
    return MatrixWork(
        path=path,
        kind=kind,
        family=WorkFamily.MATMUL,
        flops=2 * rows * inner * columns,
        outputs=rows * columns,
        calls=calls,
    )


def convolution(path: str, positions: int, inputs: int, outputs: int, kernel: int, calls: int) -> MatrixWork:
    """A square kernel at `positions` places of the output."""
    return MatrixWork(
        path=path,
        kind="conv",
        family=WorkFamily.CONVOLUTION,
        flops=2 * positions * inputs * outputs * kernel * kernel,
        outputs=positions * outputs,
        calls=calls,
        weights=inputs * outputs * kernel * kernel,
    )


def fused_attention(path: str, *, queries: int, pairs: int, width: int, calls: int) -> MatrixWork:
    """Scores and weighted sum in one op: `4 * pairs * width`, `width` being the width of all heads together.

    Every pair of query and key counts, also where a causal mask hides it.
    """
    return MatrixWork(
        path=path,
        kind="fused attention",
        family=WorkFamily.ATTENTION,
        flops=4 * pairs * width,
        outputs=queries * width,
        calls=calls,
    )


def eager_attention(
    path: str, *, queries: int, pairs: int, heads: int, width: int, calls: int
) -> tuple[MatrixWork, MatrixWork]:
    """The same FLOPs as `fused_attention` in two matmuls, of which the first puts out the score matrix."""
    scores, values = (
        MatrixWork(
            path=path, kind=kind, family=WorkFamily.MATMUL, flops=2 * pairs * width, outputs=outputs, calls=calls
        )
        for kind, outputs in (("attention scores", pairs * heads), ("attention values", queries * width))
    )
    return scores, values


def total_flops(work: Iterable[MatrixWork]) -> int:
    """FLOPs of all of it."""
    return sum(piece.flops for piece in work)


def active_weights(work: Iterable[MatrixWork]) -> int:
    """Elements of the matrices and kernels in use; one that is used again, for other views, counts once."""
    return sum({piece.path: piece.weights for piece in work if piece.weights}.values())


def counted_activations(work: Iterable[MatrixWork]) -> int:
    """Elements put out by matmuls and convolutions, which is what fvcore counts; fused attention it does not see."""
    return sum(piece.outputs for piece in work if piece.family is not WorkFamily.ATTENTION)


PIXEL_CHANNELS = 3
SAM = "model.sam_model"
CLIP = "model.vision_model"
PROJECTOR = "model.projector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """`views` square views of `pixels` a side, which reach the encoders in `calls` batches."""

    pixels: int
    views: int = 1
    calls: int = 1


def sam_work(config: SamConfig, views: Views) -> tuple[MatrixWork, ...]:
    """Patches, blocks, and the convolutions that thin the features."""
    width, side = config.hidden_size, views.pixels // config.patch_size
    patches = views.views * side**2
    return (
        convolution(f"{SAM}.patch_embed.proj", patches, PIXEL_CHANNELS, width, config.patch_size, views.calls),
        *(piece for index in range(config.num_layers) for piece in _sam_block(config, index, side, views)),
        *_neck(config, side, views),
    )


def _sam_block(config: SamConfig, index: int, side: int, views: Views) -> Iterator[MatrixWork]:
    """Attention over the whole view, or over windows that are padded to full size; the MLP sees no padding."""
    path, width, patches = f"{SAM}.blocks.{index}", config.hidden_size, views.views * side**2
    if index in config.global_attn_indexes:
        yield from _sam_attention(config, f"{path}.attn", side=side, maps=views.views, calls=views.calls)
    else:
        windows = views.views * (-(-side // config.window_size)) ** 2
        yield from _sam_attention(config, f"{path}.attn", side=config.window_size, maps=windows, calls=views.calls)
    inner = width * config.mlp_ratio
    yield linear(f"{path}.mlp.lin1", patches, width, inner, views.calls)
    yield linear(f"{path}.mlp.lin2", patches, inner, width, views.calls)


def _sam_attention(config: SamConfig, path: str, *, side: int, maps: int, calls: int) -> Iterator[MatrixWork]:
    """Maps of side * side tokens; each query also meets one relative position per row and one per column."""
    width, tokens = config.hidden_size, maps * side**2
    queries_of_all_heads = tokens * config.num_heads
    yield linear(f"{path}.qkv", tokens, width, 3 * width, calls)
    yield matmul(
        path,
        "einsum of relative positions",
        rows=2 * queries_of_all_heads,
        inner=width // config.num_heads,
        columns=side,
        calls=2 * calls,
    )
    yield fused_attention(path, queries=tokens, pairs=tokens * side**2, width=width, calls=calls)
    yield linear(f"{path}.proj", tokens, width, width, calls)


def _neck(config: SamConfig, side: int, views: Views) -> Iterator[MatrixWork]:
    neck, (middle, last) = config.neck_channels, config.downsample_channels
    halved, quartered = -(-side // 2), config.feature_side(views.pixels)
    patches = views.views * side**2
    yield convolution(f"{SAM}.neck.0", patches, config.hidden_size, neck, 1, views.calls)
    yield convolution(f"{SAM}.neck.2", patches, neck, neck, 3, views.calls)
    yield convolution(f"{SAM}.net_2", views.views * halved**2, neck, middle, 3, views.calls)
    yield convolution(f"{SAM}.net_3", views.views * quartered**2, middle, last, 3, views.calls)


def clip_work(config: DeepSeekOcrConfig, views: Views) -> tuple[MatrixWork, ...]:
    """Blocks over one token per feature and the class token; CLIP's own patch embedding is never called."""
    tokens = config.sam.feature_side(views.pixels) ** 2 + 1
    layers = range(config.clip.num_layers)
    return tuple(piece for index in layers for piece in _clip_layer(config.clip, index, tokens, views))


def _clip_layer(config: ClipConfig, index: int, tokens: int, views: Views) -> Iterator[MatrixWork]:
    path, width, inner = f"{CLIP}.transformer.layers.{index}", config.hidden_size, config.ffn_hidden_size
    rows, calls = views.views * tokens, views.calls
    yield linear(f"{path}.self_attn.qkv_proj", rows, width, 3 * width, calls)
    yield fused_attention(f"{path}.self_attn", queries=rows, pairs=rows * tokens, width=width, calls=calls)
    yield linear(f"{path}.self_attn.out_proj", rows, width, width, calls)
    yield linear(f"{path}.mlp.fc1", rows, width, inner, calls)
    yield linear(f"{path}.mlp.fc2", rows, inner, width, calls)


def projector_work(config: DeepSeekOcrConfig, views: Views) -> tuple[MatrixWork, ...]:
    """One matrix over the features; the class token is left behind."""
    rows = views.views * config.sam.feature_side(views.pixels) ** 2
    return (linear(f"{PROJECTOR}.layers", rows, config.projector_input_size, config.decoder.hidden_size, views.calls),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One or more forwards of the decoder, by what their cost depends on, summed over batch and forwards.

    `tokens` go through every matrix; `pairs` of a query and a key meet in attention, hidden ones included; `positions`
    are turned into rotation angles, once for all sequences where these share them.
    """

    tokens: int
    pairs: int
    positions: int
    forwards: int


def prefill_pass(tokens: int, *, batch: int = 1) -> Passes:
    """One forward of `tokens` new tokens per sequence on an empty cache: tokens^2 pairs each."""
    return Passes(tokens=batch * tokens, pairs=batch * tokens**2, positions=tokens, forwards=1)


def decode_passes(context: int, *, steps: int = 1, batch: int = 1) -> Passes:
    """`steps` forwards of one token; the first meets a cache of `context` tokens and itself, each next one more."""
    pairs = steps * context + steps * (steps + 1) // 2
    return Passes(tokens=batch * steps, pairs=batch * pairs, positions=batch * steps, forwards=steps)


def decoder_work(config: DecoderConfig, passes: Passes, attention: str = "eager") -> tuple[MatrixWork, ...]:
    """Every layer, and the head on every position. The kind of attention changes ops and memory, not FLOPs."""
    layers = (_layer(config, index, passes, attention) for index in range(config.num_hidden_layers))
    head = linear("lm_head", passes.tokens, config.hidden_size, config.vocab_size, passes.forwards)
    return (*(piece for layer in layers for piece in layer), head)


def _layer(config: DecoderConfig, index: int, passes: Passes, attention: str) -> Iterator[MatrixWork]:
    path = f"model.layers.{index}"
    yield from _attention(config, f"{path}.self_attn", passes, attention)
    if index < config.first_k_dense_replace:
        yield from _mlp(f"{path}.mlp", passes.tokens, config.hidden_size, config.intermediate_size, passes.forwards)
    else:
        yield from _mixture(config, f"{path}.mlp", passes)


def _attention(config: DecoderConfig, path: str, passes: Passes, attention: str) -> Iterator[MatrixWork]:
    width, forwards = config.hidden_size, passes.forwards
    for name in ("q_proj", "k_proj", "v_proj"):
        yield linear(f"{path}.{name}", passes.tokens, width, width, forwards)
    # Frequencies times positions, an outer product: the inner dimension is one.
    yield matmul(
        f"{path}.rotary_emb",
        "matmul of rotary angles",
        rows=passes.positions,
        inner=1,
        columns=config.head_dim // 2,
        calls=forwards,
    )
    if attention == "eager":
        yield from eager_attention(
            path,
            queries=passes.tokens,
            pairs=passes.pairs,
            heads=config.num_attention_heads,
            width=width,
            calls=forwards,
        )
    else:
        yield fused_attention(path, queries=passes.tokens, pairs=passes.pairs, width=width, calls=forwards)
    yield linear(f"{path}.o_proj", passes.tokens, width, width, forwards)


def _mixture(config: DecoderConfig, path: str, passes: Passes) -> Iterator[MatrixWork]:
    """Router, routed experts, shared experts.

    Each token goes to `num_experts_per_tok` experts, whichever they are: routing decides how many experts are called,
    not how much they compute.
    """
    width, inner = config.hidden_size, config.moe_intermediate_size
    yield linear(f"{path}.gate", passes.tokens, width, config.n_routed_experts, passes.forwards)
    for piece in _mlp(f"{path}.experts.*", passes.tokens * config.num_experts_per_tok, width, inner, None):
        yield replace(piece, weights=piece.weights * experts_in_use(config, passes))
    shared = inner * config.n_shared_experts
    yield from _mlp(f"{path}.shared_experts", passes.tokens, width, shared, passes.forwards)


def experts_in_use(config: DecoderConfig, passes: Passes) -> int:
    """Routed experts of one layer that a forward touches: as many as uniform routing is expected to, rounded."""
    tokens, chosen = passes.tokens // passes.forwards, config.num_experts_per_tok
    return max(chosen, round(expected_distinct(config.n_routed_experts, chosen, tokens)))


def _mlp(path: str, rows: int, width: int, inner: int, calls: int | None) -> Iterator[MatrixWork]:
    yield linear(f"{path}.gate_proj", rows, width, inner, calls)
    yield linear(f"{path}.up_proj", rows, width, inner, calls)
    yield linear(f"{path}.down_proj", rows, inner, width, calls)


EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"


def parameters_by_part(config: DeepSeekOcrConfig) -> Mapping[str, int]:
    """Path -> elements, for parts that are disjoint and together the model; each decoder layer is one of them."""
    decoder = config.decoder
    layers = {f"model.layers.{index}": _decoder_layer(decoder, index) for index in range(decoder.num_hidden_layers)}
    return {
        EMBEDDING: decoder.vocab_size * decoder.hidden_size,
        **layers,
        "model.norm": decoder.hidden_size,
        SAM: sam_parameters(config.sam),
        CLIP: clip_parameters(config.clip),
        PROJECTOR: (config.projector_input_size + 1) * decoder.hidden_size,
        "model.image_newline": decoder.hidden_size,
        "model.view_seperator": decoder.hidden_size,
        HEAD: decoder.vocab_size * decoder.hidden_size,
    }


def parameters_by_stage(config: DeepSeekOcrConfig) -> Mapping[str, int]:
    """The three vision stages, and everything else: what prefill and decode own."""
    by_part = parameters_by_part(config)
    vision = {"sam": by_part[SAM], "clip": by_part[CLIP], "projector": by_part[PROJECTOR]}
    return {**vision, "decoder": sum(by_part.values()) - sum(vision.values())}


def sam_parameters(config: SamConfig) -> int:
    """Patch embedding, positions, blocks, neck, and the two convolutions that halve."""
    width, neck, (middle, last) = config.hidden_size, config.neck_channels, config.downsample_channels
    grid = config.image_size // config.patch_size
    embedding = (PIXEL_CHANNELS * config.patch_size**2 + 1) * width + grid**2 * width
    blocks = sum(_sam_block_parameters(config, index) for index in range(config.num_layers))
    thinning = width * neck + 9 * neck**2 + 2 * 2 * neck + 9 * neck * middle + 9 * middle * last
    return embedding + blocks + thinning


def _sam_block_parameters(config: SamConfig, index: int) -> int:
    width = config.hidden_size
    is_global = index in config.global_attn_indexes
    grid = config.image_size // config.patch_size if is_global else config.window_size
    relative_positions = 2 * (2 * grid - 1) * (width // config.num_heads)
    return _transformer_block(width, width * config.mlp_ratio) + relative_positions


def clip_parameters(config: ClipConfig) -> int:
    """Class token, the unused patch embedding, positions, the norm before the blocks, and the blocks."""
    width, positions = config.hidden_size, (config.image_size // config.patch_size) ** 2 + 1
    embedding = (1 + PIXEL_CHANNELS * config.patch_size**2 + positions) * width
    return embedding + 2 * width + config.num_layers * _transformer_block(width, config.ffn_hidden_size)


def _transformer_block(width: int, inner: int) -> int:
    """Two norms, four square projections and two of the MLP, all with biases."""
    return 2 * 2 * width + 4 * (width + 1) * width + (width + 1) * inner + (inner + 1) * width


def _decoder_layer(config: DecoderConfig, index: int) -> int:
    """Two norms, four square projections, and a gated MLP or a router with its experts; nothing has a bias."""
    width, inner = config.hidden_size, config.moe_intermediate_size
    shared = 2 * width + 4 * width**2
    if index < config.first_k_dense_replace:
        return shared + 3 * width * config.intermediate_size
    experts = config.n_routed_experts + config.n_shared_experts
    return shared + width * config.n_routed_experts + 3 * width * inner * experts


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormula:
    """Keys and values of every layer; all heads have their own."""

    layers: int
    heads: int
    head_dim: int
    bytes_per_value: int

    @classmethod
    def of(cls, config: DecoderConfig, bytes_per_value: int) -> CacheFormula:
        """The cache of a decoder that stores values of that many bytes."""
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            bytes_per_value=bytes_per_value,
        )

    def bytes_at(self, tokens: int, *, batch: int = 1) -> int:
        """Size when each of `batch` sequences holds `tokens` tokens."""
        return 2 * self.layers * self.heads * self.head_dim * self.bytes_per_value * tokens * batch


def weight_bytes(config: DeepSeekOcrConfig, bytes_per_value: int) -> int:
    """All weights in memory."""
    return sum(parameters_by_part(config).values()) * bytes_per_value


def active_parameters(config: DecoderConfig, *, batch: int = 1) -> int:
    """Elements of the matrices that one decoding step of `batch` tokens multiplies with.

    Norms and the embedding row are no matrices. More tokens use more experts: as many as uniform routing is expected to
    touch.
    """
    return active_weights(decoder_work(config, decode_passes(0, batch=batch)))


def weight_bytes_read_per_step(config: DecoderConfig, bytes_per_value: int, *, batch: int = 1) -> int:
    """The active matrices, every norm, and one row of the embedding per token."""
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    rows = batch * config.hidden_size
    return (active_parameters(config, batch=batch) + norms + rows) * bytes_per_value
