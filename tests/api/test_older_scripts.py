"""What a script of the earlier design says, word by word: the names that still work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt import AnalysisConfig, DeepSeekOCRSession, DeepseekOCRStaticAnalyzer, StaticAnalyzer
from llm_perf_opt.core.callgraph.runtime_log import read_runtime_log
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig

CONFIG = AnalysisConfig(130, 90, base_size=64, image_size=40, patch_size=4, seq_len=6)
LAYERS = DeepSeekOcrConfig.tiny().decoder.num_hidden_layers


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
    assert sorted(model_kwargs) == ["attention_mask", "images", "images_seq_mask", "images_spatial_crop"]
    assert model_kwargs["images_seq_mask"].shape == input_ids.shape
    assert torch.equal(model_kwargs["attention_mask"], torch.ones_like(input_ids))
    with torch.no_grad():
        plain = session.m_model(input_ids=input_ids, **model_kwargs)
        whole = session.m_model(input_ids=input_ids, **model_kwargs, use_cache=True, return_dict=True)
        core = session.m_model.model(input_ids, **model_kwargs, use_cache=True, return_dict=True)
        without = session.m_model(input_ids=input_ids, **model_kwargs, use_cache=False)
    assert whole.logits.shape[:2] == input_ids.shape
    assert torch.equal(plain.logits, whole.logits)
    assert torch.equal(session.m_model.lm_head(core.last_hidden_state).float(), whole.logits)
    assert [len(one.past_key_values) for one in (whole, core, without)] == [LAYERS, LAYERS, 0]
    token = whole.logits[:, -1:].argmax(-1)
    mask = torch.ones(1, input_ids.shape[1] + 1, dtype=torch.int64)
    with torch.no_grad():
        step = session.m_model(token, past_key_values=whole.past_key_values, attention_mask=mask, use_cache=True)
    assert step.logits.shape[:2] == (1, 1)


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
        "prefill": ["model.embed_tokens", "model.layers", "model.norm", "lm_head"],
        "decode": ["model.embed_tokens", "model.layers", "model.norm", "lm_head"],
    }
    assert analyzer.m_stage_module_map == analyzer.stage_module_map


def test_the_prefixes_of_a_stage_choose_its_modules_and_no_others(
    session: DeepSeekOCRSession, analyzer: DeepseekOCRStaticAnalyzer
) -> None:
    """Every module but the two that hold stages and phases both is in exactly one of them."""
    prefixes = analyzer.m_stage_module_map
    chosen = {
        name: [stage for stage in prefixes if stage != "decode" and name.startswith(tuple(prefixes[stage]))]
        for name, _ in session.m_model.named_modules()
    }
    assert [name for name, stages in chosen.items() if len(stages) != 1] == ["", "model"]
    assert chosen["model.layers.0.mlp"] == ["prefill"]
    assert chosen["model.sam_model.blocks.0"] == ["sam"]


@pytest.fixture(scope="module")
def traced() -> lpo.Trace:
    return lpo.trace("deepseek-ocr-tiny", image="90x130", mode="gundam", crops=(2, 3), decode_steps=0)


def test_a_family_adds_up_to_its_members(traced: lpo.Trace) -> None:
    family = traced.graph(focus="sam_model.blocks.[0-2].attn")
    members = [traced.graph(focus=f"model.sam_model.blocks.{index}.attn").totals for index in range(3)]
    for figure in ("flops", "bytes_moved", "activation_bytes"):
        assert getattr(family.totals, figure) == sum(getattr(member, figure) for member in members) > 0
    assert family.view.caption[0].startswith("Together: ")
    assert "activation memory" in family.view.caption[0]


def test_the_grid_of_crops_is_in_the_trace_and_in_the_file_of_its_own(traced: lpo.Trace, tmp_path: Path) -> None:
    assert traced.graphs[0].runtime["images_spatial_crop"] == [[2, 3]]
    vision, stack = read_runtime_log(traced.graph().save_runtime_log(tmp_path / "runtime.json"))
    assert (vision["images_spatial_crop"], vision["num_crops"]) == ([[2, 3]], 6)
    assert (stack["module"], stack["num_layers"]) == ("model.layers", LAYERS)


def test_an_expert_knows_how_many_there_are_and_how_many_a_token_takes(traced: lpo.Trace) -> None:
    params = traced.graphs[0].constructor_params
    assert [params["model.layers.1.mlp.experts.7"][name] for name in ("num_experts", "top_k")] == [8, 3]
    assert "top_k" not in params["model.layers.1.mlp.shared_experts"]
