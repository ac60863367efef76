"""A released folder: its `config.json` as the blueprint's sizes, and its tokenizer; no code of it runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json
from llm_perf_opt.models.deepseek_ocr.configuration import ClipConfig, DecoderConfig, DeepSeekOcrConfig, SamConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def load_tokenizer(folder: Path, trust_remote_code: bool) -> tuple[Any | None, str]:
    """The tokenizer or None, and the sentence that says which."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None, "the folder holds no tokenizer: prompts are token ids or their number"
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return None, "transformers is not installed, so the folder's tokenizer is not read"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
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
        "global_attn_indexes": _tuple(width.get("global_attn_indexes")),
        "downsample_channels": _tuple(width.get("downsample_channels")),
    }
    return SamConfig(**_given(named))


def _clip(width: Mapping[str, Any]) -> ClipConfig:
    named = {
        "image_size": width.get("image_size"),
        "patch_size": width.get("patch_size"),
        "hidden_size": width.get("width"),
        "num_layers": width.get("layers"),
        "num_heads": width.get("heads"),
        "ffn_hidden_size": 4 * width["width"] if "width" in width else None,
    }
    return ClipConfig(**_given(named))


def _decoder(stored: Mapping[str, Any]) -> DecoderConfig:
    return DecoderConfig(**_given({field.name: stored.get(field.name) for field in fields(DecoderConfig)}))


def _given(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _tuple(value: Any) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) else None
