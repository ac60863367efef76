"""The columns of a study as they are published."""

from __future__ import annotations

import json
from pathlib import Path

from llm_perf_opt.sweeps.studies.study_columns import BY_NAME, COLUMNS, KEY, published

FILE = Path(__file__).parents[3] / "docs/data/study_columns.json"


def test_the_published_file_is_what_the_code_says() -> None:
    """Written by `json.dumps(published(), indent=1)`."""
    assert json.loads(FILE.read_text("utf-8")) == published()


def test_every_column_has_a_meaning_and_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(COLUMNS)
    assert [column.name for column in COLUMNS if not column.meaning] == []
    assert set(KEY) <= BY_NAME.keys()


def test_a_name_carries_its_unit() -> None:
    wrong = [one.name for one in COLUMNS if (one.unit == "s") != (one.name.endswith("_s") and "per_s" not in one.name)]
    assert wrong == []
    assert [one.name for one in COLUMNS if (one.unit == "bytes") != ("bytes" in one.name)] == []
