"""One page of a model that is spread over ranks has what `trace` shows of them."""

from __future__ import annotations

from pathlib import Path

import llm_perf_opt as lpo
from tests.api.tiny_folders import TOKENS, llama_folder


def test_the_page_has_the_table_of_ranks(tmp_path: Path) -> None:
    spread = lpo.trace(llama_folder(tmp_path / "llama"), prompt_tokens=TOKENS, pp=2)
    answer = spread.report(device="2x h100-sxm")
    chapter = next(one for one in answer.report().chapters if one.title == "What does each rank hold and run?")
    [table] = [table for table in chapter.tables if table.title == "Ranks"]
    shown = next(table for table in spread.stages().report().tables if table.title == "Ranks")
    names, shown_names = ([column.name for column in one.columns] for one in (table, shown))
    same = [name for name in shown_names if name in names]
    assert {"rank", "phase", "weights", "FLOPs"} <= set(same)
    for row, other in zip(table.rows, shown.rows, strict=True):
        assert [row[names.index(name)] for name in same] == [other[shown_names.index(name)] for name in same]
    [glance] = [row for row in answer.report().tables[0].rows if row[0] == chapter.title]
    assert "1 like rank 0, 1 like rank 1" in str(glance[1])


def test_a_model_on_one_device_has_no_such_chapter(tmp_path: Path) -> None:
    answer = lpo.trace(llama_folder(tmp_path / "llama"), prompt_tokens=TOKENS).report()
    assert answer.ranks is None
    assert "What does each rank hold and run?" not in [one.title for one in answer.report().chapters]
