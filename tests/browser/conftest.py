"""One browser for all tests of the page; without one they are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.core.plugins import DRAWINGS
from tests.browser.chromium import chromium, missing


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if reason := missing():
        pytest.skip(f"no browser: {reason}")
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[[GraphView], Any]]:
    """Draws a view and opens the page; afterwards nothing may have been written to the console."""
    from tests.browser.open_page import OpenPage

    pages = []

    def open_view(view: GraphView) -> OpenPage:
        file = tmp_path / "graph.html"
        file.write_text(DRAWINGS.get("html")().render(view), encoding="utf-8")  # type: ignore[arg-type]  # text, by its kind
        pages.append(OpenPage(browser, file.as_uri()))
        return pages[-1]

    yield open_view
    assert [message for page in pages for message in page.console()] == []
