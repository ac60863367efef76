"""Eight vLLM servers on H100: weights, working memory and cache as measured at start-up, against our traces.

The source states the version for Mistral-Small only: 0.11.0. The others ran a later one. Their logs say
"GiB memory and", which 0.11.0 does not print; the scales of gpt-oss are swizzled, which 0.11.0 does not do; and their
activation memory is that of sorting, where 0.11.0 samples with FlashInfer. All three hold from 0.11.1 on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engines import (
    VLLM_0_11_0,
    VLLM_0_12,
    VLLM_0_19,
    BatchLimits,
    ServingEngine,
    total_bytes,
)
from llm_perf_opt.serving.fit import RankMemory, ServingFit, fit_of, rank_memory, serving_fit
from llm_perf_opt.serving.working_memory import EncoderItem
from tests.serving.traced_models import FACTS, decode_step

pytestmark = pytest.mark.slow
GIB = 2**30
H100 = find_device("h100-sxm")
VISIBLE_BYTES = round(79.18 * GIB)  # as the records say
ROUNDING_GIB = 0.02  # of four figures with two decimals
# 1540 x 1540 pixels in bfloat16, patches of 14, merged 2 x 2: 55 x 55 embeddings and a separator after each of 55 rows
LARGEST_IMAGE = EncoderItem(tokens=55 * 56, embeddings=55 * 55, input_bytes=3 * 1540 * 1540 * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How a record's model is written down here, and by which version it was served."""

    folder: str
    engine: ServingEngine = VLLM_0_12
    encoder: EncoderItem | None = None


SERVED = {
    "gpt-oss-20b (MoE)": Served(folder="gpt-oss-20b-mxfp4"),
    "gpt-oss-120b (MoE)": Served(folder="gpt-oss-120b-mxfp4"),
    "Llama-3.3-70B-FP8": Served(folder="llama33-70b-fp8ct"),
    "Llama-3.1-8B": Served(folder="llama31-8b"),
    "Qwen3-0.6B": Served(folder="qwen3-0.6b"),
    "Qwen3-32B": Served(folder="qwen3-32b"),
    "Mistral-Small-3.2-24B": Served(folder="mistral-small-3.2-24b", engine=VLLM_0_11_0, encoder=LARGEST_IMAGE),
}
# The source prints 0.9, at which parts and cache of this record are 3.96 GiB more than the share: it served at 0.95.
UTILISATION = {"gpt-oss-120b (MoE)": 0.95}

RECORDS: list[dict[str, Any]] = json.loads((FACTS / "serving" / "vllm_startup_memory.json").read_text())["records"]
SERVERS = [record for record in RECORDS if "weights_gib" in record]
each_server = pytest.mark.parametrize(
    "record", SERVERS, ids=lambda record: f"{record['model']} x{record['tensor_parallel']}"
)


@cache
def _needs(model: str, devices: int) -> RankMemory:
    served = SERVED[model]
    return rank_memory(
        [decode_step(served.folder)],
        H100,
        plan=ParallelPlan(tp=devices),
        engine=served.engine,
        encoder=served.encoder,
    )


def _needs_of(record: dict[str, Any]) -> RankMemory:
    return _needs(record["model"], record["tensor_parallel"])


def _utilisation(record: dict[str, Any]) -> float:
    return UTILISATION.get(record["model"], record["gpu_memory_utilization"])


def _fit(record: dict[str, Any]) -> ServingFit:
    """With the device and the memory outside PyTorch of the record itself."""
    needs = _needs_of(record)
    assert needs.working is not None
    return serving_fit(
        weights_bytes=total_bytes(needs.weights),
        working_bytes=needs.working.bytes,
        cache=needs.cache,
        device=H100,
        devices=needs.devices,
        batch=1,
        context=record["max_model_len"],
        utilisation=_utilisation(record),
        outside_torch_bytes=round(record["non_torch_gib"] * GIB),
        memory_bytes=VISIBLE_BYTES,
    )


def test_there_are_nine_records_of_which_eight_are_servers() -> None:
    assert (len(RECORDS), len(SERVERS)) == (9, 8)


@each_server
def test_the_parts_of_a_record_add_up_to_its_share_of_the_memory(record: dict[str, Any]) -> None:
    """Without CUDA graphs, which are captured afterwards. This is what shows the share of gpt-oss-120b to be 0.95."""
    parts = sum(record[f"{part}_gib"] for part in ("weights", "activation", "non_torch", "kv_cache"))
    assert parts == pytest.approx(_utilisation(record) * 79.18, abs=ROUNDING_GIB)
    if record["model"] in UTILISATION:
        assert abs(parts - record["gpu_memory_utilization"] * 79.18) > 100 * ROUNDING_GIB


@each_server
def test_weights_are_within_half_a_percent(record: dict[str, Any]) -> None:
    assert total_bytes(_needs_of(record).weights) / GIB == pytest.approx(record["weights_gib"], rel=0.005)


@each_server
def test_working_memory_is_within_half_a_percent(record: dict[str, Any]) -> None:
    working = _needs_of(record).working
    assert working is not None
    assert working.moment == "sampling"
    assert working.bytes / GIB == pytest.approx(record["activation_gib"], rel=0.005)


@each_server
def test_room_for_the_cache_is_within_three_percent_with_the_records_own_remainder(record: dict[str, Any]) -> None:
    room = _fit(record).room_bytes
    assert room is not None
    assert room / GIB == pytest.approx(record["kv_cache_gib"], rel=0.03)


@each_server
def test_room_for_the_cache_is_within_three_percent_with_our_defaults(record: dict[str, Any]) -> None:
    fit = fit_of(_needs_of(record), H100, batch=1, context=16_000, utilisation=_utilisation(record))
    assert fit.room_bytes is not None
    assert fit.room_bytes / GIB == pytest.approx(record["kv_cache_gib"], rel=0.03)


def test_mistral_holds_as_many_tokens_as_the_engine_counted() -> None:
    """184,832 tokens in blocks of 128, 163,840 bytes each, enough for 11.55 sequences of 16,000."""
    counted = next(record for record in RECORDS if "kv_cache_tokens" in record)
    record = next(record for record in SERVERS if record["model"] == "Mistral-Small-3.2-24B")
    fit, cache = _fit(record), _needs_of(record).cache
    assert cache is not None
    assert fit.room_bytes is not None
    assert cache.bytes_at(128) == 128 * counted["kv_bytes_per_token"]
    assert fit.room_bytes // cache.bytes_at(128) * 128 == pytest.approx(counted["kv_cache_tokens"], rel=0.001)
    assert fit.largest_batch == int(counted["max_concurrency_at_16k"])


def test_what_failed_there_fails_here() -> None:
    """The same source: Llama-3.3-70B-FP8 on one H100 was short of 1.44 GiB, Qwen3-32B had no room for 32,000 tokens."""
    llama = fit_of(_needs("Llama-3.3-70B-FP8", 1), H100, batch=1, context=16_000)
    assert llama.fits is False
    assert llama.room_bytes is not None
    assert llama.room_bytes / GIB == pytest.approx(-1.44, abs=0.06)
    qwen = fit_of(_needs("Qwen3-32B", 1), H100, batch=1, context=32_000)
    assert (qwen.fits, qwen.largest_batch) == (False, 0)


@pytest.mark.parametrize(
    ("folder", "devices", "engine", "sequences", "published_gib"),
    [
        # accuracy/accuracy_report.md of llm-d-incubation/llm-d-planner @ 8f9dbb8, vLLM 0.19.0 on H100
        ("llama31-8b", 1, VLLM_0_19, 1024, 1.89),
        ("llama31-8b", 4, VLLM_0_19, 1024, 1.89),
        ("qwen3-30b-a3b", 1, VLLM_0_19, 1024, 2.68),
        ("mixtral-8x7b", 2, VLLM_0_19, 1024, 1.21),
        # vllm pull request 10511: Llama-3-8B with 256 sequences on H100, when PyTorch sorted
        ("llama31-8b", 1, VLLM_0_12, 256, 1.26),
    ],
)
def test_working_memory_agrees_with_figures_that_took_no_part(
    folder: str, devices: int, engine: ServingEngine, sequences: int, published_gib: float
) -> None:
    limits = BatchLimits(chunk_tokens=8192, sequences=sequences)
    plan = ParallelPlan(tp=devices)
    working = rank_memory([decode_step(folder)], H100, plan=plan, engine=engine, limits=limits).working
    assert working is not None
    assert working.bytes / GIB == pytest.approx(published_gib, abs=0.01)
