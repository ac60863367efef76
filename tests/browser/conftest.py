"""One browser for all tests of the page; without one they are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.formats.html_format import HtmlDrawing
from tests.browser.chromium import chromium, missing

WALL = (2560, 1700)  # on which every box of the usual picture can be read


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if reason := missing():
        pytest.skip(f"no browser: {reason}")
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def resize(browser: Any, size: tuple[int, int]) -> None:
    """Gives the window another size."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Draws a view, or the phases of a run, and opens the page; afterwards nothing may stand in the console.

    In a tab of its own: a browser remembers fifty places of a tab at most, and forgets the first for the next.
    """
    from tests.browser.open_page import OpenPage

    pages = []

    def open_view(
        view: GraphView | Mapping[str, GraphView], size: tuple[int, int] = WALL, place: str = "", *, fits: bool = True
    ) -> OpenPage:
        file = tmp_path / "graph.html"
        phases = {view.title: view} if isinstance(view, GraphView) else view
        file.write_text(HtmlDrawing().render_phases(phases, next(iter(phases)), fits=fits), encoding="utf-8")
        resize(browser, size)
        browser.get("about:blank")  # so that another place in the same file is loaded anew
        pages.append(OpenPage(browser, file.as_uri() + place))
        return pages[-1]

    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    yield open_view
    said = [message for page in pages for message in page.console()]
    browser.close()
    browser.switch_to.window(first)
    assert said == []
