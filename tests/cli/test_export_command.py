"""`export` at the command line: usage, files, and what is never overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from llm_perf_opt.api import export as export_module
from llm_perf_opt.cli.app import app
from llm_perf_opt.core.errors import PerfOptError, UsageError
from tests.models.huggingface.folders import LLAMA, write_folder

pytest.importorskip("transformers", reason="a Hugging Face folder needs transformers")
LAYER = ["--part", "model.layers.0.mlp", "--prompt-tokens", "4", "--check", "export"]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "llama").mkdir()
    return str(write_folder(tmp_path / "llama", LLAMA))


def test_a_part_is_written_whole_and_can_be_loaded_again(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["export", folder, *LAYER, "--out", str(out), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    names = ["matrix.html", "matrix.json", "matrix.md", "model.layers.0.mlp.fx.txt", "model.layers.0.mlp.pt2"]
    assert sorted(file.name for file in out.iterdir()) == names
    program = torch.export.load(out / "model.layers.0.mlp.pt2")
    assert {tuple(tensor.shape) for tensor in program.state_dict.values()} == {(96, 64), (64, 96)}
    assert {tensor.device.type for tensor in program.state_dict.values()} == {"meta"}
    assert "aten.linear.default" in (out / "model.layers.0.mlp.fx.txt").read_text()
    tables = {table["title"]: table["rows"] for table in json.loads(result.stdout)["tables"]}
    assert tables["What exports"][0]["torch_export"] == "ok"
    assert tables["FLOPs from three sources"][0]["exported_flops"] == 2 * 4 * 3 * 64 * 96


def test_nothing_is_overwritten_without_force(folder: str, tmp_path: Path) -> None:
    (tmp_path / "matrix.md").write_text("mine")
    with pytest.raises(PerfOptError, match=r"Would overwrite .*matrix\.md"):
        CliRunner().invoke(app, ["export", folder, *LAYER, "--out", str(tmp_path)], catch_exceptions=False)
    assert (tmp_path / "matrix.md").read_text() == "mine"


def test_a_module_that_does_not_run_is_wrong_usage(folder: str) -> None:
    with pytest.raises(UsageError, match=r"does not call a module 'model\.layers\.7'"):
        CliRunner().invoke(app, ["export", folder, "--part", "model.layers.7"], catch_exceptions=False)


def test_a_part_to_compile_must_be_among_the_parts(folder: str) -> None:
    with pytest.raises(UsageError, match="not among the parts"):
        CliRunner().invoke(app, ["export", folder, *LAYER, "--compile", "sam"], catch_exceptions=False)


def test_an_unknown_check_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"(?s)no check 'tensorrt'.*export, dynamic, onnx, onnxruntime"):
        CliRunner().invoke(app, ["export", "deepseek-ocr", "--check", "tensorrt"], catch_exceptions=False)


def test_strict_refuses_a_graph_that_does_other_work_than_the_trace(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["export", folder, *LAYER, "--strict"]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    seen = export_module._traced_kinds
    monkeypatch.setattr(
        export_module,
        "_traced_kinds",
        lambda graph, outcome: {kind: 2 * count for kind, count in (seen(graph, outcome) or {}).items()},
    )
    with pytest.raises(PerfOptError, match=r"FLOPs of model\.layers\.0\.mlp differ between sources"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
