"""The catalogue that the package ships: every model has the parameters that were published for it, and is built."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.plugins import MODEL_ALIASES, MODELS
from llm_perf_opt.models.huggingface.folder import read_folder
from llm_perf_opt.models.huggingface.names import CATALOGUE, INDEX, catalogue, find_model, folder_name

ROOT = Path(__file__).parents[3]
ROWS = {row["name"]: row for row in json.loads(INDEX.read_text("utf-8"))}
PUBLISHED = json.loads((ROOT / "tests/facts/published_parameters.json").read_text("utf-8"))["parameters"]
UNITS = {"M": 10**6, "B": 10**9, "T": 10**12}
QUICK = (  # one of each kind of origin and of model
    "BAAI/bge-m3",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "google/gemma-3-4b-it",
    "openai/whisper-tiny",
    "openai/gpt-oss-120b",
)


def agrees(counted: int, published: int | str) -> bool:
    """A number exactly; a rounded text to one of its last digit."""
    if isinstance(published, int):
        return counted == published
    digits, unit = published[:-1], UNITS[published[-1]]
    return abs(counted / unit - float(digits)) <= 10.0 ** -len(digits.partition(".")[2])


def test_every_model_has_the_parameters_that_were_published() -> None:
    assert ROWS.keys() == PUBLISHED.keys()
    assert [name for name, row in ROWS.items() if not agrees(row["parameters"], PUBLISHED[name])] == []
    assert len(ROWS) >= 60


def test_a_wrong_number_is_found() -> None:
    assert not agrees(8_190_735_361, 8_190_735_360)
    assert agrees(1_572_997_179_491, "1.6T")
    assert not agrees(1_372_997_179_491, "1.6T")
    assert not agrees(36_200_000_000, "35B")


def test_a_size_in_a_name_is_the_size_of_the_model() -> None:
    """`Qwen3-235B-A22B` has 235 billion, not 22; names that count otherwise are listed with the reason."""
    otherwise = {
        "Qwen/Qwen1.5-MoE-A2.7B",  # of those that are active
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",  # likewise
        "mistralai/Mixtral-8x7B-v0.1",  # experts times a dense model, which share their attention
        "mistralai/Mixtral-8x22B-v0.1",
        "google/gemma-4-e2b-it",  # without the embeddings of each layer
        "mistralai/Voxtral-Mini-3B-2507",  # its language model alone
    }
    wrong = []
    for name in ROWS.keys() - otherwise:
        sizes = re.findall(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z\d])", name.partition("/")[2])
        if sizes and not 0.85 < ROWS[name]["parameters"] / (float(sizes[0][0]) * UNITS[sizes[0][1].upper()]) < 1.35:
            wrong.append(name)
    assert wrong == []


def test_every_name_leads_to_one_readable_configuration_with_a_source() -> None:
    names = [*ROWS, *(shared for row in ROWS.values() for shared in row["shared_by"])]
    assert len(names) == len(set(names))
    assert {folder.name for folder in CATALOGUE.iterdir() if folder.is_dir()} == set(map(folder_name, ROWS))
    for name in names:
        known = catalogue()[name]
        fields = read_folder(known.folder).fields
        assert known.source, name
        assert "auto_map" not in fields, name  # no code comes with a catalogue
        assert fields["architectures"] or fields["model_type"], name


def test_published_names_of_registered_models_lead_to_them() -> None:
    assert {find_model(name).registered for name in MODEL_ALIASES} <= set(MODELS.names())
    assert find_model("deepseek-ai/DeepSeek-OCR").registered == "deepseek-ocr"


def counted(name: str) -> int:
    pytest.importorskip("transformers", reason="it builds the models")
    from scripts.model_catalogue import counted as built

    return built(CATALOGUE / folder_name(name))


@pytest.mark.parametrize("name", QUICK)
def test_some_models_are_built_at_full_size(name: str) -> None:
    assert counted(name) == ROWS[name]["parameters"]


MADE = {name for name, row in ROWS.items() if row["source"].startswith(("default of", "written by"))}  # by us


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ROWS.keys() - set(QUICK) - MADE))
def test_every_model_is_built_at_full_size(name: str) -> None:
    assert counted(name) == ROWS[name]["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MADE))
def test_what_was_not_published_as_a_file_runs_at_full_size(name: str) -> None:
    """A configuration that was put together may build a model that its own forward refuses."""
    pytest.importorskip("transformers", reason="it builds the models")
    stages = lpo.trace(name).stages()
    assert (stages.parameters, stages.unpriced_ops) == (ROWS[name]["parameters"], 0)
