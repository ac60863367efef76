"""Which model a name stands for: the order of the places, short forms, near misses, and paths."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.models.huggingface import hub
from llm_perf_opt.models.huggingface.names import CATALOGUE, catalogue, find_model, matching, near_names, short_form
from tests.models.huggingface.folders import LLAMA, write_folder

pytest.importorskip("huggingface_hub", reason="it comes with transformers, an optional extra")
REVISION = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, an empty folder to work in, and nobody to ask."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache"


def keep(cache: Path, name: str, revision: str = REVISION) -> Path:
    """A snapshot as huggingface_hub lays it down."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "snapshots" / revision).mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(revision)
    return write_folder(place / "snapshots" / revision, LLAMA)


def test_a_name_of_the_catalogue_says_where_its_sizes_come_from() -> None:
    found = find_model("Qwen/Qwen3-8B")
    assert found.folder == CATALOGUE / "Qwen--Qwen3-8B"
    assert json.loads((found.folder / "config.json").read_text())["hidden_size"] == 4096
    assert found.source.startswith("the catalogue of llm-perf-opt (model_configs/Qwen--Qwen3-8B_config.json in ")


def test_a_name_that_shares_the_sizes_of_another_says_so() -> None:
    found = find_model("meta-llama/Llama-3.3-70B-Instruct")
    assert found.name == "meta-llama/Llama-3.3-70B-Instruct"
    assert found.folder == CATALOGUE / "meta-llama--Llama-3.1-70B"
    assert "the sizes of meta-llama/Llama-3.1-70B" in found.source


def test_the_cache_comes_before_the_catalogue_and_a_folder_before_both(cache: Path) -> None:
    snapshot = keep(cache, "Qwen/Qwen3-8B")
    found = find_model("Qwen/Qwen3-8B")
    assert found.folder == snapshot
    assert found.source == f"the local Hugging Face cache, revision {REVISION[:12]}"
    Path("Qwen/Qwen3-8B").mkdir(parents=True)
    assert find_model("Qwen/Qwen3-8B").folder == Path("Qwen/Qwen3-8B")
    assert find_model("Qwen/Qwen3-8B").source == ""


def test_a_registered_name_comes_first() -> None:
    Path("deepseek-ocr").mkdir()
    assert find_model("deepseek-ocr").registered == "deepseek-ocr"


def test_a_snapshot_without_a_configuration_or_with_a_strange_revision_is_not_there(cache: Path) -> None:
    (keep(cache, "house/half") / "config.json").unlink()
    (cache / "models--house--strange" / "refs").mkdir(parents=True)
    (cache / "models--house--strange" / "snapshots").mkdir()
    (cache / "models--house--strange" / "refs" / "main").write_text("../../elsewhere")
    (cache / "elsewhere").mkdir()
    (cache / "elsewhere" / "config.json").write_text("{}")
    assert (cache / "models--house--strange" / "snapshots" / "../../elsewhere" / "config.json").is_file()
    assert hub.snapshot("house/half") is None
    assert hub.snapshot("house/strange") is None
    assert hub.cached_names() == ()


@pytest.mark.parametrize("text", ["qwen3-8b", "Qwen3-8B", "qwen/qwen3-8b", "QWEN/QWEN3_8B"])
def test_a_short_form_is_read_and_said(text: str, caplog: pytest.LogCaptureFixture) -> None:
    from llm_perf_opt.models.huggingface import names

    names._say.cache_clear()
    with caplog.at_level("INFO"):
        assert find_model(text).name == "Qwen/Qwen3-8B"
    assert caplog.messages == [f"{text} is read as Qwen/Qwen3-8B"]


def test_a_short_form_of_two_models_is_refused(cache: Path) -> None:
    keep(cache, "house/Qwen3-8B")
    assert set(short_form("qwen3-8b")) == {"house/Qwen3-8B", "Qwen/Qwen3-8B"}
    with pytest.raises(UsageError, match="can mean 2 models"):
        find_model("qwen3-8b")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Qwen/Qwen3-8", "Qwen/Qwen3-8B"),
        ("qwen3-8bb", "Qwen/Qwen3-8B"),
        ("meta-lama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("deepseek-orc", "deepseek-ocr"),
        ("openai/whisper-larg-v3", "openai/whisper-large-v3"),
    ],
)
def test_a_near_miss_is_suggested_first(text: str, meant: str) -> None:
    assert near_names(text)[0] == meant
    with pytest.raises(UsageError) as refusal:
        find_model(text)
    assert f"Did you mean {meant}" in refusal.value.fix
    assert "HF_HUB_OFFLINE" in refusal.value.why or "/" not in text


@pytest.mark.parametrize(
    "text", ["../nonexist/", "./a", "/nowhere/at/all", "a/b/c", "llama/", "~/x", "a\\b", "..", "/"]
)
def test_a_path_is_never_taken_for_a_name(text: str) -> None:
    if Path(text).is_dir():
        assert find_model(text).folder == Path(text)
        return
    with pytest.raises(UsageError, match="There is no folder") as refusal:
        find_model(text)
    assert "download" not in str(refusal.value)


def test_a_path_below_a_folder_that_is_there_is_no_name() -> None:
    Path("runs").mkdir()
    with pytest.raises(UsageError, match="There is no folder 'runs/llama'"):
        find_model("runs/llama")


@pytest.mark.parametrize("text", ["", "a b", "a/b c", "\x00", "x" * 5000, "a/" + "b" * 5000, "ä/ö", "a/../b", "-x/y"])
def test_what_no_model_can_be_called_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        find_model(text)


def test_words_find_names() -> None:
    assert "Qwen/Qwen3-VL-8B-Instruct" in matching(catalogue(), "qwen vl 8b")
    assert matching(catalogue(), "no-such-model") == ()


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="the extra kernels is not there")
def test_a_name_of_the_wheel_brings_its_formats_and_leaves_no_folder_behind() -> None:
    program = (
        "from llm_perf_opt.models.huggingface.names import find_model\n"
        "found = find_model('nvidia/Qwen3-235B-A22B-NVFP4')\n"
        "print(found.folder, *sorted(file.name for file in found.folder.iterdir()), sep='\\n')\n"
        "print(found.source)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    folder, *files, source = ran.stdout.splitlines()
    assert files == ["config.json", "hf_quant_config.json"]
    assert "aiconfigurator-core" in source
    assert not Path(folder).exists()


def test_a_wrong_name_is_answered_before_torch_is_loaded() -> None:
    program = (
        "import sys\n"
        "import llm_perf_opt as lpo\n"
        "from llm_perf_opt.core.errors import UsageError\n"
        "try:\n    lpo.trace('Qwen/Qwen3-8')\nexcept UsageError as error:\n    print(error.fix)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "Did you mean Qwen/Qwen3-8B" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "False False"
