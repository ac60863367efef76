"""Any local Hugging Face folder as a model: prefill, and decode where the model generates."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.errors import PerfOptError, UsageError
from llm_perf_opt.models.huggingface.folder import import_transformers, load_config, load_model_class, read_folder
from llm_perf_opt.models.huggingface.inputs import Found, Sizes, Subject, accepted_modalities, find_inputs
from llm_perf_opt.models.huggingface.parts import guess_parts
from llm_perf_opt.models.huggingface.phases import DecodeState, decode, prefill
from llm_perf_opt.models.huggingface.probe import Probe
from llm_perf_opt.models.huggingface.stages import guess_stages
from llm_perf_opt.plugins import FOLDER_INPUTS, FOLDER_PARTS, Json, Part, Target, Workload

log = logging.getLogger(__name__)

DEFAULT_PROMPT_TOKENS = 128
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ATTENTIONS = ("eager", "sdpa")
TRANSFORMERS_NAMES = {"flash": "flash_attention_2"}
# What a constructor raises when sizes do not fit, a field is missing, or an optional package is not there.
BUILD_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class HuggingFaceAdapter:
    """Runs whatever the folder's `config.json` describes; weights are neither needed nor read."""

    title = "A local Hugging Face folder"

    def __init__(self, folder: Path, trust_remote_code: bool) -> None:
        self._folder = read_folder(folder)
        self._config = load_config(self._folder, trust_remote_code)
        self._model_class = load_model_class(self._folder, self._config, trust_remote_code)
        self.title = f"{self._model_class.__name__} in {folder}"

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill, then decode on a cache of that length if the model keeps one and steps are asked for.

        A model type with a folder of its own here gets its inputs from there. For any other they are found by probing
        the model on an engine of our own; what is found is part of the workload.
        """
        name = self._folder.path.resolve().name
        if self._folder.model_type in FOLDER_INPUTS.names():
            build = partial(build_model, self._model_class, self._config, workload.attention or "eager", workload.dtype)
            return FOLDER_INPUTS.get(self._folder.model_type)(name, build, workload)
        _refuse_nonsense(workload)
        return self._probed_targets(name, workload)

    def parts(self) -> tuple[Part, ...]:
        """Those of the model type's own folder here, or one of each kind of block."""
        if self._folder.model_type in FOLDER_PARTS.names():
            return FOLDER_PARTS.get(self._folder.model_type)()
        with torch.device("meta"):
            return guess_parts(build_model(self._model_class, self._config, None, "float32"))

    def _probed_targets(self, name: str, workload: Workload) -> tuple[Target, ...]:
        dtype = DTYPES[workload.dtype]
        build = partial(build_model, self._model_class, self._config, workload.attention, workload.dtype)
        probe = Probe(build, dtype)
        subject = Subject.of(self._model_class, probe.model.config, _sizes(workload))
        found = find_inputs(subject, probe.prefill)
        _tell_what_is_missing(subject, found, workload)
        first = Target(
            model=name,
            phase="prefill",
            workload=_resolved(workload, found, probe.model.config),
            build=cache(build),
            invoke=partial(prefill, plan=found.plan, dtype=dtype, entry=found.entry),
            stages=guess_stages(probe.model),
            runtime=_runtime(probe.model.config, found, decode_steps=0),
        )
        state = probe.decode_state(found.plan) if workload.decode_steps else None
        if state is None:
            return (first,)
        return first, _decode_target(first, state, found, workload.decode_steps)


def _tell_what_is_missing(subject: Subject, found: Found, workload: Workload) -> None:
    """A model that can take images or sound but was fed without them ran less than it is: warn, or refuse a wish."""
    missing = [kind for kind in accepted_modalities(subject) if kind not in found.modalities]
    if workload.image is not None and "image" not in found.modalities:
        raise UsageError(
            f"{subject.class_name} does not run with an image of {workload.image}.",
            why=found.refusals[0] if "image" in missing and found.refusals else "its forward takes no pixels",
            fix="leave the image out, or give a size that the model's processor would make",
        )
    if missing:
        refusal = found.refusals[0] if found.refusals else "none was tried"
        log.warning("%s runs without %s: no accepted input was found (%s)", subject.class_name, missing, refusal)


def build_model(model_class: Any, config: Any, attention: str | None, dtype: str) -> Any:
    """The model as `from_pretrained` would make it in `dtype`, without its weights, in evaluation mode."""
    version: str = import_transformers().__version__
    wishes: dict[str, Any] = {"dtype" if int(version.split(".")[0]) >= 5 else "torch_dtype": DTYPES[dtype]}
    if attention is not None:
        wishes["attn_implementation"] = TRANSFORMERS_NAMES.get(attention, attention)
    try:
        return model_class._from_config(copy.deepcopy(config), **wishes).eval()
    except BUILD_ERRORS as error:
        raise PerfOptError(
            f"{model_class.__name__} cannot be built from its configuration.",
            why=f"{type(error).__name__}: {str(error)[:500]}",
            fix=f"check the configuration, install what it asks for, or use another transformers (this is {version})",
        ) from error


def _decode_target(first: Target, state: DecodeState, found: Found, steps: int) -> Target:
    return replace(
        first,
        phase="decode",
        invoke=partial(decode, state=state, plan=found.plan, steps=steps),
        runtime={**first.runtime, "images": 0, "decode_steps": steps},
    )


def _sizes(workload: Workload) -> Sizes:
    prompt = DEFAULT_PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens
    return Sizes(batch=workload.batch, prompt_tokens=prompt, image=_image_sides(workload.image))


def _image_sides(image: str | None) -> tuple[int, int] | None:
    """(height, width) of `WIDTHxHEIGHT`."""
    if image is None:
        return None
    if (match := re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", image)) is None:
        raise UsageError(
            f"A Hugging Face folder cannot be traced with the image {image!r}.",
            why="without the model's processor only the size of an image is used",
            fix="give its size after the processor's resizing, as WIDTHxHEIGHT",
        )
    return int(match[2]), int(match[1])


def _resolved(workload: Workload, found: Found, config: Any) -> dict[str, Json]:
    return {
        "prompt_tokens": DEFAULT_PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens,
        "modalities": " + ".join(found.modalities),
        "inputs": {name: _shape_of(leaf) for name, leaf in found.plan.items()},
        "decode_steps": workload.decode_steps,
        "batch": workload.batch,
        "dtype": workload.dtype,
        "attention": workload.attention or getattr(config, "_attn_implementation", None) or "model default",
    }


def _shape_of(leaf: object) -> Json:
    shape = getattr(leaf, "shape", None)
    return list(shape) if shape is not None else str(leaf)


def _runtime(config: Any, found: Found, *, decode_steps: int) -> dict[str, Json]:
    depth = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    images = found.plan.get("pixel_values") is not None
    return {
        "images": int(images),
        **({"decoder_depth": depth} if isinstance(depth, int) else {}),
        "decode_steps": decode_steps,
    }


def _refuse_nonsense(workload: Workload) -> None:
    for name in ("mode", "crops"):
        if getattr(workload, name) is not None:
            raise UsageError(
                f"A Hugging Face folder has no {name}.",
                why="modes and crop grids belong to a model's processor, which is not run",
                fix=f"leave {name} out; give --image WIDTHxHEIGHT for the size the processor would make",
            )
    if workload.dtype not in DTYPES:
        raise UsageError(f"No dtype {workload.dtype!r}.", why=f"known: {', '.join(DTYPES)}", fix="pick one of these")
    if workload.attention not in (None, *ATTENTIONS):
        raise UsageError(
            f"Attention {workload.attention!r} cannot be run for a Hugging Face folder.",
            why="transformers calls the compiled flash_attn package for it, which needs a GPU",
            fix="use sdpa: torch's fused attention has the same shapes, FLOPs and memory",
        )
