"""Plausible inputs for any transformers model: guessed from its signature and configuration, corrected by probing."""

from llm_perf_opt.models.huggingface.inputs.plan import InputSizes, Plan, Subject, make_inputs
from llm_perf_opt.models.huggingface.inputs.search import (
    Fed,
    Found,
    NoInputs,
    accepted_modalities,
    described,
    fed_by,
    find_inputs,
)

__all__ = [
    "Fed",
    "Found",
    "NoInputs",
    "Plan",
    "InputSizes",
    "Subject",
    "accepted_modalities",
    "described",
    "fed_by",
    "find_inputs",
    "make_inputs",
]
