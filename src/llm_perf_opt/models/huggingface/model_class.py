"""Which class of transformers runs a model type: the fullest head first, the bare model last."""

from __future__ import annotations

import importlib
from typing import Any

from llm_perf_opt.errors import PerfOptError

# Heads in the order of preference: what the model is published for, before what can be put on top of it.
HEADS = (
    "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "VISION_2_SEQ", "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM",
    "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "RETRIEVAL", "CTC", "RNNT", "TDT",
    "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION", "DEPTH_ESTIMATION", "MASK_GENERATION", "MASKED_LM",
)  # fmt: skip


def class_names(model_type: str) -> tuple[str, ...]:
    """Every class registered for `model_type`, the preferred one first."""
    tables = _tables()
    names = [name for table in tables if (name := table.get(model_type)) is not None]
    flat = [n for name in names for n in ([name] if isinstance(name, str) else name)]
    return tuple(dict.fromkeys(flat))


def _tables() -> list[dict[str, Any]]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    preferred = [f"MODEL_FOR_{head}_MAPPING_NAMES" for head in HEADS]
    others = [name for name in dir(auto) if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES")]
    order = dict.fromkeys([*preferred, "MODEL_MAPPING_NAMES", *others])
    return [getattr(auto, name) for name in order if hasattr(auto, name)]


def model_types() -> tuple[str, ...]:
    """Every model type that has a model class in the installed transformers."""
    return tuple(sorted({model_type for table in _tables() for model_type in table}))


def load_class(model_type: str, name: str) -> Any:
    """The class itself: from the package's front page, or from the model's own folder when it is not exported."""
    transformers = importlib.import_module("transformers")
    if (found := getattr(transformers, name, None)) is not None:
        return found
    naming = importlib.import_module("transformers.models.auto.configuration_auto")
    folder = naming.model_type_to_module_name(model_type)
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    if (found := getattr(module, name, None)) is not None:
        return found
    raise PerfOptError(
        f"transformers {transformers.__version__} names the class {name!r} but does not export it.",
        why=f"neither the package nor the folder of {model_type!r} has it",
        fix="use another version of transformers",
    )
