from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from llm_perf_opt.cli.progress import ProgressBar, progress_bar


def test_page_stage_and_count_are_shown() -> None:
    screen = io.StringIO()
    columns = (MofNCompleteColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[stage]}"))
    console = Console(file=screen, force_terminal=True, color_system=None)
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        told = ProgressBar(bar)
        told.begin(20, 3)
        told.page("scan-4.png")
        with told.stage("prefill"):
            bar.refresh()
        told.page_done()
        bar.refresh()
    shown = screen.getvalue()
    assert "3/20 scan-4.png prefill" in shown
    assert "4/20" in shown


def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        assert progress is None
    assert capsys.readouterr().err == ""
