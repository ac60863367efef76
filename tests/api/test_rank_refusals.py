"""Plans that cannot be, files that say nothing, and errors half-way: refused in words, and nothing is left behind."""

from __future__ import annotations

import signal
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

import llm_perf_opt as lpo
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan, read_plan_rules
from llm_perf_opt.core.report import Level
from llm_perf_opt.models.huggingface.parallel import uneven_heads, with_copied_key_heads
from tests.api.tiny_folders import LAYERS, TOKENS, llama_folder

HEAD_ALONE = '[tp]\n"lm_head" = "colwise_gather_output"\n'
MLP_ALONE = """
[tp]
"model.layers.*.mlp.gate_proj" = "colwise"
"model.layers.*.mlp.up_proj" = "colwise"
"model.layers.*.mlp.down_proj" = "rowwise"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return llama_folder(tmp_path / "llama")


def rules(folder: Path, text: str, name: str = "rules.toml") -> Path:
    file = folder.parent / name
    file.write_text(text)
    return file


def test_the_rules_of_a_file_stand_in_the_place_of_the_models_own(folder: Path) -> None:
    """The MLP is shared and attention is not: one all-reduce a layer, and all attention heads on this rank."""
    traced = lpo.trace(folder, prompt_tokens=TOKENS, tp=2, plan=rules(folder, MLP_ALONE))
    prefill = traced.graphs[0]
    assert sum(collective_of(prefill.op_kinds[kind]) is not None for kind in prefill.ops.kind) == LAYERS  # type: ignore[union-attr]
    shapes = {parameter.name: parameter.meta.shape for parameter in prefill.parameters}
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (64, 64)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 64)
    assert any("the rules of" in note.text for note in traced.stages().report().notes)


@pytest.mark.parametrize(("text", "is_little"), [(HEAD_ALONE, True), (None, False)])
def test_a_plan_that_spreads_little_is_warned_of(folder: Path, text: str | None, is_little: bool) -> None:
    given = {} if text is None else {"plan": rules(folder, text)}
    traced = lpo.trace(folder, prompt_tokens=TOKENS, tp=2, **given)
    held, whole = (
        {parameter.name: prod(parameter.meta.shape) for parameter in one.graphs[0].parameters}
        for one in (traced, lpo.trace(folder, prompt_tokens=TOKENS))
    )
    assert (2 * sum(size for name, size in held.items() if size == whole[name]) > sum(held.values())) is is_little
    warned = [note.text for note in traced.stages().report().notes if note.level is Level.WARNING]
    assert any("more ranks hardly help" in text for text in warned) is is_little


def test_stages_whose_matrices_are_split_are_refused_with_what_helps(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be spread as tp2 pp2") as refused:
        lpo.trace(folder, prompt_tokens=TOKENS, tp=2, pp=2)
    assert refused.value.fix.startswith("choose tp or pp alone")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[tp]\n"model.layers.*.mlp.nothing" = "colwise"\n', "match nothing in LlamaForCausalLM"),
        ('[tp]\n"model.layers.*.mlp.up_proj" = "sideways"\n', "Unsupported parallel styles"),
        ('[ep]\n"model.layers.*.mlp" = "grouped_gemm"\n', "The rules for ep in .* would change nothing"),
        ("", "has no rule in it"),
        ("[pp]\n", "expected a known key, found the text 'pp'"),
        ('[tp]\n"a" = 3\n', "expected text, found 3"),
        ("[tp\n", "is not valid TOML"),
    ],
)
def test_a_file_that_names_nothing_or_is_none_is_refused(text: str, what: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=what):
        lpo.trace(folder, prompt_tokens=TOKENS, tp=2, plan=rules(folder, text))


def test_a_file_larger_than_any_plan_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(UsageError, match="plan file"):
        read_plan_rules(file)


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ({"tp": 0}, "tp cannot be 0"),
        ({"tp": 1_000_000}, "1,000,000 ranks is too large"),
        ({"tp": 2, "rank": 99}, "There is no rank 99"),
        ({"tp": 8}, "2 key heads cannot be split by 8"),
        ({"tp": 2, "tracer": "hooks"}, "'hooks' cannot run a rank of a plan"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: dict[str, Any], what: str, folder: Path) -> None:
    with pytest.raises(PerfOptError, match=what):
        lpo.trace(folder, prompt_tokens=TOKENS, **plan)


@pytest.mark.parametrize("error", [KeyError("of the model"), KeyboardInterrupt()])
def test_an_error_in_a_rank_leaves_no_process_group(
    error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, calls = sys.excepthook, []
    plain = modeling_llama.LlamaMLP.forward

    def forward(self: Any, rows: torch.Tensor) -> torch.Tensor:
        calls.append(dist.get_world_size())
        if len(calls) > 2 * LAYERS:  # the inputs are found, the trace has begun
            raise error
        return plain(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama.LlamaMLP, "forward", forward)
        with pytest.raises((PerfOptError, type(error))):
            lpo.trace(folder, prompt_tokens=TOKENS, tp=2)
    assert set(calls) == {2}
    assert not dist.is_initialized()
    assert sys.excepthook is hook
    assert lpo.trace(folder, prompt_tokens=TOKENS, tp=2).stages().total.collectives == 16


def test_ctrl_c_in_a_collective_puts_the_world_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.weightless import engine

    plain = engine.run_collective
    pressed: list[int] = []

    def pressing(*arguments: Any) -> Any:
        if not pressed:
            pressed.append(1)
            signal.raise_signal(signal.SIGINT)
        return plain(*arguments)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine, "run_collective", pressing)
            lpo.trace(folder, prompt_tokens=TOKENS, tp=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed
    assert not dist.is_initialized()


def test_a_process_group_of_the_user_is_left_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it for good
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        with pytest.raises(PerfOptError, match="initialised in this process already"):
            lpo.trace(folder, prompt_tokens=TOKENS, tp=2)
        assert (dist.get_rank(), dist.get_world_size()) == (1, 3)
        assert lpo.trace(folder, prompt_tokens=TOKENS)._plan is None
    finally:
        dist.destroy_process_group()


def test_heads_that_differ_by_layer_are_each_asked() -> None:
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=4, per_layer_config={1: {"num_key_value_heads": 2}})
    assert uneven_heads(config, ParallelPlan(tp=4)) == "2 key heads cannot be split by 4"
    assert uneven_heads(config, ParallelPlan(tp=2)) is None
    assert with_copied_key_heads(config, 8) == (config, "")
