"""Arguments that go with the main inputs and follow from them: boxes of tokens, masks over images, a second prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_perf_opt.models.huggingface.inputs.leaves import Filled, Leaf, Noise, Plan, Whole, ones
from llm_perf_opt.models.huggingface.inputs.subject import Subject
from llm_perf_opt.models.huggingface.inputs.text import token_ids

Companion = Callable[[Subject, Plan], Leaf | None]


def companions(subject: Subject, plan: Plan) -> dict[str, Leaf]:
    """Leaves for accepted arguments that no modality has filled and that the plan gives a shape to."""
    made = {name: make(subject, plan) for name, make in COMPANIONS.items() if subject.takes(name) and name not in plan}
    return {name: leaf for name, leaf in made.items() if leaf is not None}


def _per_token(subject: Subject, plan: Plan, *shape: int, value: int = 1) -> Leaf | None:
    ids = plan.get("input_ids")
    return Filled((*ids.shape, *shape), value) if isinstance(ids, Whole) else None


def _boxes(subject: Subject, plan: Plan) -> Leaf | None:
    """The same small box for every token; Bros measures boxes in fractions, the others in thousandths."""
    ids = plan.get("input_ids")
    if not isinstance(ids, Whole):
        return None
    if subject.model_type == "bros":
        return Noise((*ids.shape, 8))
    return Filled((*ids.shape, 4), 1)


def _image_mask_per_token(subject: Subject, plan: Plan) -> Leaf | None:
    pixels = plan.get("pixel_values")
    if not isinstance(pixels, Noise) or len(pixels.shape) != 5:
        return None
    return _per_token(subject, plan, pixels.shape[1])


def _query_prompt(subject: Subject, plan: Plan) -> Leaf:
    return token_ids(subject, 16)


def _query_mask(subject: Subject, plan: Plan) -> Leaf:
    return ones(subject.sizes.batch, 16)


COMPANIONS: Mapping[str, Companion] = {
    "bbox": _boxes,
    "image_attention_mask": _image_mask_per_token,
    "qformer_input_ids": _query_prompt,
    "qformer_attention_mask": _query_mask,
}
