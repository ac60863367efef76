"""Makes the gallery: the page to explore of eight models, and a picture of each in a real browser.

    python -m scripts.gallery FOLDER [MODEL ...]    all eight unless named; docs/gallery has the pictures

A page that is there already is kept, so that a run can be continued. The pages have a megabyte each and are made, not
kept in the repository; the pictures are kept.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.pages import put_between
from tests.browser.chromium import chromium

GPUS = "h100-sxm,h200-sxm,a100-sxm-80g,l40s"
# name -> model, --users and --input
PAGES = {
    "deepseek-ocr": ("deepseek-ocr", "1..64", "1k..4k"),
    "qwen3-vl-8b": ("Qwen/Qwen3-VL-8B-Instruct", "1..256", "1k..32k"),
    "whisper-large-v3": ("openai/whisper-large-v3", "1..64", "1..256"),
    "llama-3.1-8b": ("meta-llama/Llama-3.1-8B", "1..256", "1k..128k"),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", "1..256", "1k..32k"),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", "1..256", "1k..32k"),
    "gpt-oss-120b": ("openai/gpt-oss-120b", "1..256", "1k..64k"),
    "jamba-v0.1": ("ai21labs/Jamba-v0.1", "1..64", "64..512"),
}
WIDTH, HEIGHT, COLOURS = 1280, 900, 256
MOST_BYTES = 150_000  # of a picture


def make_page(name: str, folder: Path) -> Path:
    """The page, by the command that a reader would use."""
    page = folder / f"{name}.html"
    if not page.exists():
        model, users, tokens = PAGES[name]
        command = [sys.executable, "-m", "llm_perf_opt", "sweep", model, "--users", users, "--input", tokens]
        subprocess.run([*command, "--gpus", GPUS, "--out", str(page)], check=True, stdout=subprocess.DEVNULL)
    return page


def take_picture(driver: Any, page: Path) -> Path:
    """The first screen of the page, in few colours; a page that says something on the console is an error."""
    driver.get(page.resolve().as_uri())
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    if said := [entry["message"] for entry in driver.get_log("browser")]:
        sys.exit(f"{page.name}: {said}")
    picture = page.with_suffix(".png")
    shot = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    # By octree: the median cut drops colours of few pixels, such as a limit in red.
    shot.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)
    if picture.stat().st_size > MOST_BYTES:
        sys.exit(f"{picture.name} has {picture.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    return picture


def show_pictures(index: Path) -> None:
    """The pictures that are there, in the page that shows them."""
    names = [name for name in PAGES if index.with_name(f"{name}.png").exists()]
    shown = [f"![The page to explore of {PAGES[name][0]}]({name}.png)" for name in names]
    put_between(index, "<!-- begin pictures -->", "<!-- end pictures -->", "\n".join(["", *shown, ""]))


def main(folder: Path, *names: str) -> None:
    """Pages first: each takes a minute or two of one core."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = [make_page(name, folder) for name in names or PAGES]
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile), WIDTH, HEIGHT) as driver:
        for page in pages:
            print(f"   {take_picture(driver, page)} ({page.stat().st_size:,} bytes of page)")
    if (index := folder / "index.md").exists():
        show_pictures(index)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
