"""Which dimensions of the tiny twin's parts may vary, and the guard that fixes the others."""

from __future__ import annotations

import logging

import pytest

from llm_perf_opt.export_outcome import AxisOutcome, Check, Verdict
from tests.exports.tiny_lab import examined


def axes(name: str) -> dict[str, AxisOutcome]:
    return {axis.axis: axis for axis in examined(name, Check.DYNAMIC).axes}


@pytest.mark.parametrize("name", ["sam-block-global", "clip-block", "projector"])
def test_the_batch_of_a_vision_part_may_vary(name: str) -> None:
    assert axes(name)["batch"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("decoder-layer-dense", "tokens"),
        ("expert", "tokens"),
        ("moe-layer-grouped", "tokens"),
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


def test_torch_keeps_its_own_log_settings() -> None:
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = (logger.level, logger.propagate, list(logger.handlers))
    examined.cache_clear()
    examined("projector", Check.DYNAMIC)
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
