"""Composite models that combine images and text in a way of their own."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from llm_perf_opt.models.huggingface.inputs.media import (
    merged_grid,
    packed_patches,
    picture,
    plain_image,
    square_patches,
)
from llm_perf_opt.models.huggingface.inputs.plan import Integers, Leaf, Noise, Subject, integers, number, ones
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.text import ordinary_tokens, prompt_length, runs_for, text_inputs, token_ids


def kosmos_2(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """The first tokens after the start are where the image's latent queries go, marked by a mask; the rest is text."""
    return {**_marked_latents(subject), **plain_image(subject)}


def _marked_latents(subject: Subject) -> dict[str, Leaf]:
    """One word, as many tokens as the image has latent queries, the other words, and which of them are the image's."""
    batch, words, latents = subject.sizes.batch, prompt_length(subject), subject.config.latent_query_num
    mask = [0] + [1] * latents + [0] * (words - 1)
    return {
        "input_ids": token_ids(subject, words + latents),
        "attention_mask": ones(batch, words + latents),
        "image_embeds_position_mask": integers([mask] * batch),
    }


def lxmert(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Text, and the features and boxes of 36 regions found in an image."""
    config, batch = subject.config, subject.sizes.batch
    return {
        **text_inputs(subject),
        "visual_feats": Noise((batch, 36, config.visual_feat_dim)),
        "visual_pos": Noise((batch, 36, config.visual_pos_dim)),
    }


def packed_strip(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """All patches side by side in one strip as high as a patch, with the grid each image had."""
    view, batch = picture(subject), subject.sizes.batch
    rows, columns = view.rows // 4 * 4, view.columns // 4 * 4
    strip = Noise((1, view.channels, view.patch, batch * rows * columns * view.patch))
    return {"pixel_values": strip, "target_sizes": integers([[rows, columns]] * batch)}


def codes_beside_text(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Each position holds one text token and one code per codebook."""
    config, batch, length = subject.config, subject.sizes.batch, prompt_length(subject)
    row, codes = array("q"), array("q", [1]) * config.num_codebooks
    for token in ordinary_tokens(config, length):
        row.append(token)
        row += codes
    ids = Integers(row, (batch, length, 1 + config.num_codebooks))
    return {"input_ids": ids, "attention_mask": ones(batch, length)}


def omni(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """An image, a sound and a question; positions are computed before features, so the counts must be right at once."""
    merge = number(subject.vision(), "spatial_merge_size") or 1
    sound, frames = (64, 256) if subject.model_type.startswith("qwen2_5") else (52, 400)
    exact = {"image": math.prod(merged_grid(subject)) // merge**2, "audio": sound}
    mels = number(subject.audio(), "num_mel_bins") or 128
    batch = subject.sizes.batch
    fed: dict[str, dict[str, Leaf]] = {
        "image": packed_patches(subject),
        "audio": {"input_features": Noise((batch, mels, frames)), "feature_attention_mask": ones(batch, frames)},
    }
    runs = list(runs_for(subject, {kind: exact[kind] for kind in counts}))
    return {**text_inputs(subject, runs), **{name: leaf for kind in counts for name, leaf in fed[kind].items()}}


def tiles_across(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Four tiles of one image, reached by cross attention from every token."""
    view, batch, tiles = picture(subject), subject.sizes.batch, subject.config.vision_config.max_num_tiles
    plan = text_inputs(subject)
    ids = plan["input_ids"]
    assert isinstance(ids, Integers)
    return {
        **plan,
        "pixel_values": Noise((batch, 1, tiles, view.channels, view.height, view.width)),
        "aspect_ratio_ids": ones(batch, 1),
        "aspect_ratio_mask": ones(batch, 1, tiles),
        "cross_attention_mask": ones(*ids.shape, 1, tiles),
    }


def two_resolutions(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """The same image twice: small for one tower, large for the other."""
    side = subject.config.high_res_vision_config.image_size
    batch = subject.sizes.batch
    return {
        **text_inputs(subject, list(runs_for(subject, counts))),
        **plain_image(subject),
        "high_res_pixel_values": Noise((batch, 3, side, side)),
    }


def rendered_page(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Patches of a page with their row and column, and a mask that says which tokens stand for it."""
    config, batch = subject.config, subject.sizes.batch
    length = 2 + config.vision_config.patch_embed_hidden_size
    patches = Noise((batch, config.vision_config.max_num_patches, length))
    return {**_marked_latents(subject), "flattened_patches": patches}


def merged_images(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Packed patches, how many of them each image merges per side, and a question."""
    return {
        **text_inputs(subject, list(runs_for(subject, counts))),
        **packed_patches(subject),
        "image_merge_sizes": integers([1] * subject.sizes.batch),
    }


def patches_per_row(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Square patches with a row for each image in the batch."""
    pixels = square_patches(subject)
    leaf = pixels["pixel_values"]
    assert isinstance(leaf, Noise)
    batch = subject.sizes.batch
    return {
        **text_inputs(subject, list(runs_for(subject, counts))),
        **pixels,
        "pixel_values": Noise((batch, leaf.shape[0] // batch, *leaf.shape[1:])),
    }


def rows_of_patches(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Flat patches with a row for each image in the batch."""
    pixels = packed_patches(subject)
    leaf = pixels["pixel_values"]
    assert isinstance(leaf, Noise)
    batch = subject.sizes.batch
    return {
        **text_inputs(subject, list(runs_for(subject, counts))),
        **pixels,
        "pixel_values": Noise((batch, leaf.shape[0] // batch, leaf.shape[1])),
    }


def loose_patches(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Flat patches of one image without a grid: the processor hands their places on as positions of tokens."""
    config, batch, patches = subject.config, subject.sizes.batch, _patch_count(subject)
    runs = list(runs_for(subject, {"image": patches}))
    return {**text_inputs(subject, runs), "pixel_values": Noise((batch * patches, 3 * config.patch_size**2))}


def _patch_count(subject: Subject) -> int:
    """Of the image that was asked for, or 64."""
    view = picture(subject)
    return view.rows * view.columns if subject.sizes.image else 64


def patches_as_tokens(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Flat patches that go through one linear layer and stand among the words, without a vision tower."""
    config, batch, patches = subject.config, subject.sizes.batch, _patch_count(subject)
    runs = list(runs_for(subject, {"image": patches}))
    length = config.num_channels * config.patch_size**2
    return {**text_inputs(subject, runs), "image_patches": Noise((batch, patches, length))}


def patches_with_sides(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Flat patches of one image, and its rows and columns."""
    view, batch = picture(subject), subject.sizes.batch
    rows, columns = merged_grid(subject)
    return {
        **text_inputs(subject, list(runs_for(subject, counts))),
        "pixel_values": Noise((batch * rows * columns, view.channels * view.patch**2)),
        "image_grid_hw": integers([[rows, columns]] * batch),
    }


def crops_and_sound(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """One crop and the whole of an image with masks over their patches, and a sound with its length in tokens."""
    view, batch = picture(subject), subject.sizes.batch
    frames, sound = 488, 61
    fed: dict[str, dict[str, Leaf]] = {
        "image": {
            "image_pixel_values": Noise((batch, 2, view.channels, view.height, view.width)),
            "image_attention_mask": ones(batch, 2, view.rows, view.columns),
            "image_sizes": integers([[view.height, view.width]] * batch),
        },
        "audio": {
            "audio_input_features": Noise((batch, frames, number(subject.audio(), "input_size") or 80)),
            "audio_embed_sizes": integers([sound] * batch),
        },
    }
    runs = list(runs_for(subject, {kind: sound if kind == "audio" else count for kind, count in counts.items()}))
    return {**text_inputs(subject, runs), **{name: leaf for kind in counts for name, leaf in fed[kind].items()}}


_OMNI = ModelRecipe(omni, ("image", "audio"), chooses=True)
_OMNI_THINKER = ModelRecipe(omni, ("image", "audio"), entry="thinker", chooses=True)
MULTIMODAL = {
    "colqwen2": ModelRecipe(rows_of_patches, ("image",)),
    "deepseek_vl_hybrid": ModelRecipe(two_resolutions, ("image",)),
    "fuyu": ModelRecipe(patches_as_tokens, ("image",)),
    "kosmos-2": ModelRecipe(kosmos_2, ("image",)),
    "kosmos-2.5": ModelRecipe(rendered_page, ("image",)),
    "kyutai_speech_to_text": ModelRecipe(codes_beside_text, ("audio",)),
    "lxmert": ModelRecipe(lxmert, ("image",)),
    "minicpm_ocr_vision": ModelRecipe(packed_strip, ("image",)),
    "minicpmv4_7_vision": ModelRecipe(packed_strip, ("image",)),
    "mllama": ModelRecipe(tiles_across, ("image",)),
    "nemotron_h_omni": ModelRecipe(patches_with_sides, ("image",)),
    "neomme": ModelRecipe(loose_patches, ("image",)),
    "paddleocr_vl": ModelRecipe(patches_per_row, ("image",)),
    "phi4_multimodal": ModelRecipe(crops_and_sound, ("image", "audio"), chooses=True),
    "qwen2_5_omni": _OMNI_THINKER,
    "qwen2_5_omni_thinker": _OMNI,
    "qwen3_omni_moe": _OMNI_THINKER,
    "qwen3_omni_moe_thinker": _OMNI,
    "video_llama_3": ModelRecipe(merged_images, ("image",)),
}
