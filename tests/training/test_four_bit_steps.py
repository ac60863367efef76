"""QLoRA: a step over 4-bit weights holds what bitsandbytes' own layers hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5")
pytest.importorskip("peft", reason="adapters are the library's own code")

from benchmarks.training.real_step import EveryTensor, tensors_of
from llm_perf_opt.core import store
from llm_perf_opt.core.recorded_step import RecordedTrainingStep
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.harness.training_run import record_step
from llm_perf_opt.models.huggingface.training import run_step, start_step, training_target, with_lora
from llm_perf_opt.training.step_memory import memory_of
from llm_perf_opt.training.training_run import state_bytes
from llm_perf_opt.training.training_step import step_of
from llm_perf_opt.weightless import Engine

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN, INNER, LAYERS, KEYS, WORDS, RANK = 128, 320, 3, 64, 96, 4
MATRICES = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS + 3 * HIDDEN * INNER  # numbers of a layer


def build() -> Any:
    """Qwen2 with biases, in bfloat16."""
    import transformers

    config = transformers.Qwen2Config(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    return transformers.Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16).eval()


def setup(recompute: str) -> TrainingSetup:
    return TrainingSetup(method="qlora", lora_rank=RANK, micro_batch=2, sequence=16, device="cpu", recompute=recompute)


def recorded(recompute: str = "none") -> RecordedTrainingStep:
    asked = setup(recompute)
    return record_step(training_target("Qwen2", build, asked), Engine(device="cpu", autograd=True))


def test_packed_weights_take_half_a_byte_and_their_scales_by_hand() -> None:
    step = step_of("Qwen2", recorded(), setup("none"))
    packed = LAYERS * MATRICES // 2
    scales = LAYERS * MATRICES // 64  # 8 bits for each block of 64
    nested = LAYERS * 4 * (1 + 1 + 1 + 1 + 3 * 3)  # 32 bits for 256 blocks: q, o, k, v begin one, the MLP's three each
    tables = LAYERS * 7 * 4 * (16 + 256 + 1)
    plain = 2 * (2 * WORDS * HIDDEN + LAYERS * (2 * HIDDEN + HIDDEN + 2 * KEYS) + HIDDEN)  # tables, norms, biases
    rotary = 4 * 16 * 2  # two tables of 32-bit frequencies
    adapters = 4 * LAYERS * RANK * (HIDDEN + HIDDEN + HIDDEN + KEYS)  # of query and value, in 32 bits
    assert step.weights_bytes == packed + scales + nested + tables + plain + rotary + adapters
    assert all(not phase.unpriced for phase in step.phases)


def test_the_backward_unpacks_one_matrix_at_a_time() -> None:
    step = step_of("Qwen2", recorded(), setup("none"))
    unpacked = [tensor for tensor in step.peak.tensors if "dequantize" in tensor.name]
    assert [(tensor.bytes, tensor.count) for tensor in unpacked] == [(2 * HIDDEN * INNER, 1)]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_peak_is_that_of_bitsandbytes_own_layers(recompute: str) -> None:
    bnb = pytest.importorskip("bitsandbytes", reason="the witness is the library itself, on a processor")
    model = build()
    model.is_loaded_in_4bit = True
    for path, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and module is not model.lm_head:
            around, _, name = path.rpartition(".")
            setattr(model.get_submodule(around), name, _quantised(bnb, module))
    asked = setup(recompute)
    model = with_lora(model, RANK, ())
    if recompute == "full":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    start = start_step(model, asked)
    memory = EveryTensor([*tensors_of(model, start.optimizer, start.inputs), *_scales(bnb, model)])
    with memory:
        run_step(model, start, asked)
    assert max(memory_of(recorded(recompute)).total) == pytest.approx(max(memory.live_bytes), rel=0.01)


def test_states_in_eight_bits_take_the_bytes_of_bitsandbytes_own_optimizer() -> None:
    bnb = pytest.importorskip("bitsandbytes", reason="the witness is the library itself, on a processor")
    weight = torch.nn.Parameter(torch.randn(1024, 512))
    weight.grad = torch.randn_like(weight)
    optimizer = bnb.optim.AdamW8bit([weight], lr=1e-3)
    optimizer.step()
    states = {name: value for name, value in optimizer.state[weight].items() if isinstance(value, torch.Tensor)}
    held = sum(value.nbytes for name, value in states.items() if not name.startswith("qmap"))  # tables for all weights
    assert held == weight.numel() * state_bytes("adamw8bit", "bf16").states
    assert state_bytes("paged-adamw8bit", "bf16") == state_bytes("adamw8bit", "bf16")


def _quantised(bnb: Any, linear: torch.nn.Linear) -> Any:
    formats = {"quant_type": "nf4", "compress_statistics": True}
    layer = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, compute_dtype=torch.bfloat16, **formats
    )
    layer.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, **formats)
    layer.bias = linear.bias
    return layer.to("cpu")


def _scales(bnb: Any, model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """What hangs on the weights: no parameter and no buffer."""
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            state = module.weight.quant_state
            yield from (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)


_FRESH = """
import llm_perf_opt as lpo
answer = lpo.train("Qwen/Qwen3-0.6B", method="lora:4", gpus="a100-sxm-80g", seq=128)
print(answer.fits)
"""


@pytest.mark.slow
def test_a_fresh_process_finds_peft_before_torch_says_that_it_has_cuda(tmp_path: Path) -> None:
    """Importing peft imports bitsandbytes, which looks for CUDA in torch where torch says that it is there."""
    environment = {**os.environ, store.VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr[-2000:]
