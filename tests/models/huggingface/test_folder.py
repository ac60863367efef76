from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from tests.models.huggingface.folders import LLAMA, write_folder

pytest.importorskip("transformers", reason="a Hugging Face folder is run by transformers, an optional extra")

OWN_CODE = """
import pathlib
pathlib.Path(r"{marker}").write_text("ran")
import torch
from transformers import PretrainedConfig, PreTrainedModel

class HouseConfig(PretrainedConfig):
    model_type = "house_model"
    def __init__(self, width=8, vocab_size=50, **rest):
        super().__init__(**rest)
        self.width = width
        self.vocab_size = vocab_size

class HouseModel(PreTrainedModel):
    config_class = HouseConfig
    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, config.width)
        self.head = torch.nn.Linear(config.width, config.vocab_size)
        self.post_init()
    def forward(self, input_ids):
        return self.head(self.words(input_ids))
"""
OWN_CONFIG = {
    "model_type": "house_model",
    "auto_map": {"AutoConfig": "house.HouseConfig", "AutoModel": "house.HouseModel"},
}


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder with code of its own, and the file that the code leaves behind when it runs."""
    folder, marker = tmp_path / "house_model", tmp_path / "marker"
    folder.mkdir()
    (folder / "house.py").write_text(OWN_CODE.format(marker=marker))
    modules = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    return write_folder(folder, OWN_CONFIG), marker


def test_code_in_a_folder_does_not_run_untrusted(own_code: tuple[Path, Path]) -> None:
    folder, marker = own_code
    with pytest.raises(UsageError, match=r"house\.HouseModel") as refusal:
        HuggingFaceAdapter(folder, trust_remote_code=False)
    assert "--trust-remote-code" in refusal.value.fix
    assert not marker.exists()


def test_code_in_a_folder_runs_when_trusted(own_code: tuple[Path, Path]) -> None:
    folder, marker = own_code
    (target,) = HuggingFaceAdapter(folder, trust_remote_code=True).targets(Workload(prompt_tokens=8))
    assert marker.exists()
    assert target.workload["inputs"] == {"input_ids": [1, 8]}
    output: Any = target.run(target.build())
    assert tuple(output.shape) == (1, 8, 50)


def test_a_known_model_type_needs_no_trust_in_the_code_beside_it(tmp_path: Path) -> None:
    config = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}}
    (tmp_path / "evil.py").write_text("raise SystemExit('the code ran')")
    adapter = HuggingFaceAdapter(write_folder(tmp_path, config), trust_remote_code=False)
    assert adapter.title.startswith("LlamaForCausalLM")


def test_the_released_ocr_folder_asks_for_trust(tmp_path: Path) -> None:
    config = {"model_type": "DeepseekOCR", "auto_map": {"AutoModel": "modeling_deepseekocr.DeepseekOCRForCausalLM"}}
    with pytest.raises(UsageError, match="DeepseekOCR"):
        HuggingFaceAdapter(write_folder(tmp_path, config), trust_remote_code=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"llama"',
        "{}",
        '{"model_type": 7}',
        '{"model_type": ""}',
        "[" * 100_000,
        '{"a": "\\ud800',
    ],
    ids=["empty", "cut", "list", "null", "string", "no type", "number", "blank", "deep", "surrogate"],
)
def test_a_broken_configuration_is_refused_with_a_reason(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError) as refusal:
        HuggingFaceAdapter(tmp_path, trust_remote_code=False)
    assert refusal.value.why
    assert refusal.value.fix


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "wide"},
        {"hidden_size": -64},
        {"num_attention_heads": 0},
        {"num_hidden_layers": None},
        {"vocab_size": [1, 2]},
        {"rope_parameters": "circular", "rope_scaling": "circular"},
        {"hidden_act": "__import__('os').system('true')"},
        {"model_type": "../../etc/passwd"},
        {"model_type": "no_such_model"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_hostile_fields_end_in_an_error_of_ours(tmp_path: Path, change: dict[str, Any]) -> None:
    write_folder(tmp_path, {**LLAMA, **change})
    with pytest.raises(PerfOptError):
        HuggingFaceAdapter(tmp_path, trust_remote_code=False).targets(Workload(prompt_tokens=8))


def test_architectures_of_another_model_are_not_loaded(tmp_path: Path) -> None:
    write_folder(tmp_path, {**LLAMA, "architectures": ["Trainer", "", "BertModel"]})
    assert HuggingFaceAdapter(tmp_path, trust_remote_code=False).title.startswith("LlamaForCausalLM")


def test_a_folder_without_a_configuration_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        HuggingFaceAdapter(tmp_path, trust_remote_code=False)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"auto_map": []}, "auto_map"),
        ({"auto_map": "modeling.Model"}, "auto_map"),
        ({"auto_map": {"AutoModel": 3}}, r"auto_map\['AutoModel'\]"),
        ({"auto_map": {"AutoModel": None}}, r"auto_map\['AutoModel'\]"),
        ({"auto_map": {"AutoModel": ["a.B", {}]}}, r"auto_map\['AutoModel'\]"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [3]}, r"architectures\[0\]"),
        ({"architectures": {"a": 1}}, "architectures"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": "\x1b[31mllama"}, "model_type"),
        ({"model_type": "x" * 999}, "model_type"),
    ],
)
@pytest.mark.parametrize("trust", [False, True])
def test_what_a_configuration_says_it_is_has_the_right_types(
    tmp_path: Path, change: dict[str, Any], where: str, trust: bool
) -> None:
    write_folder(tmp_path, {**LLAMA, **change})
    with pytest.raises(UsageError, match=f"malformed at {where}") as refusal:
        HuggingFaceAdapter(tmp_path, trust_remote_code=trust)
    assert "\x1b" not in str(refusal.value)
    assert refusal.value.fix


@pytest.mark.parametrize("name", ["../evil.Model", "/etc/evil.Model", "evil", "a b.Model", "evil.Model\n", "--x.Y", ""])
def test_an_auto_map_names_a_module_beside_it(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path, {**LLAMA, "auto_map": {"AutoModel": name}})
    with pytest.raises(UsageError, match="The auto_map names"):
        HuggingFaceAdapter(tmp_path, trust_remote_code=True)


def test_an_auto_map_may_hold_lists_and_other_folders(tmp_path: Path) -> None:
    """Tokenizers have a slow and a fast class, either of which may be missing."""
    auto_map = {"AutoTokenizer": ["tokens.Slow", None], "AutoModel": "org/name--modeling.Model"}
    adapter = HuggingFaceAdapter(write_folder(tmp_path, {**LLAMA, "auto_map": auto_map}), trust_remote_code=False)
    assert adapter.title.startswith("LlamaForCausalLM")
    write_folder(tmp_path, {"model_type": "unheard_of", "auto_map": auto_map})
    with pytest.raises(UsageError, match=r"brings its own Python code .org/name--modeling.Model, tokens.Slow."):
        HuggingFaceAdapter(tmp_path, trust_remote_code=False)


FAULTS = {
    "missing package": (
        "from no_such_package_here import thing",
        "no_such_package_here is not installed",
        "pip install no_such_package_here",
    ),
    "transformers too new": (
        "from transformers.models.llama.modeling_llama import LlamaFlashAttention_of_before",
        "has no LlamaFlashAttention_of_before in transformers.models.llama.modeling_llama; the code was written for "
        "transformers 4.46.3",
        "pip install 'transformers==4.46.3'",
    ),
    "torchvision of another build": (
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "was built for another torch",
        "--force-reinstall",
    ),
}


@pytest.mark.parametrize("place", ["AutoConfig", "AutoModel"])
@pytest.mark.parametrize("fault", FAULTS)
def test_code_that_cannot_be_loaded_names_the_package(
    fault: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, why, fix = FAULTS[fault]
    folder = tmp_path / f"faulty_{fault.replace(' ', '_')}_{place}"
    folder.mkdir()
    code = OWN_CODE.format(marker=tmp_path / "marker")
    (folder / "house.py").write_text(code)
    (folder / "broken.py").write_text(f"{line}\n{code}")
    classes = {"AutoConfig": "house.HouseConfig", "AutoModel": "house.HouseModel"}
    classes[place] = classes[place].replace("house", "broken", 1)
    write_folder(folder, {**OWN_CONFIG, "auto_map": classes, "transformers_version": "4.46.3"})
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(PerfOptError, match="cannot be loaded") as refusal:
        HuggingFaceAdapter(folder, trust_remote_code=True)
    assert why in refusal.value.why
    assert fix in refusal.value.fix


def test_a_package_that_only_the_forward_imports_is_named_too() -> None:
    class Lazy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            import no_such_package_here  # type: ignore[import-not-found]

            return x + no_such_package_here.one

    target = Target(model="m", phase="p", workload={}, build=Lazy, invoke=lambda m: m(torch.ones(2)))
    with pytest.raises(PerfOptError) as refusal:
        WeightlessTracer().trace(target)
    assert refusal.value.fix == "pip install no_such_package_here"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"torch_dtype": [1, 2, 3]}, "torch_dtype"),
        ({"dtype": 5}, "dtype"),
        ({"text_config": {"dtype": ["float32"]}}, "text_config.dtype"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"vision_config": {"depth": -2}}, "vision_config.depth"),
    ],
)
def test_a_type_that_is_no_name_and_a_depth_below_zero_are_refused(
    tmp_path: Path, fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(UsageError, match=f"malformed at {place}\\."):
        HuggingFaceAdapter(write_folder(tmp_path, {**LLAMA, **fields}), trust_remote_code=False)


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    folder = write_folder(tmp_path / "m", LLAMA)
    (tmp_path / "secret.json").write_text(json.dumps({**LLAMA, "quantization": {"quant_algo": "FP8"}}))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret.json")
    with pytest.raises(UsageError, match="leads out of its folder"):
        lpo.trace(str(folder), prompt_tokens=4).memory()


def test_a_snapshot_of_the_hub_is_a_folder_of_links_and_is_read(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "rev"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    (blobs / "0123").write_text(json.dumps(LLAMA))
    (folder / "config.json").symlink_to("../../blobs/0123")
    assert HuggingFaceAdapter(folder, trust_remote_code=False).targets(Workload(prompt_tokens=4))
