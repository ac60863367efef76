"""Eager, fused and flash attention side by side, against closed forms that are written out here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.timing.attention_what_if import ALL, AttentionKind, AttentionWhatIf
from tests.models.huggingface.folders import LLAMA, LLAVA, write_folder

needs_transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="a Hugging Face folder is run by transformers, an optional extra"
)

TOKENS, LAYERS, HEADS, WIDTH, BYTES = 48, 2, 4, 64, 2
KV_HEADS = 2
EAGER, FUSED, FLASH, VISIBLE = AttentionKind
GROUPED = {**LLAMA, "num_key_value_heads": KV_HEADS}


def cases(answer: lpo.AttentionAnswer, phase: str = "prefill", stage: str | None = None) -> dict[str, AttentionWhatIf]:
    wanted = stage or phase
    return {case.attention: case for case in answer.cases if (case.phase, case.stage) == (phase, wanted)}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> lpo.AttentionAnswer:
    folder = write_folder(tmp_path_factory.mktemp("llama"), LLAMA)
    return lpo.trace(folder, prompt_tokens=TOKENS, decode_steps=1).what_if("attention", "h100-sxm")


def test_flops_are_two_matmuls_over_all_pairs_or_over_the_visible_ones(llama: lpo.AttentionAnswer) -> None:
    found = cases(llama)
    assert list(found) == [EAGER, FUSED, FLASH, VISIBLE]
    scores = weighted = 2 * TOKENS * TOKENS * WIDTH  # Q K^T and A V, of all heads together
    visible_pairs = sum(1 for query in range(TOKENS) for key in range(TOKENS) if key <= query)
    assert visible_pairs == TOKENS * (TOKENS + 1) // 2
    for kind in (EAGER, FUSED, FLASH):
        assert found[kind].alone.flops == LAYERS * (scores + weighted)
    assert found[VISIBLE].alone.flops == LAYERS * 2 * 2 * visible_pairs * WIDTH
    hidden = LAYERS * 4 * (TOKENS * TOKENS - visible_pairs) * WIDTH
    for case in found.values():
        assert case.flops == found[EAGER].flops, "as written is the same code in every case"
        assert case.visible_flops == case.flops - hidden


def test_flash_moves_queries_keys_values_and_results_once(llama: lpo.AttentionAnswer) -> None:
    found = cases(llama)
    once = LAYERS * 4 * TOKENS * WIDTH * BYTES
    assert found[FLASH].alone.bytes_moved == found[VISIBLE].alone.bytes_moved == once
    assert found[FUSED].alone.bytes_moved >= once, "the op may read a mask besides"
    scores = LAYERS * HEADS * TOKENS * TOKENS * BYTES
    assert found[EAGER].alone.bytes_moved > once + 4 * scores, "written, scaled, masked, softmax, read again"
    saved = found[FUSED].alone.bytes_moved - found[FLASH].alone.bytes_moved
    assert found[FUSED].bytes_moved - found[FLASH].bytes_moved == saved
    assert found[FLASH].alone.launches == LAYERS


def test_a_decode_step_reads_the_cache_once(llama: lpo.AttentionAnswer) -> None:
    found, context = cases(llama, "decode"), TOKENS + 1
    assert found[FLASH].alone.bytes_moved == LAYERS * (2 * WIDTH + 2 * context * WIDTH) * BYTES
    assert found[FLASH].alone.flops == found[VISIBLE].alone.flops == LAYERS * 4 * context * WIDTH


def test_grouped_heads_are_read_as_the_fused_op_takes_them(tmp_path: Path) -> None:
    answer = lpo.trace(write_folder(tmp_path, GROUPED), prompt_tokens=TOKENS, decode_steps=0).what_if()
    flash = cases(answer)[FLASH]
    kv = KV_HEADS * WIDTH // HEADS
    assert flash.alone.flops == LAYERS * 4 * TOKENS * TOKENS * WIDTH, "every query head does its own work"
    allowed = {LAYERS * (2 * TOKENS * WIDTH + 2 * TOKENS * width) * BYTES for width in (kv, WIDTH)}
    assert flash.alone.bytes_moved in allowed, "shared keys once, or repeated by the code before the op"


def test_memory_falls_with_fusion_and_time_with_hidden_pairs(llama: lpo.AttentionAnswer) -> None:
    found = cases(llama)
    eager, fused = found[EAGER].alone, found[FUSED].alone
    assert eager.added_bytes is not None and fused.added_bytes is not None
    assert eager.added_bytes > fused.added_bytes
    assert found[FLASH].peak_bytes == found[FUSED].peak_bytes
    all_pairs, visible = found[FLASH].alone, found[VISIBLE].alone
    assert all_pairs.low_s is not None and visible.low_s is not None
    assert visible.low_s < all_pairs.low_s, "half of the matmuls; at the low edge the bytes are in the cache"
    for case in found.values():
        assert case.low_s is not None and case.high_s is not None and 0 < case.low_s <= case.high_s


def test_stages_add_up_to_the_phase() -> None:
    answer = lpo.trace("deepseek-ocr-tiny").what_if("attention", "h100-sxm")
    traced = lpo.trace("deepseek-ocr-tiny")
    predicted = traced.predict("h100-sxm")
    whole = cases(answer, "prefill", ALL)[EAGER]
    assert whole.low_s == pytest.approx(sum(one.low_s for one in predicted.stages if one.phase == "prefill"))
    assert whole.high_s == pytest.approx(sum(one.high_s for one in predicted.stages if one.phase == "prefill"))
    assert whole.flops == sum(one.cost.flops or 0 for one in traced.stages().stages if one.phase == "prefill")


def test_what_was_traced_takes_as_long_as_its_prediction_by_the_same_rates() -> None:
    """An RTX 5090 has recordings of eager kernels, which time no other kind: those are a prediction's own band."""
    trace = lpo.trace("deepseek-ocr-tiny", attention="eager")
    told, predicted = (
        trace.what_if("attention", "rtx-5090"),
        trace.predict("rtx-5090", rates="data-sheet"),
    )
    for phase in ("prefill", "decode"):
        case = cases(told, phase, ALL if phase == "prefill" else None)[EAGER]
        stages = [stage for stage in predicted.stages if stage.phase == phase]
        assert case.low_s == pytest.approx(sum(stage.low_s for stage in stages), rel=1e-12)
        assert case.high_s == pytest.approx(sum(stage.high_s for stage in stages), rel=1e-12)
    names = {"data sheet low", "data sheet high"}
    assert names <= {column.name for column in told.report().tables[0].columns}
    assert names <= {column.name for column in predicted.report().tables[0].columns}


def test_attention_with_a_bias_keeps_its_op() -> None:
    """SAM adds relative positions to the scores, which a flash kernel does not take."""
    found = cases(lpo.trace("deepseek-ocr-tiny", decode_steps=0).what_if(), "prefill", "sam")
    assert {case.bytes_moved for case in found.values()} == {found[EAGER].bytes_moved}
    assert {case.alone.flops for case in found.values()} == {found[EAGER].alone.flops}


def test_vision_sees_all_pairs(tmp_path: Path) -> None:
    answer = lpo.trace(write_folder(tmp_path, LLAVA), image="32x32", decode_steps=0).what_if()
    vision = cases(answer, "prefill", "vision")
    assert vision and all(case.visible_flops == case.flops for case in vision.values())


def test_a_saved_trace_has_its_own_kind_and_the_formula(tmp_path: Path) -> None:
    lpo.trace("deepseek-ocr-tiny", out=tmp_path / "eager", decode_steps=0, attention="eager")
    both = cases(lpo.trace("deepseek-ocr-tiny", decode_steps=0).what_if())
    saved = cases(lpo.load(tmp_path / "eager").what_if())
    assert list(saved) == [EAGER, FLASH, VISIBLE]
    for kind in (FLASH, VISIBLE):
        assert saved[kind].alone.flops == both[kind].alone.flops
        assert saved[kind].alone.bytes_moved == both[kind].alone.bytes_moved
        assert saved[kind].peak_bytes is None, "the eager trace holds scores"


def test_a_model_without_attention_says_so() -> None:
    import torch

    answer = lpo.trace(torch.nn.Linear(4, 4), (torch.zeros(2, 4),)).what_if()
    assert answer.cases == ()
    assert any("No attention" in note.text for note in answer.report().notes)


def test_the_report_says_which_rows_are_formulas(llama: lpo.AttentionAnswer) -> None:
    table = llama.report().tables[0]
    origin = {row[1]: row[2] for row in table.rows if row[0] == "prefill"}
    assert origin == {EAGER: "trace", FUSED: "trace", FLASH: "formula", VISIBLE: "formula"}


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "trace", "deepseek-ocr-tiny", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr()

    code, said = run("--device", "h100-sxm", "--what-if", "attention")
    assert code == 0
    assert "Attention by itself" in said.out and "flash, visible pairs" in said.out
    code, said = run("--device", "h100-sxm", "--what-if", "attention", "--execution", "fused")
    assert code == 2 and "eager execution" in said.err


def test_an_unknown_question_is_refused() -> None:
    with pytest.raises(UsageError, match="No what-if 'weather'"):
        lpo.trace("deepseek-ocr-tiny").what_if("weather")
