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
from llm_perf_opt.exports.torch_lab import TorchLab
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


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever exports a part fails the test."""

    def examine(*_: object) -> None:
        pytest.fail("a part was exported")

    monkeypatch.setattr(TorchLab, "examine", examine)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["--part", "model.layers.0.mpl"], "does not call a module 'model.layers.0.mpl'", "'model.layers.0.mlp'"),
        (["--compile", "model.layers.0.mpl"], "is not among the parts", "'model.layers.0.mlp'"),
        (["--compile-mode", "max-autotunes"], "has no mode 'max-autotunes'", "'max-autotune'"),
        (["--load-weights", "nowhere"], "no folder of weights 'nowhere'", "--load-weights random"),
    ],
)
def test_a_wrong_name_is_refused_before_any_part_is_exported(
    folder: str, words: list[str], what: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["export", folder, *LAYER, *words], catch_exceptions=False)
    assert what in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.usefixtures("no_work")
def test_a_file_in_the_way_of_the_last_part_is_seen_before_the_first(folder: str, tmp_path: Path) -> None:
    (tmp_path / "model.layers.1.mlp.onnx").write_text("mine")
    words = ["export", folder, *LAYER, "--part", "model.layers.1.mlp", "--out", str(tmp_path)]
    with pytest.raises(PerfOptError, match=r"Would overwrite .*model\.layers\.1\.mlp\.onnx"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_weights_of_a_folder_go_into_the_file(folder: str, tmp_path: Path) -> None:
    """A model with tied weights, as transformers saves it: the file gives what the loaded model gives."""
    import transformers

    pytest.importorskip("safetensors", reason="transformers saves with it")
    torch.manual_seed(3)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = True
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = tmp_path / "out"
    words = ["--part", "lm_head", *LAYER, "--weights", folder, "--out", str(out), "--json"]
    result = CliRunner().invoke(app, ["export", folder, *words], catch_exceptions=False)
    tables = {table["title"]: table["rows"] for table in json.loads(result.stdout)["tables"]}
    assert [row["weights"] for row in tables["What exports"]] == ["ok", "ok"]
    for path in ("lm_head", "model.layers.0.mlp"):
        program = torch.export.load(out / f"{path}.pt2")
        x = torch.randn(program.example_inputs[0][0].shape)
        with torch.no_grad():
            torch.testing.assert_close(program.module()(x)[0], model.get_submodule(path)(x), rtol=0, atol=0)
