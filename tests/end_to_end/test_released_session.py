"""The released code in a session: the tokens of its own `generate`, with and without crops."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession
from tests.end_to_end.released_folders import needs_released_code, small_folder

pytestmark = needs_released_code
PROMPT = (7, 8, 9, 10, 11)
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> DeepSeekOCRSession:
    """Its code and its vision encoders as released, its decoder with two small layers, float32."""
    place = small_folder(tmp_path_factory.mktemp("released") / "model", layers=2)
    made = DeepSeekOCRSession.from_local(
        place, use_flash_attn=True, trust_remote_code=True, dtype="float32", weights="random"
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # large enough that the page and the prompt decide what comes out
        for name, parameter in made.model.named_parameters():
            if parameter.ndim > 1 and "layers" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.08)
    return made


@pytest.mark.parametrize(("mode", "crops"), [("tiny", None), ("gundam", (1, 2))])
def test_tokens_are_those_of_its_own_generate(
    session: DeepSeekOCRSession, mode: str, crops: tuple[int, int] | None
) -> None:
    run = session.run_inference("620x877", PROMPT, NEW_TOKENS, mode=mode, crops=crops, stop_at_eos=False)
    inputs, _ = session.prepare("620x877", PROMPT, mode, crops)
    with torch.no_grad():
        whole = session.model.generate(
            inputs.input_ids,
            images=list(inputs.images),
            images_seq_mask=inputs.images_seq_mask,
            images_spatial_crop=inputs.images_spatial_crop,
            attention_mask=torch.ones_like(inputs.input_ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=-1,  # never: as many tokens as asked for
            pad_token_id=0,
            use_cache=True,
        )
    assert list(run.token_ids) == whole[0, inputs.num_tokens :].tolist()
    assert len(set(run.token_ids)) > 1
    assert run.cache_tokens == run.context_tokens + NEW_TOKENS - 1


def test_the_session_says_what_it_runs(session: DeepSeekOCRSession) -> None:
    assert any("the folder's own code" in note for note in session.notes)
    assert any("attention is eager" in note for note in session.notes)  # flash-attn was asked for and cannot run here
