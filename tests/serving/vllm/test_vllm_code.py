"""Traces of vLLM's own model classes against closed forms; recorded ones on every run, fresh ones where vLLM is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.vllm_code import CASES, FILE, Case, record
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.process import EngineProcess
from tests.serving.vllm import closed_forms
from tests.serving.vllm.closed_forms import Expected, Step

Form = Callable[[dict[str, Any], Step, int], Expected]
FORMS: dict[str, Form] = {
    "llama-3.1-70b tp8": closed_forms.llama,
    "qwen3-30b-a3b tp4": closed_forms.qwen3_moe,
    "qwen3-30b-a3b tp4 ep4": closed_forms.qwen3_moe,
    "deepseek-v3 tp8": closed_forms.deepseek_v3,
    "deepseek-v3-fp8 tp8": closed_forms.deepseek_v3,
    "gpt-oss-120b tp4": closed_forms.gpt_oss,
    "minimax-m2.5 tp4": closed_forms.minimax,
    "deepseek-ocr": closed_forms.deepseek_ocr,
}
BY_NAME = {case.name: case for case in CASES}
PHASES = ("prefill", "decode")
RECORDED = json.loads(FILE.read_text())


def expected(case: Case, phase: str) -> Expected:
    config = json.loads((case.folder / "config.json").read_text())
    new = case.prompt_tokens if phase == "prefill" else 1
    keys = case.prompt_tokens if phase == "prefill" else case.prompt_tokens + 1
    return FORMS[case.name](config, Step(sequences=case.batch, new_tokens=new, keys=keys), case.tp)


def check(found: dict[str, Any], wanted: Expected) -> None:
    assert found["unpriced_ops"] == 0
    assert sum(found["flops"].values()) == wanted.flops
    assert found["cache"]["bytes_per_token"] == wanted.cache_bytes_per_token
    assert found["collectives"].get("all-reduce", 0) == wanted.all_reduces
    assert found["collective_bytes"].get("all-reduce", 0) == wanted.all_reduce_bytes
    assert found["collectives"].get("all-gather", 0) == (1 if wanted.all_gather_bytes else 0)
    assert found["collective_bytes"].get("all-gather", 0) == wanted.all_gather_bytes
    assert set(found["collectives"]) <= {"all-reduce", "all-gather"}


def test_every_case_is_recorded_and_has_a_closed_form() -> None:
    assert RECORDED.keys() == BY_NAME.keys() == FORMS.keys()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", BY_NAME)
def test_recorded_work_cache_and_collectives_are_those_of_the_closed_form(name: str, phase: str) -> None:
    check(RECORDED[name]["phases"][phase], expected(BY_NAME[name], phase))


@pytest.mark.parametrize("name", [name for name in BY_NAME if "fp8" not in name])
def test_recorded_weights_are_those_of_the_closed_form(name: str) -> None:
    assert RECORDED[name]["phases"]["decode"]["parameters"] == expected(BY_NAME[name], "decode").parameters


def test_weights_in_fp8_are_the_same_matrices_with_a_scale_for_each_block() -> None:
    plain, stored = (RECORDED[name]["phases"]["decode"] for name in ("deepseek-v3 tp8", "deepseek-v3-fp8 tp8"))
    scales = stored["parameters"] - plain["parameters"]
    blocks = stored["matrix_parameters_fp8"] / (128 * 128)
    assert blocks <= scales < 1.02 * blocks  # blocks at the edges of a matrix are cut


def test_the_numbers_of_some_models_are_known() -> None:
    known = {
        "llama-3.1-70b tp8": 8_820_367_360,
        "qwen3-30b-a3b tp4": 7_642_626_048,
        "deepseek-v3 tp8": 84_780_357_120,
        "deepseek-ocr": 3_336_106_240,
    }
    assert {name: RECORDED[name]["phases"]["decode"]["parameters"] for name in known} == known
    assert RECORDED["deepseek-v3 tp8"]["phases"]["decode"]["cache"]["bytes_per_token"] == 70_272
    assert RECORDED["llama-3.1-70b tp8"]["phases"]["decode"]["collectives"] == {"all-gather": 1, "all-reduce": 161}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [name for name in BY_NAME if "deepseek" not in name])
def test_the_estimate_of_vllm_lacks_the_routers_and_nothing_else(name: str, phase: str) -> None:
    wanted = expected(BY_NAME[name], phase)
    assert sum(RECORDED[name]["phases"][phase]["estimate_flops"].values()) == wanted.flops - wanted.routers


@pytest.mark.parametrize("name", BY_NAME)
def test_a_model_is_built_and_traced_within_ten_seconds(name: str) -> None:
    assert RECORDED[name]["run_s"] <= 10


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    try:
        environment = find()
    except PerfOptError as error:
        pytest.skip(f"{error.what} {error.fix}")
    with EngineProcess(environment) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_fresh_trace_of_vllm_gives_the_recorded_figures(name: str, process: EngineProcess) -> None:
    fresh = record(BY_NAME[name], process)
    for phase in PHASES:
        check(fresh["phases"][phase], expected(BY_NAME[name], phase))
    if fresh["engine"] == RECORDED[name]["engine"]:
        assert fresh["phases"] == RECORDED[name]["phases"]
