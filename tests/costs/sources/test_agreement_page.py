"""The page of full-size models is made from its data, every figure is explained, and cheap ones come out again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.breadth.sources import ONE_PERCENT, SUBJECTS, causes, compare, rest, section

ROOT = Path(__file__).parents[3]
DATA = json.loads((ROOT / "docs" / "data" / "source_agreement.json").read_text())
RECORDS = DATA["records"]
PHASES = [(name, phase) for name, record in RECORDS.items() for phase in record["phases"]]
AGAIN = ("gpt2", "vit", "whisper", "mamba")
PROMPT_TOKENS = 128
LATENT_CACHES = ("deepseek_v2", "deepseek_v3")  # every step expands the latents of the whole context


def test_the_page_shows_the_figures_of_the_data_file() -> None:
    header = {key: value for key, value in DATA.items() if key != "records"}
    assert section(header, RECORDS) in (ROOT / "docs" / "evidence" / "source-agreement.md").read_text()


def test_there_are_thirty_models_of_every_kind() -> None:
    kinds = Counter(record["kind"] for record in RECORDS.values())
    assert kinds.total() >= 30
    assert kinds.keys() == SUBJECTS.keys()
    assert {record["status"] for record in RECORDS.values()} == {"ok"}


@pytest.mark.parametrize(("name", "phase"), PHASES)
def test_the_count_is_within_one_percent_of_torchs_or_the_cause_is_named(name: str, phase: str) -> None:
    figures = RECORDS[name]["phases"][phase]
    assert figures["unpriced"] == []
    told = figures["torch-counter"]
    assert told["failures"] == []
    if abs(told["flops"] - figures["counted"]) > ONE_PERCENT * figures["counted"]:
        assert causes(figures, "torch-counter")
    assert rest(figures, "torch-counter") <= ONE_PERCENT


@pytest.mark.parametrize(("name", "phase"), PHASES)
def test_the_bytes_of_every_phase_are_those_of_the_tensors_at_the_dispatcher(name: str, phase: str) -> None:
    told = RECORDS[name]["phases"][phase]["bytes"]
    assert told["counted"] == told["byte-counter"] > 0


@pytest.mark.parametrize("name", [name for name, phase in PHASES if phase == "decode" and name not in LATENT_CACHES])
def test_a_step_costs_about_as_much_as_a_token_of_the_prefill(name: str) -> None:
    """An image or sound makes tokens of the prefill dearer; the head runs for one of them, and in each step."""
    phases = RECORDS[name]["phases"]
    assert 0 < phases["decode"]["counted"] < 2 * phases["prefill"]["counted"] / PROMPT_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("name", AGAIN)
def test_a_cheap_model_gives_the_recorded_figures_again(name: str) -> None:
    pytest.importorskip("transformers", reason="the models come from transformers")
    import transformers

    if transformers.__version__ != DATA["transformers"]:
        pytest.skip(f"the figures were recorded with transformers {DATA['transformers']}")
    again = compare(name)
    assert {**again, "seconds": None} == {**RECORDS[name], "seconds": None}
