"""Files with weights run by themselves, and give what the module with the same weights gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.exports import onnx_trial
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrTinyAdapter

pytest.importorskip("onnxruntime", reason="files are run in it")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="checkpoints are written with it")
WORKLOAD = {"image": "70x100", "crops": (2, 3), "prompt_tokens": 9}
PROJECTOR = "model.projector"

RUN_ALONE = """
import sys, numpy, onnxruntime, torch
folder, name = sys.argv[1:]
inputs = [torch.from_numpy(array) for array in numpy.load(f"{folder}/inputs.npz").values()]
with torch.no_grad():
    exported = torch.export.load(f"{folder}/{name}.pt2").module()(*inputs)
session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])
fed = {entry.name: tensor.numpy() for entry, tensor in zip(session.get_inputs(), inputs)}
assert "llm_perf_opt" not in sys.modules
numpy.savez(f"{folder}/outputs.npz", exported=exported[0].numpy(), onnx=session.run(None, fed)[0])
"""


def real_model() -> nn.Module:
    adapter = DeepSeekOcrTinyAdapter()
    target = adapter.targets(make_workload(adapter, **WORKLOAD, dtype="float32"))[0]
    return RealModels(weights="random", device="cpu").model_of(target)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return real_model()


@pytest.fixture
def checkpoint(model: nn.Module, tmp_path: Path) -> Iterator[Path]:
    """Two shards by an index: the weights of the projector, and all others in a file that is not there."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours = {name: tensor for name, tensor in state.items() if name.startswith(f"{PROJECTOR}.")}
    safetensors_torch.save_file(ours, folder / "one.safetensors")
    files = {name: "one.safetensors" if name in ours else "two.safetensors" for name in state}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), "utf-8")
    yield folder


def run_alone(folder: Path, name: str, *inputs: torch.Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """Both files in a process that does not know this package."""
    np.savez(folder / "inputs.npz", *(tensor.numpy() for tensor in inputs))
    subprocess.run([sys.executable, "-I", "-c", RUN_ALONE, str(folder), name], check=True, capture_output=True)
    with np.load(folder / "outputs.npz") as found:
        return dict(found)


@pytest.mark.slow  # starts a process that loads torch and onnxruntime
def test_a_part_with_the_weights_of_a_checkpoint_gives_what_the_model_gives(
    model: nn.Module, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = lpo.export(
        "deepseek-ocr-tiny", "projector", checks=("export", "onnx"), load_weights=checkpoint, out=out, **WORKLOAD
    )
    (part,) = answer.parts
    shape = json.loads(part.inputs[0].partition("float32")[2])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = model.get_submodule(PROJECTOR)(x).numpy()
    found = run_alone(out, "projector", x)
    np.testing.assert_array_equal(found["exported"], expected)
    np.testing.assert_allclose(found["onnx"], expected, rtol=1e-4, atol=1e-6)
    assert [(check.file, check.runtime) for check in part.weighted] == [
        ("projector.pt2", "torch.export"),
        ("projector.onnx", "onnxruntime"),
    ]
    assert {file.name for file in out.iterdir()} >= {"projector.pt2", "projector.onnx", "projector.fx.txt"}


def test_random_weights_are_those_of_the_part_alone_and_the_file_keeps_them(tmp_path: Path) -> None:
    answer = lpo.export(
        "deepseek-ocr-tiny",
        "projector",
        "clip-block",
        checks=("export",),
        load_weights="random",
        out=tmp_path,
        **WORKLOAD,
    )
    for part in answer.parts:
        (check,) = part.weighted
        assert check.parity.max_abs_error == 0
        assert check.parity.largest_value > 0.1
        held = torch.export.load(tmp_path / check.file).state_dict.values()
        assert sum(tensor.numel() for tensor in held) == part.parameters
        assert {tensor.device.type for tensor in held} == {"cpu"}
    assert "its files contain only its own weights" in str(answer.report().notes)


def test_a_wrapper_gets_the_weights_of_the_modules_that_it_stands_for(model: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    safetensors_torch.save_file(state, folder / "model.safetensors")
    lpo.export(
        "deepseek-ocr-tiny",
        "moe-layer-all-experts",
        checks=("export",),
        load_weights=folder,
        out=tmp_path / "out",
        **WORKLOAD,
    )
    program = torch.export.load(tmp_path / "out" / "moe-layer-all-experts.pt2")
    x = program.example_inputs[0][0]
    with torch.no_grad():
        expected = model.get_submodule("model.layers.1.mlp")(x)
        (found,) = program.module()(x)
    torch.testing.assert_close(found, expected)


def test_large_weights_lie_beside_the_onnx_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_trial, "ONE_FILE_BYTES", 0)
    answer = lpo.export(
        "deepseek-ocr-tiny", "projector", checks=("export", "onnx"), load_weights="random", out=tmp_path, **WORKLOAD
    )
    (part,) = answer.parts
    assert (tmp_path / "projector.onnx.data").stat().st_size > 0.9 * 4 * part.parameters  # a short bias stays inside
    assert part.weighted[1].file_bytes > 4 * part.parameters
    assert part.weighted[1].parity.max_rel_error < 1e-5  # it was run from there
    with pytest.raises(PerfOptError, match=r"Would overwrite .*projector\.onnx\.data"):
        lpo.export("deepseek-ocr-tiny", "projector", load_weights="random", out=tmp_path, **WORKLOAD)


def test_an_old_onnx_graph_never_meets_the_data_of_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_trial, "ONE_FILE_BYTES", 0)
    moved = onnx_trial.move_whole

    def full_at_the_graph(file: Path, path: Path) -> None:
        if path.suffix == ".onnx":
            raise PerfOptError(f"Cannot write {path}.", why="No space left on device", fix="make room there")
        moved(file, path)

    monkeypatch.setattr(onnx_trial, "move_whole", full_at_the_graph)
    (tmp_path / "projector.onnx").write_text("old graph")
    (tmp_path / "projector.onnx.data").write_text("old data")
    options = {"checks": ("export", "onnx"), "load_weights": "random", "force": True}
    with pytest.raises(PerfOptError, match="Cannot write"):
        lpo.export("deepseek-ocr-tiny", "projector", out=tmp_path, **options, **WORKLOAD)
    assert not (tmp_path / "projector.onnx").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_an_error_and_not_the_end_of_the_process() -> None:
    program = torch.export.export(nn.Linear(64, 64), (torch.zeros(1, 64),))
    with pytest.raises(OSError, match="No space left"):
        onnx_trial._save(program, Path("/dev/full"))


def test_names_that_do_not_fit_are_named(checkpoint: Path, tmp_path: Path) -> None:
    index = checkpoint / "model.safetensors.index.json"
    files = json.loads(index.read_text("utf-8"))["weight_map"]
    files[f"{PROJECTOR}.layers.extra"] = "one.safetensors"
    name = next(name for name in files if name.startswith(PROJECTOR))
    del files[name]
    index.write_text(json.dumps({"weight_map": files}), "utf-8")
    with pytest.raises(PerfOptError, match=rf"do not fit {PROJECTOR}") as caught:
        lpo.export("deepseek-ocr-tiny", "projector", checks=("export",), load_weights=checkpoint, **WORKLOAD)
    assert f"1 missing: {name}" in caught.value.why
    assert f"1 without a place in the model: {PROJECTOR}.layers.extra" in caught.value.why


def test_a_folder_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of weights"):
        lpo.export("deepseek-ocr-tiny", "projector", load_weights=tmp_path / "nowhere")


def test_a_module_keeps_its_own_weights(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    lpo.export(module, "", args=(x,), phase="forward", checks=("export",), load_weights="random", out=tmp_path)
    with torch.no_grad():
        (found,) = torch.export.load(tmp_path / "model.pt2").module()(x)
        torch.testing.assert_close(found, module(x), rtol=0, atol=0)


def test_a_part_over_the_limit_gets_no_weights(tmp_path: Path) -> None:
    answer = lpo.export(
        "deepseek-ocr-tiny",
        "projector",
        checks=("export",),
        load_weights="random",
        max_weight_bytes=100,
        out=tmp_path,
        **WORKLOAD,
    )
    assert "over the limit" in next(one.detail for one in answer.parts[0].outcomes if one.check.value == "weights")
    held = torch.export.load(tmp_path / "projector.pt2").state_dict.values()
    assert {tensor.device.type for tensor in held} == {"meta"}
