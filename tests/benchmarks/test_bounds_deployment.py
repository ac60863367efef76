"""What traces of 13 models make necessary is what closed forms say, and the page shows all configurations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bounds import page
from benchmarks.bounds.page import CONFIGS, expected, traced, truth

DOCS = Path(__file__).parents[2] / "docs"
DATA: dict[str, Any] = json.loads((DOCS / "data" / "deployment_truth.json").read_text(encoding="utf-8"))
RECORDS: list[dict[str, Any]] = truth()["records"]
MODELS = sorted({record["model"] for record in RECORDS})


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_traces_give_every_record(model: str) -> None:
    needs = traced(model)
    for record in (record for record in RECORDS if record["model"] == model):
        work = needs.step(batch=record["batch"], context=record["prompt_tokens"] + 1)
        bytes_read, flops = expected(record)
        assert needs.active_matrix_parameters == record["matrix_parameters_active"]
        assert work.flops == flops
        assert work.bytes == pytest.approx(bytes_read, rel=0.01)


def test_the_page_has_every_record_and_configuration() -> None:
    assert [(row["model"], row["prompt_tokens"], row["batch"]) for row in DATA["records"]] == [
        (record["model"], record["prompt_tokens"], record["batch"]) for record in RECORDS
    ]
    folders = {folder.name for folder in CONFIGS.iterdir() if folder.is_dir()}
    assert {row["configuration"] for row in DATA["configurations"]} == folders
    assert len(folders) >= 33


def test_no_code_does_less_than_is_necessary() -> None:
    for row in DATA["configurations"]:
        assert row["necessary_flops"] <= row["written_flops"], row["configuration"]
        assert row["necessary_bytes"] <= row["written_bytes"], row["configuration"]


def test_configurations_have_as_many_parameters_as_published() -> None:
    known = [row for row in DATA["configurations"] if row["published_parameters"]]
    assert len({row["configuration"] for row in known}) == 26
    for row in known:
        tolerance = 0.025 if row["configuration"] == "flan-t5-xl" else 1e-3  # its head is tied, as the page says
        assert row["parameters"] == pytest.approx(row["published_parameters"], rel=tolerance), row["configuration"]


def test_stored_weights_are_those_of_known_checkpoints() -> None:
    stored = {row["configuration"]: row["stored_bytes"] / 2**30 for row in DATA["configurations"]}
    assert stored["gpt-oss-20b-mxfp4"] == pytest.approx(12.8, rel=0.01)
    assert stored["gpt-oss-120b-mxfp4"] == pytest.approx(60.8, rel=0.01)


def test_the_page_is_its_record() -> None:
    text = (DOCS / "evidence" / "deployment-truth.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"<!-- begin (\w+) -->\n\n(.*?)\n\n<!-- end \1 -->", text, re.DOTALL))
    assert written == {name: section.strip() for name, section in page.deployment_sections(DATA).items()}
