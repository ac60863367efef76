from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.models.huggingface.inputs import InputSizes, NoInputs, Plan, Subject, accepted_modalities, find_inputs
from llm_perf_opt.models.huggingface.inputs.plan import Integers, Noise

IMAGE_TOKEN = 99


class Config(SimpleNamespace):
    """As much of a configuration as the rules look at."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


class EyesAndWords:
    main_input_name = "input_ids"

    def forward(self, input_ids: Any = None, attention_mask: Any = None, pixel_values: Any = None) -> None:
        """Only the signature matters."""


def subject(batch: int = 1) -> Subject:
    vision = Config(model_type="eyes", image_size=32, patch_size=8, num_channels=3)
    config = Config(
        model_type="made_up", image_token_id=IMAGE_TOKEN, vocab_size=100, hidden_size=16, vision_config=vision
    )
    return Subject.of(EyesAndWords, config, InputSizes(batch=batch, prompt_tokens=10))


def placeholders(plan: Plan) -> int:
    ids = plan["input_ids"]
    assert isinstance(ids, Integers)
    return ids.values.count(IMAGE_TOKEN)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_number_of_placeholders_is_learnt_from_the_model(batch: int) -> None:
    features = 16 * batch

    def run(plan: Plan, entry: str) -> None:
        if placeholders(plan) != features:
            raise ValueError(
                f"Image features and image tokens do not match, tokens: {placeholders(plan)}, features: {features}"
            )

    found = find_inputs(subject(batch), run)
    assert placeholders(found.plan) == features
    assert found.plan["pixel_values"] == Noise((batch, 3, 32, 32))
    assert found.modalities == ("text", "image")
    assert found.refusals == ()


def test_features_counted_in_numbers_are_understood() -> None:
    def run(plan: Plan, entry: str) -> None:
        if placeholders(plan) != 4:
            raise ValueError(
                f"Image features and image tokens do not match, tokens: {placeholders(plan)}, features: 64"
            )

    assert placeholders(find_inputs(subject(), run).plan) == 4


def test_a_model_that_refuses_images_runs_on_text_and_says_why() -> None:
    def run(plan: Plan, entry: str) -> None:
        if "pixel_values" in plan:
            raise RuntimeError("no eyes today")

    found = find_inputs(subject(), run)
    assert found.modalities == ("text",)
    assert set(found.refusals) == {"RuntimeError: no eyes today"}
    assert accepted_modalities(subject()) == ("text", "image")


def test_nothing_accepted_is_an_error_with_the_models_words() -> None:
    def run(plan: Plan, entry: str) -> None:
        raise TypeError("never")

    with pytest.raises(NoInputs, match="never") as refusal:
        find_inputs(subject(), run)
    assert isinstance(refusal.value.__cause__, TypeError)


def test_a_wrong_lesson_does_not_loop() -> None:
    attempts = 0

    def run(plan: Plan, entry: str) -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError(f"Image features and image tokens do not match, tokens: {attempts}, features: {attempts + 1}")

    with pytest.raises(NoInputs):
        find_inputs(subject(), run)
    assert attempts < 100


def test_words_avoid_special_tokens() -> None:
    special = subject()
    special.config.eos_token_id = 7
    special.config.boi_token_id = [8, 9]
    found = find_inputs(special, lambda plan, entry: None)
    ids = found.plan["input_ids"]
    assert isinstance(ids, Integers)
    words = [token for token in ids.values if token != IMAGE_TOKEN]
    assert not {7, 8, 9}.intersection(words[-10:])
    assert max(words) < 100
