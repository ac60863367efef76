"""Vision models with more than one image or one of a particular form, and towers that are model types of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.models.huggingface.inputs.media import asked_sides, packed_patches
from llm_perf_opt.models.huggingface.inputs.plan import Filled, Leaf, Noise, Subject, integers
from llm_perf_opt.models.huggingface.inputs.recipes.recipe import ModelRecipe
from llm_perf_opt.models.huggingface.inputs.text import decoder_inputs, prompt_length, text_inputs


def image_pair(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Two images per row, 480 x 640 by default."""
    return {"pixel_values": Noise((subject.sizes.batch, 2, 3, *asked_sides(subject, 480, 640)))}


def depth_pro(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """The image must be as large as a patch after the strongest downscaling."""
    side = int(subject.config.patch_size / min(subject.config.scaled_images_ratios))
    return {"pixel_values": Noise((subject.sizes.batch, 3, side, side))}


def image_with_trimap(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Colours and, as a fourth channel, what is known of the foreground."""
    return {"pixel_values": Noise((subject.sizes.batch, 4, *asked_sides(subject, 512, 512)))}


def image_with_example(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """An image, an example image, and the example's mask painted in colours; each is half of what the model sees."""
    height, width = subject.config.image_size
    half = Noise((subject.sizes.batch, 3, height // 2, width))
    return {"pixel_values": half, "prompt_pixel_values": half, "prompt_masks": half}


def image_with_task(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """An image and the tokens of the task's name."""
    batch, length = subject.sizes.batch, subject.config.task_seq_len
    pixels = Noise((batch, 3, *asked_sides(subject, 512, 512)))
    return {"pixel_values": pixels, "task_inputs": Filled((batch, length), 1)}


def image_with_classes(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """An image, the names of three classes to find, and the task in words."""
    batch, length = subject.sizes.batch, 16
    return {
        "pixel_values": Noise((batch, 3, *asked_sides(subject, 640, 640))),
        "classes_input_ids": Filled((3 * batch, length), 7),
        "classes_attention_mask": Filled((3 * batch, length), 1),
        "tasks_input_ids": Filled((batch, length), 7),
        "tasks_attention_mask": Filled((batch, length), 1),
        "classes_structure": integers([3] * batch),
    }


def windowed_image(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Sides that windows of patches divide."""
    config = subject.config.backbone_config
    unit = config.patch_size * config.num_windows
    sides = (max(1, side // unit) * unit for side in asked_sides(subject, 560, 560))
    return {"pixel_values": Noise((subject.sizes.batch, 3, *sides))}


def flat_patches(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Patches of a rendered page, each preceded by its row and column."""
    vision = subject.config.vision_config
    length = 2 + vision.patch_embed_hidden_size
    return {
        "flattened_patches": Noise((subject.sizes.batch, 1024, length)),
        **decoder_inputs(subject, with_prompt=True),
    }


def grids_with_merge(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Packed patches, and how many of them each image merges per side."""
    return {**packed_patches(subject), "merge_sizes": integers([1] * subject.sizes.batch)}


def frames_with_question(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Frames of a video at the largest size the model pads to, and a question."""
    config = subject.config
    side = config.max_img_size
    return {**text_inputs(subject), "pixel_values": Noise((subject.sizes.batch, config.num_frames, 3, side, side))}


_PAIR = ModelRecipe(image_pair, ("image",))
PICTURES = {
    "depth_pro": ModelRecipe(depth_pro, ("image",)),
    "efficientloftr": _PAIR,
    "lightglue": _PAIR,
    "omdet-turbo": ModelRecipe(image_with_classes, ("image",)),
    "oneformer": ModelRecipe(image_with_task, ("image",)),
    "pix2struct": ModelRecipe(flat_patches, ("image",)),
    "rf_detr": ModelRecipe(windowed_image, ("image",)),
    "seggpt": ModelRecipe(image_with_example, ("image",)),
    "superglue": _PAIR,
    "tvp": ModelRecipe(frames_with_question, ("video",)),
    "video_llama_3_vision": ModelRecipe(grids_with_merge, ("image",)),
    "vitmatte": ModelRecipe(image_with_trimap, ("image",)),
}


def query_transformer(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """32 queries that look at the features of one image."""
    config, batch = subject.config, subject.sizes.batch
    return {
        "query_embeds": Noise((batch, 32, config.hidden_size)),
        "encoder_hidden_states": Noise((batch, 257, config.encoder_hidden_size)),
    }


def draft_model(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """One token to draft, on the keys and values that the main model's last layer of each kind left."""
    config, batch, seen = subject.config, subject.sizes.batch, prompt_length(subject)
    text: dict[str, Any] = config.get_text_config().to_dict()
    layers: list[dict[str, int]] = list(text.get("per_layer_config", {}).values())
    wide = layers[0]["head_dim"] if layers else text["head_dim"]
    heads = text["num_key_value_heads"]
    return {
        "inputs_embeds": Noise((batch, 1, 2 * config.backbone_hidden_size)),
        "position_ids": integers([[seen]] * batch),
        "shared_kv_states": {
            "full_attention": (Noise((batch, heads, seen, wide)),) * 2,
            "sliding_attention": (Noise((batch, heads, seen, text["head_dim"])),) * 2,
        },
    }


def block_drafter(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """A block of tokens to denoise, and the main model's states of the layers it listens to."""
    config, batch, seen = subject.config, subject.sizes.batch, prompt_length(subject)
    return {
        "noise_embeds": Noise((batch, config.block_size, config.hidden_size)),
        "context_hidden_states": Noise((batch, seen, config.hidden_size * len(config.target_layer_ids))),
    }


def timed_text(subject: Subject, counts: Mapping[str, int]) -> dict[str, Leaf]:
    """Text, and the embedding of the delay it is spoken with."""
    return {**text_inputs(subject), "t_cond": Noise((1, 1, subject.config.hidden_size))}


_DRAFT = ModelRecipe(draft_model)
TOWERS = {
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "muse_glimmer_assistant": ModelRecipe(block_drafter),
    "voxtral_realtime_text": ModelRecipe(timed_text),
    "blip_2_qformer": ModelRecipe(query_transformer, ("image",)),
}
