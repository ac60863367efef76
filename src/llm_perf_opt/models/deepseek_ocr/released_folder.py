"""Folders of the model: a released one, read without running its code, and one that a serving engine takes for it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.reading import MODEL_FILE, as_record, naming_file, read_foreign_json, require_own_files
from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DecoderConfig, DeepSeekOcrConfig, SamConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".jinja")  # of all that a tokenizer may read
# What reading a tokenizer may raise, apart from `Exception` itself, which is all that the library below it knows.
_TOKENIZER_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, RecursionError)


def load_tokenizer(folder: Path, trust_remote_code: bool) -> tuple[Any | None, str]:
    """The tokenizer or None, and the sentence that says which."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None, "the folder holds no tokenizer: prompts are token ids or their number"
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return None, "transformers is not installed, so the folder's tokenizer is not read"
    files = (*folder.iterdir(), *folder.glob("*/*"))  # transformers reads further chat templates from a folder inside
    require_own_files(folder, (file for file in files if file.suffix in TOKENIZER_SUFFIXES))
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, _TOKENIZER_ERRORS):
            raise
        return None, f"the folder's tokenizer cannot be read: {type(error).__name__}: {str(error)[:200]}"
    return tokenizer, f"tokenizer {type(tokenizer).__name__} of the folder"


MODEL_TYPE = "DeepseekOCR"
_SAM, _CLIP = "sam_vit_b", "clip-l-14-224"
# Ways of the released architecture that the blueprint does not have: another value needs the folder's own code.
_ONLY = {
    "use_mla": False,
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "topk_method": "greedy",
    "moe_layer_freq": 1,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
_MAY_BE_ZERO = ("global_attn_indexes", "first_k_dense_replace", "n_shared_experts", "bos_token_id", "image_token_id")
_LARGEST = 2**31
Sizes = TypeVar("Sizes", SamConfig, ClipConfig, DecoderConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedFolder:
    """What a folder says about itself."""

    config: DeepSeekOcrConfig
    eos_token_id: int | None


def read_released_folder(folder: Path) -> ReleasedFolder:
    """The sizes in `config.json`; those it does not name are the released ones."""
    file = folder / "config.json"
    stored = read_foreign_json(file, MODEL_FILE)
    if not isinstance(stored, dict) or stored.get("model_type") != MODEL_TYPE:
        raise UsageError(
            f"{folder} does not hold DeepSeek-OCR.",
            why=f"its config.json does not name the model type {MODEL_TYPE}",
            fix="point at the released folder; other models are traced with llm-perf-opt trace DIR",
        )
    _refuse_other_ways(file, stored)
    encoders = _mapping(_mapping(stored, "vision_config"), "width")
    with naming_file(file):
        config = DeepSeekOcrConfig(
            sam=_sam(_mapping(encoders, _SAM), _mapping(stored, "vision_config")),
            clip=_clip(_mapping(encoders, _CLIP)),
            decoder=_decoder(stored),
        )
    eos = stored.get("eos_token_id")
    return ReleasedFolder(config=config, eos_token_id=eos if isinstance(eos, int) else None)


def _refuse_other_ways(file: Path, stored: Mapping[str, Any]) -> None:
    different = {name: stored[name] for name, way in _ONLY.items() if stored.get(name, way) != way}
    if stored.get("num_key_value_heads", stored.get("num_attention_heads")) != stored.get("num_attention_heads"):
        different["num_key_value_heads"] = stored["num_key_value_heads"]
    if different:
        raise UsageError(
            f"{file} describes a decoder that the blueprint does not have.",
            why=", ".join(f"{name} is {value!r}" for name, value in different.items()),
            fix="load it with trust_remote_code=True, which runs the folder's own code",
        )


def _mapping(outer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = outer.get(name)
    return inner if isinstance(inner, dict) else {}


def _sam(width: Mapping[str, Any], vision: Mapping[str, Any]) -> SamConfig:
    named = {
        "image_size": vision.get("image_size"),
        "hidden_size": width.get("width"),
        "num_layers": width.get("layers"),
        "num_heads": width.get("heads"),
        "global_attn_indexes": width.get("global_attn_indexes"),
        "downsample_channels": width.get("downsample_channels"),
    }
    return _checked(named, SamConfig)


def _clip(width: Mapping[str, Any]) -> ClipConfig:
    channels = width.get("width")
    named = {
        "image_size": width.get("image_size"),
        "patch_size": width.get("patch_size"),
        "hidden_size": channels,
        "num_layers": width.get("layers"),
        "num_heads": width.get("heads"),
        "ffn_hidden_size": 4 * channels if isinstance(channels, int) else None,
    }
    return _checked(named, ClipConfig)


def _decoder(stored: Mapping[str, Any]) -> DecoderConfig:
    return _checked({field.name: stored.get(field.name) for field in fields(DecoderConfig)}, DecoderConfig)


def _checked(named: Mapping[str, Any], record: type[Sizes]) -> Sizes:
    """The record of the sizes that are given, each of its type and of a model that there can be."""
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in given.items():
        numbers = value if isinstance(value, list) else [value]
        least = 0 if name in _MAY_BE_ZERO else 1
        if any(isinstance(number, int) and not least <= number < _LARGEST for number in numbers):
            raise MODEL_FILE.malformed(name, f"a number from {least} to {_LARGEST - 1:,}", value)
    return as_record(given, record, MODEL_FILE)


# A folder that a serving engine takes for the model: its configuration, from the sizes of the blueprint.
#
# An engine that only schedules reads no weights and no words: it needs the sizes of the cache.

_MODEL_TYPE = "deepseek_vl_v2"  # as the released configuration calls itself


def write_engine_folder(config: DeepSeekOcrConfig, folder: Path) -> None:
    """The configuration, as `from_pretrained` of other programs reads it."""
    write_whole(folder / "config.json", [json.dumps(_configuration(config)).encode()])


def _configuration(config: DeepSeekOcrConfig) -> dict[str, Any]:
    decoder, side = config.decoder, config.sam.image_size
    language = _language(decoder)
    return {
        **language,
        "architectures": ["DeepseekOCRForCausalLM"],
        "candidate_resolutions": [[side, side]],
        "global_view_pos": "head",
        "language_config": {"architectures": ["DeepseekV2ForCausalLM"], **language},
        "model_type": _MODEL_TYPE,
        "projector_config": {
            "input_dim": config.projector_input_size,
            "model_type": "mlp_projector",
            "n_embed": decoder.hidden_size,
            "projector_type": "linear",
        },
        "rms_norm_eps": decoder.rms_norm_eps,
        "rope_theta": decoder.rope_theta,
        "tie_word_embeddings": False,
        "tile_tag": "2D",
        "vision_config": _vision(config.sam, config.clip),
    }


def _language(decoder: DecoderConfig) -> dict[str, Any]:
    same = (
        "bos_token_id",
        "first_k_dense_replace",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "vocab_size",
    )
    return {
        **{name: getattr(decoder, name) for name in same},
        "eos_token_id": 1,
        "kv_lora_rank": None,
        "n_group": 1,
        "num_key_value_heads": decoder.num_attention_heads,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "topk_group": 1,
        "topk_method": "greedy",
        "torch_dtype": "bfloat16",
        "use_mla": False,
        "v_head_dim": 0,
    }


def _vision(sam: SamConfig, clip: ClipConfig) -> dict[str, Any]:
    return {
        "image_size": sam.image_size,
        "model_type": "vision",
        "width": {
            "clip-l-14-224": {
                "heads": clip.num_heads,
                "image_size": clip.image_size,
                "layers": clip.num_layers,
                "patch_size": clip.patch_size,
                "width": clip.hidden_size,
            },
            "sam_vit_b": {
                "downsample_channels": list(sam.downsample_channels),
                "global_attn_indexes": list(sam.global_attn_indexes),
                "heads": sam.num_heads,
                "layers": sam.num_layers,
                "width": sam.hidden_size,
            },
        },
    }
