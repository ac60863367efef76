"""The released code in a session: the tokens of its own `generate`, with and without crops."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version

import pytest
import torch

from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession

FOLDER = os.environ.get("LLM_PERF_OPT_DSOCR_DIR")
pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason="LLM_PERF_OPT_DSOCR_DIR names no folder with the released code"),
    pytest.mark.skipif(
        FOLDER is not None and not version("transformers").startswith(("4.46.", "4.47.")),
        reason="the released code needs transformers 4.46 or 4.47",
    ),
]
SMALL = {"num_hidden_layers": 2, "n_routed_experts": 8, "intermediate_size": 512, "moe_intermediate_size": 128}
PROMPT = (7, 8, 9, 10, 11)
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> DeepSeekOCRSession:
    """Its code and its vision encoders as released, its decoder with two small layers, float32."""
    place = tmp_path_factory.mktemp("released") / "model"
    shutil.copytree(str(FOLDER), place, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(
        json.dumps({**config, **SMALL, "language_config": {**config["language_config"], **SMALL}}), encoding="utf-8"
    )
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
