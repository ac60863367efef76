"""Small training steps to look at: a decoder of transformers, and a few linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from llm_perf_opt.core.recorded_step import RecordedTrainingStep
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.harness.training_run import record_step
from llm_perf_opt.models.huggingface.training import training_target
from llm_perf_opt.weightless import Engine

HIDDEN, INNER, LAYERS, VOCABULARY = 32, 48, 3, 64


def tiny_llama(dtype: str = "float32", attention: str = "sdpa") -> Any:
    """A decoder of three layers, hidden size 32, 4 heads over 2 key heads."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM._from_config(
        config, dtype=getattr(torch, dtype), attn_implementation=attention
    ).eval()


def llama_step(**options: Any) -> tuple[RecordedTrainingStep, TrainingSetup]:
    """One step of the tiny decoder on 2 x 16 tokens."""
    setup = TrainingSetup(**{"micro_batch": 2, "sequence": 16, "dtype": "float32", "device": "cpu", **options})
    target = training_target("tiny", lambda: tiny_llama(setup.dtype, setup.attention), setup)
    return record_step(target, Engine(device=setup.device, autograd=True)), setup


def own_step(build: Callable[[], torch.nn.Module], step: Callable[[Any], object]) -> RecordedTrainingStep:
    """A step in a script's own words, on a module of its own."""
    target = Target(model="own", phase="training step", workload={}, build=build, invoke=step)
    return record_step(target, Engine(device="cpu", autograd=True))


def op_names(step: RecordedTrainingStep, phase: str) -> list[str]:
    """Names of the ops of a phase, in order."""
    graph = step.graph
    assert graph.ops is not None
    names = [graph.op_kinds[kind].name.removeprefix("aten.") for kind in graph.ops.kind]
    return [names[row] for name, rows in step.ranges() if name == phase for row in rows]


def module_of_op(step: RecordedTrainingStep, row: int) -> str | None:
    """The module that an op ran in; None outside any."""
    graph = step.graph
    assert graph.ops is not None and graph.calls is not None
    call = graph.ops.call[row]
    return None if call < 0 else graph.paths[graph.calls.path[call]]
