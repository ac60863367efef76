"""What is refused before anything is made, and the stand-in that lets torchvision be imported."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from llm_perf_opt.cli import main as command
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.serving.engine_process import environment
from llm_perf_opt.serving.engine_process.make_environment import _STAND_IN, _STAND_IN_CODE, _write_stand_in, make


def test_a_folder_that_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        make(tmp_path)
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", "engines", "install", "vllm", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        command()
    assert left.value.code == 2
    assert "is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_was_cut_off_is_no_environment_and_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip fails in the new folder, after an earlier call has left a file that has to go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv(environment.VLLM.variable, raising=False)
    folder = environment.VLLM.default_folder()
    folder.mkdir(parents=True)
    (folder / environment.UNFINISHED).touch()
    (folder / "left over").touch()
    with pytest.raises(PerfOptError, match="failed in the new environment"):
        make(folder)
    assert (folder / "bin" / "python").exists()
    assert (folder / environment.UNFINISHED).exists()
    assert not (folder / "left over").exists()
    assert folder / "bin" / "python" not in environment._candidates(environment.VLLM)
    (folder / environment.UNFINISHED).unlink()
    assert folder / "bin" / "python" in environment._candidates(environment.VLLM)


def test_the_stand_in_leaves_out_one_module_and_no_other(tmp_path: Path) -> None:
    """A package like torchvision, one of whose modules fails: with the stand-in it can be imported."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from . import _meta_registrations, transforms\n")
    (package / "_meta_registrations.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (package / "transforms.py").write_text("value = 1\n")
    (tmp_path / "stand_in.py").write_text(_STAND_IN_CODE)
    use = "import torchvision; print(torchvision.transforms.value)"
    without = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True)
    assert "nms does not exist" in without.stderr
    with_it = subprocess.run(
        [sys.executable, "-c", "import stand_in; " + use], cwd=tmp_path, capture_output=True, text=True
    )
    assert with_it.stdout == "1\n"


def test_the_stand_in_is_there_whenever_that_python_starts(tmp_path: Path) -> None:
    venv.create(tmp_path / "made", with_pip=False)
    python = tmp_path / "made" / "bin" / "python"
    _write_stand_in(python)
    said = subprocess.run(
        [python, "-c", f"import sys; print('{_STAND_IN}' in sys.modules)"], capture_output=True, text=True
    )
    assert said.stdout == "True\n"
