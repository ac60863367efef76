"""Every size of the model in one place, by default as released, and what it takes besides the common workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class SamConfig:
    """The windowed vision transformer that reads pixels, and the convolutions that thin its output."""

    image_size: int = 1024
    patch_size: int = 16
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_ratio: int = 4
    window_size: int = 14
    global_attn_indexes: tuple[int, ...] = (2, 5, 8, 11)
    neck_channels: int = 256
    downsample_channels: tuple[int, int] = (512, 1024)
    layer_norm_eps: float = 1e-6

    def feature_side(self, pixels: int) -> int:
        """Rows (and columns) of the feature map of a square view: each of the two convolutions halves, rounding up."""
        patches = pixels // self.patch_size
        return -(-patches // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """The global vision transformer that reads SAM's features in place of its own patches.

    `image_size` and `patch_size` only fix the learned grid of positions; other grids are interpolated from it.
    """

    image_size: int = 224
    patch_size: int = 14
    hidden_size: int = 1024
    num_layers: int = 24
    num_heads: int = 16
    ffn_hidden_size: int = 4096
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The mixture-of-experts language model. Queries, keys and values have the same number of heads."""

    vocab_size: int = 129280
    hidden_size: int = 1280
    intermediate_size: int = 6848
    num_hidden_layers: int = 12
    num_attention_heads: int = 10
    max_position_embeddings: int = 8192
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    first_k_dense_replace: int = 1
    n_routed_experts: int = 64
    n_shared_experts: int = 2
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 896
    routed_scaling_factor: float = 1.0
    bos_token_id: int = 0
    image_token_id: int = 128815

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMode:
    """How a page becomes square views, in pixels.

    The page is padded to `global_size`, or stretched to it when `is_stretched`. With a `crop_size`, a page larger than
    that is also cut into tiles.
    """

    global_size: int
    crop_size: int | None = None
    is_stretched: bool = False


RELEASED_MODES: Mapping[str, ImageMode] = MappingProxyType(
    {
        "tiny": ImageMode(global_size=512, is_stretched=True),
        "small": ImageMode(global_size=640, is_stretched=True),
        "base": ImageMode(global_size=1024),
        "large": ImageMode(global_size=1280),
        "gundam": ImageMode(global_size=1024, crop_size=640),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekOcrConfig:
    """The whole model; the default is the released one."""

    sam: SamConfig = field(default_factory=SamConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    modes: Mapping[str, ImageMode] = field(default_factory=lambda: RELEASED_MODES)

    @property
    def projector_input_size(self) -> int:
        """CLIP and SAM features side by side."""
        return self.clip.hidden_size + self.sam.downsample_channels[1]

    @classmethod
    def tiny(cls) -> DeepSeekOcrConfig:
        """A twin with every kind of block in miniature, which runs for real in milliseconds.

        It keeps windowed and global SAM blocks, windows that need padding, a dense and two sparse decoder layers, and
        the five modes at a sixteenth of their size.
        """
        return cls(
            sam=SamConfig(
                image_size=64,
                patch_size=4,
                hidden_size=16,
                num_layers=3,
                num_heads=2,
                window_size=5,
                global_attn_indexes=(2,),
                neck_channels=8,
                downsample_channels=(12, 24),
            ),
            clip=ClipConfig(image_size=16, patch_size=4, hidden_size=24, num_layers=2, num_heads=2, ffn_hidden_size=48),
            decoder=DecoderConfig(
                vocab_size=160,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=3,
                num_attention_heads=2,
                max_position_embeddings=512,
                n_routed_experts=8,
                num_experts_per_tok=3,
                moe_intermediate_size=16,
                image_token_id=159,
            ),
            modes=MappingProxyType(
                {
                    "tiny": ImageMode(global_size=32, is_stretched=True),
                    "small": ImageMode(global_size=40, is_stretched=True),
                    "base": ImageMode(global_size=64),
                    "large": ImageMode(global_size=80),
                    "gundam": ImageMode(global_size=64, crop_size=40),
                }
            ),
        )
