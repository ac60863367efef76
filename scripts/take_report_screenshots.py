"""Takes the pictures of a report page that the documentation shows, in a real browser, on a desk and on a phone.

    python -m scripts.take_report_screenshots report.html docs/images
    python -m scripts.take_report_screenshots sweep.html docs/images sweep
    python -m scripts.take_report_screenshots docs/data/ocr-study.html docs/images study

A page that says something on the console is an error. `bash scripts/pictures.sh` takes all pictures there are.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser.chromium import chromium

COST = "What does it cost?"
# Choose what runs up, and in the first picture point at one of the frontier, as a key does.
STUDY_POINT = """
const up = document.getElementById("up"); up.value = arguments[0]; up.dispatchEvent(new Event("change"));
if (arguments[1]) document.querySelectorAll("#chart .point.front")[2].focus();
"""

# name -> (width, height, dark, the chapter that is scrolled to, or None for the top); the name begins with the page's
SCENES: dict[str, tuple[int, int, bool, str | None]] = {
    "report-light": (1280, 1240, False, None),
    "report-dark": (1280, 1240, True, COST),
    "report-phone": (390, 844, False, None),
    "ten-trace": (1280, 900, False, None),
    "ten-cost": (1280, 900, False, None),
    "ten-profile": (1280, 1100, False, None),
    "ten-export": (1280, 700, False, None),
    "sweep-light": (1280, 1440, False, None),
    "explore-light": (1280, 1240, False, None),
    "study-light": (1280, 1240, False, None),
    "study-dark": (1280, 1240, True, None),
    "capacity-light": (1280, 1330, False, None),
}


def main(page: Path, folder: Path, of: str = "report") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scenes = {name: scene for name, scene in SCENES.items() if name.startswith(of)}
    for name, (width, height, dark, chapter) in scenes.items():
        with tempfile.TemporaryDirectory() as profile, chromium(Path(profile), width, height, dark=dark) as driver:
            driver.get(page.resolve().as_uri())
            if of == "study":
                driver.execute_script(STUDY_POINT, "request-cost" if dark else "requests", not dark)
            if chapter is not None:
                driver.find_element("link text", chapter).click()
            driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
            driver.save_screenshot(str(folder / f"{name}.png"))
            if said := [entry["message"] for entry in driver.get_log("browser")]:
                sys.exit(f"{name}: {said}")
            print(f"   {folder / f'{name}.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
