"""Takes the pictures of the graph page that the documentation shows, in a real browser, 1280 pixels wide.

    python -m scripts.take_screenshots graph.html docs/images

A page that says something on the console is an error. `bash scripts/pictures.sh` takes all pictures there are.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.browser.chromium import chromium
from tests.browser.open_page import OpenPage


def untouched(page: OpenPage) -> None:
    """The page as it comes."""


def found(page: OpenPage) -> None:
    page.search("experts.[0-63].down")
    page.wait_until("!document.querySelector('#status.shown')")
    page.wait_until("getComputedStyle(document.getElementById('status')).opacity === '0'")


def by_cost(page: OpenPage) -> None:
    page.choose("metric", "bytes_moved")
    page.choose("colour", "cost")
    page.click("DeepseekV2DecoderLayer @ model.layers.[1-11]")


# name -> (dark, width, height, what the reader does first)
SCENES: dict[str, tuple[bool, int, int, Callable[[OpenPage], None]]] = {
    "graph-light": (False, 1280, 800, untouched),
    "graph-dark": (True, 1280, 800, untouched),
    "graph-search": (False, 1280, 800, found),
    "graph-cost": (False, 1280, 800, by_cost),
    "graph-wall": (False, 1920, 1080, untouched),
    "graph-phone": (False, 390, 844, untouched),
}


def main(graph: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, (dark, width, height, prepare) in SCENES.items():
            with chromium(Path(scratch) / name, width, height, dark=dark) as driver:
                page = OpenPage(driver, graph.resolve().as_uri())
                prepare(page)
                page.ask("document.activeElement.blur()")
                driver.save_screenshot(str(folder / f"{name}.png"))
                if said := page.console():
                    sys.exit(f"{name}: {said}")
                print(f"   {folder / f'{name}.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
