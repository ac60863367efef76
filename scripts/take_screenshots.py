"""Takes the pictures of the graph page that the documentation shows, in a real browser, 1280 pixels wide.

    python -m scripts.take_screenshots run/prefill.callgraph.json docs/images

A page that says something on the console is an error. `bash scripts/pictures.sh` takes all pictures there are.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.analyses.grouping.view import group
from llm_perf_opt.core.callgraph import read_callgraph
from llm_perf_opt.core.plugins import DRAWINGS
from tests.browser.chromium import chromium
from tests.browser.open_page import OpenPage


def whole(page: OpenPage) -> None:
    page.by_id("fit").click()


def found(page: OpenPage) -> None:
    page.search("experts.[0-63]")
    page.wait_until("!document.querySelector('#status.shown')")
    page.wait_until("getComputedStyle(document.getElementById('status')).opacity === '0'")


def by_cost(page: OpenPage) -> None:
    page.choose("metric", "bytes_moved")
    page.choose("colour", "cost")
    page.by_id("fit").click()
    page.click("DeepseekV2MLP @ model.layers.[1-11].mlp.experts.[0-63]")


# name -> (dark, height, what the reader does first)
SCENES: dict[str, tuple[bool, int, Callable[[OpenPage], None]]] = {
    "graph-light": (False, 1240, whole),
    "graph-dark": (True, 1240, whole),
    "graph-search": (False, 860, found),
    "graph-cost": (False, 1240, by_cost),
}


def main(trace: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "graph.html"
        file.write_text(str(DRAWINGS.get("html")().render(group(read_callgraph(trace)))), encoding="utf-8")
        for name, (dark, height, prepare) in SCENES.items():
            with chromium(Path(scratch) / name, height=height, dark=dark) as driver:
                page = OpenPage(driver, file.as_uri())
                prepare(page)
                page.ask("document.activeElement.blur()")
                driver.save_screenshot(str(folder / f"{name}.png"))
                if said := page.console():
                    sys.exit(f"{name}: {said}")
                print(f"   {folder / f'{name}.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
