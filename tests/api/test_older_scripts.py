"""What a script of the earlier design says, word by word: the names that still work."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt import AnalysisConfig, DeepSeekOCRSession, DeepseekOCRStaticAnalyzer, StaticAnalyzer
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig

CONFIG = AnalysisConfig(130, 90, base_size=64, image_size=40, patch_size=4, seq_len=6)


@pytest.fixture(scope="module")
def session() -> DeepSeekOCRSession:
    return DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny(), weights="random", dtype="float32")


@pytest.fixture(scope="module")
def analyzer(session: DeepSeekOCRSession) -> DeepseekOCRStaticAnalyzer:
    return DeepseekOCRStaticAnalyzer(session)


def test_a_session_shows_what_torch_needs(session: DeepSeekOCRSession) -> None:
    assert session.m_model is session.model
    assert (session.m_dtype, session.m_device, session.device) == (torch.float32, torch.device("cpu"), "cpu")


def test_prepared_inputs_unpack_into_what_the_model_is_called_with(
    session: DeepSeekOCRSession, analyzer: DeepseekOCRStaticAnalyzer
) -> None:
    input_ids, model_kwargs = analyzer.prepare_inputs(CONFIG)
    assert sorted(model_kwargs) == ["images", "images_seq_mask", "images_spatial_crop"]
    assert model_kwargs["images_seq_mask"].shape == input_ids.shape
    with torch.no_grad():
        logits = session.m_model(input_ids=input_ids, **model_kwargs).logits
    assert logits.shape[:2] == input_ids.shape


def test_the_tensors_are_those_of_the_session_itself() -> None:
    session = DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny(), weights="random", dtype="float32")
    modes = DeepSeekOcrConfig.tiny().modes
    mode = next(name for name, found in modes.items() if found.crop_size is None and not found.is_stretched)
    config = AnalysisConfig(90, 130, base_size=modes[mode].global_size, crop_mode=False, patch_size=4, seq_len=6)
    input_ids, model_kwargs = StaticAnalyzer(session).prepare_inputs(config)
    own, _ = session.prepare("130x90", 6, mode=mode)
    assert torch.equal(input_ids, own.input_ids)
    assert torch.equal(model_kwargs["images_seq_mask"], own.images_seq_mask)
    assert torch.equal(model_kwargs["images"][0][1], own.images[0][1])


def test_a_session_without_weights_gives_tensors_too() -> None:
    session = DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny())
    input_ids, model_kwargs = StaticAnalyzer(session).prepare_inputs(CONFIG)
    assert (input_ids.dtype, model_kwargs["images"][0][1].dtype) == (torch.int64, torch.bfloat16)


def test_unpacking_leaves_the_analysis_as_it_was(analyzer: DeepseekOCRStaticAnalyzer) -> None:
    before = analyzer.analyze_full_model(CONFIG).flops
    inputs = analyzer.prepare_inputs(CONFIG)
    _ = tuple(inputs)
    assert analyzer.analyze_full_model().flops == before


def test_stages_and_the_modules_that_they_claim(analyzer: DeepseekOCRStaticAnalyzer) -> None:
    assert analyzer.stage_module_map == {
        "sam": ["model.sam_model"],
        "clip": ["model.vision_model"],
        "projector": ["model.projector"],
        "prefill": [""],
        "decode": [""],
    }
    assert analyzer.m_stage_module_map == analyzer.stage_module_map
