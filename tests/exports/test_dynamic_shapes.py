"""Which dimensions of the tiny twin's parts may vary, and the guard that fixes the others."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from llm_perf_opt.core.export_outcome import AxisOutcome, Check, ExportOptions, Verdict
from llm_perf_opt.exports.export_matrix import export_report
from llm_perf_opt.exports.torch_lab import TorchLab
from tests.exports.tiny_lab import PARTS, STATIC, examined, prepared, targets

WINDOWED = pytest.param("sam-block-windowed", marks=pytest.mark.slow)  # hundreds of guards


def axes(name: str) -> dict[str, AxisOutcome]:
    return {axis.axis: axis for axis in examined(name, Check.DYNAMIC).axes}


def tried(name: str) -> list[tuple[str, int]]:
    return [(axis.axis, axis.size) for axis in examined(name, Check.DYNAMIC).axes]


@pytest.mark.parametrize("name", ["sam-block-global", "clip-block", "projector"])
def test_the_batch_of_a_vision_part_may_vary(name: str) -> None:
    assert axes(name)["batch"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("decoder-layer-dense", "tokens"),
        ("expert", "tokens"),
        ("moe-layer-grouped", "tokens"),
        ("attention-with-kv", "new tokens"),
        ("attention-with-kv", "held tokens"),
    ],
)
def test_the_length_of_a_decoder_part_may_vary(name: str, axis: str) -> None:
    found = axes(name)[axis]
    assert (found.verdict, found.range) == (Verdict.OK, "2 and more")


def test_a_width_is_fixed_by_the_weights_it_meets() -> None:
    found = axes("projector")["width"]
    assert (found.verdict, found.guard) == (Verdict.FAILED, "x[2] == 48")
    assert found.site == "projector.py:19 in forward"
    assert found.source_line == "output: Tensor = self.layers(x)"


def test_the_rows_of_a_global_block_are_fixed_by_its_table_of_positions() -> None:
    found = axes("sam-block-global")["rows"]
    assert (found.verdict, found.size) == (Verdict.FAILED, 16)
    assert found.guard == "2*x[1] - 1 == 31"
    assert (found.site or "").endswith("in relative_table")


@pytest.mark.parametrize("name", ["sam", "vision"])
@pytest.mark.parametrize(("axis", "dimension"), [("rows", 2), ("columns", 3)])
def test_the_sides_of_a_page_are_fixed_by_the_patches_it_is_cut_into(name: str, axis: str, dimension: int) -> None:
    found = axes(name)[axis]  # 64 pixels in patches of 4; torch itself lets 65 through, and nothing else
    assert (found.verdict, found.size) == (Verdict.FAILED, 64)
    assert found.guard == f"(pixels[{dimension}]//4) == 16"
    assert (found.site or "").startswith("sam.py:")


@pytest.mark.slow  # hundreds of guards
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_guards_that_hold_for_every_size_fix_nothing(axis: str) -> None:
    found = axes("sam-block-windowed")[axis]
    assert (found.verdict, found.range, found.guards > 100) == (Verdict.OK, "2 and more", True)


@pytest.mark.parametrize("name", [WINDOWED if name == "sam-block-windowed" else name for name in STATIC])
def test_every_dimension_of_the_first_float_input_is_told_of(name: str) -> None:
    first = prepared(name).call.given[0]
    assert [size for axis, size in tried(name) if axis != "held tokens"] == list(first.shape)


def test_a_dimension_without_a_name_is_told_as_not_tried() -> None:
    part = replace(PARTS["projector"], axes=("batch", ""))
    found = TorchLab().examine(targets()["prefill"], part, ExportOptions(checks=frozenset({Check.DYNAMIC})))
    assert [(axis.axis, axis.verdict) for axis in found.axes] == [
        ("batch", Verdict.OK),
        ("axis 1", Verdict.SKIPPED),
        ("axis 2", Verdict.SKIPPED),
    ]
    assert found.axes[1].guard == "the part gives it no name"
    assert found.outcome(Check.DYNAMIC).detail == "may vary: batch"
    (table,) = [table for table in export_report("tiny", [found], []).tables if table.title.startswith("Which")]
    assert [row[4] for row in table.rows] == ["may vary", "not tried", "not tried"]


def test_torch_keeps_its_own_log_settings() -> None:
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = (logger.level, logger.propagate, list(logger.handlers))
    examined.cache_clear()
    examined("projector", Check.DYNAMIC)
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
