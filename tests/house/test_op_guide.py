"""`docs/contributing/add-an-op.md` is followed literally in a scratch copy: one file is edited, and every
analysis knows the op.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt

PACKAGE = Path(llm_perf_opt.__file__).parent
ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "contributing" / "add-an-op.md").read_text("utf-8")
WRITTEN = re.compile(r"\*\*Write its formulas\*\* above `OPS` in `(\S+)`.*?```python\n(.*?)```", re.DOTALL)
REGISTERED = re.compile(r"\*\*Register it\*\* in `OPS` in the same file:\n\n    ```python\n\s*(.*?)\n\s*```", re.DOTALL)

ROWS, HIDDEN, INNER = 6, 16, 40
FLOPS = 2 * ROWS * (2 * INNER * HIDDEN + HIDDEN * INNER)
BYTES = 4 * (2 * ROWS * HIDDEN + 2 * INNER * HIDDEN + HIDDEN * INNER)

USER = f"""
import json

import torch

import llm_perf_opt as lpo
from llm_perf_opt.costs.coverage import price_coverage
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.ops.table import calibrated_work_of, kernels_of, price
from tests.timing.made_calibrations import calibration, matmul_seconds, table


@torch.library.custom_op("mylib::gated_mlp", mutates_args=())
def gated_mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.t()).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ down.t()


@gated_mlp.register_fake
def _(x, gate_up, down):
    return x.new_empty(x.shape)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.empty({2 * INNER}, {HIDDEN}))
        self.down = torch.nn.Parameter(torch.empty({HIDDEN}, {INNER}))

    def forward(self, x):
        return gated_mlp(x, self.gate_up, self.down)


(graph,) = lpo.trace(Mlp(), (torch.randn({ROWS}, {HIDDEN}),)).graphs
(kind,) = [kind for kind in graph.op_kinds if kind.name.startswith("mylib")]
cost, (kernel,) = price(kind), kernels_of(kind)
ticks = {{"rows": (1, 64), "columns": (16, 256), "depth": (16, 256)}}
machine = calibration(table("narrow_matmul", "float32", ticks, matmul_seconds))
(stage,) = predict(graph, CalibratedRates(machine))
print(json.dumps({{
    "flops": None if cost is None else cost.flops,
    "bytes": None if cost is None else cost.bytes_moved,
    "unpriced": [op.name for op in price_coverage(graph).unpriced],
    "kernel": [str(kernel.kind), kernel.flops, kernel.bytes_moved, kernel.rows],
    "families": [[work.family, dict(work.sizes)] for work in calibrated_work_of(kind) or ()],
    "untimed": dict(stage.untimed),
}}))
"""


def run_user(source: Path) -> dict[str, Any]:
    """A program with a fused op of its own, on the package in `source`."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", USER], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 2 and 3 of the guide, in a copy of the package."""
    source = tmp_path_factory.mktemp("copy") / "src"
    shutil.copytree(PACKAGE, source / "llm_perf_opt", ignore=shutil.ignore_patterns("__pycache__"))
    written, registered = WRITTEN.search(GUIDE), REGISTERED.search(GUIDE)
    assert written is not None and registered is not None
    file = source.parent / written[1]
    before = file.read_text("utf-8")
    formulas = textwrap.dedent(written[2])
    after = before.replace("\nOPS = registered(", f"\n{formulas}\n\nOPS = registered(")
    after = after.replace("OPS = registered(\n    {\n", f"OPS = registered(\n    {{\n        {registered[1]}\n")
    assert after.count("gated_mlp_work") == 2
    file.write_text(after, "utf-8")
    return source


def test_without_the_edit_the_op_is_unpriced_and_listed() -> None:
    figures = run_user(PACKAGE.parent)
    assert (figures["flops"], figures["unpriced"]) == (None, ["mylib.gated_mlp.default"])
    assert figures["untimed"] == {"mylib.gated_mlp.default": 1}


def test_one_edit_gives_price_bytes_kernels_and_calibrated_work(followed: Path) -> None:
    figures = run_user(followed)
    assert (figures["flops"], figures["bytes"], figures["unpriced"]) == (FLOPS, BYTES, [])
    assert figures["kernel"] == ["matmul", FLOPS, BYTES, ROWS]
    assert figures["families"] == [
        ["narrow_matmul", {"rows": ROWS, "columns": 2 * INNER, "depth": HIDDEN}],
        ["narrow_matmul", {"rows": ROWS, "columns": HIDDEN, "depth": INNER}],
    ]
    assert figures["untimed"] == {}
