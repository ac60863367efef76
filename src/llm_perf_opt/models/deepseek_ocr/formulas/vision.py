"""SAM, CLIP and the projector on equally large square views: every product of every module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DeepSeekOcrConfig, SamConfig
from llm_perf_opt.models.deepseek_ocr.formulas.work import MatrixWork, convolution, fused_attention, linear, product

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


def vision_work(config: DeepSeekOcrConfig, views: Views) -> tuple[MatrixWork, ...]:
    """All three stages: SAM, then CLIP on its features, then the projector on both."""
    return (*sam_work(config.sam, views), *clip_work(config, views), *projector_work(config, views))


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
    yield product(
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
