"""Ops priced by what sort of op they are; the lists are in `aten_ops.toml`, made by `scripts/classify_aten_ops.py`."""

from __future__ import annotations

import tomllib
from importlib import resources

from llm_perf_opt.analyses.pricing import memory, vector
from llm_perf_opt.analyses.pricing.op_cost import Formula

FORMULA_OF_CLASS: dict[str, Formula] = {
    "view": memory.free,  # another look at the same memory
    "metadata": memory.free,  # a question about shape, dtype or device, or about one value
    "allocation": memory.free,  # memory without content
    "fill": memory.fill,  # constants, ranges, random numbers
    "copy": memory.copy,  # values moved or cast; free where the result turns out to share its input's memory
    "gather": memory.gather,  # rows picked by index
    "scatter": memory.scatter,  # rows written by index
    "pointwise": vector.pointwise,  # work on every output element: arithmetic, activations, norms, softmax
    "pointwise_list": vector.pointwise_list,  # the same on a list of tensors
    "reduction": vector.reduction,  # work on every input element: sums, scans, losses
    "sort": vector.sort,
}


def class_formulas() -> dict[str, Formula]:
    """Packet name -> formula for every op the table lists."""
    text = resources.files(__package__).joinpath("aten_ops.toml").read_text(encoding="utf-8")
    return {
        f"aten.{name}": FORMULA_OF_CLASS[op_class] for op_class, names in tomllib.loads(text).items() for name in names
    }
