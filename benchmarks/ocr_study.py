"""The reference study: OCR models x formats x devices, its result, its page, and the pictures in the documentation.

    python -m benchmarks.ocr_study FOLDER [--docs]

Models that transformers has and that have no configuration here are written to FOLDER/models as transformers declares
them by default, their parts aligned as in `benchmarks/breadth`. With `--docs` the result is copied to docs/data.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from benchmarks.breadth.full_size import full_size_config
from llm_perf_opt.api.ask import ask, study_page
from llm_perf_opt.api.study import study

ROOT = Path(__file__).parents[1]
FAMILIES = {
    "glm_ocr": "GlmOcrForConditionalGeneration",
    "lighton_ocr": "LightOnOcrForConditionalGeneration",
    "paddleocr_vl": "PaddleOCRVLForConditionalGeneration",
    "unlimited_ocr": "UnlimitedOcrForConditionalGeneration",
}
KNOWN = {"qwen3-vl-8b": ROOT / "tests/facts/deployment/configs/qwen3-vl-8b"}
QUESTIONS = ("cost per million pages", "smallest device", "pages per second and watt", "failures")


def write_models(folder: Path) -> None:
    for family, model_class in FAMILIES.items():
        config = full_size_config(family).config
        config.architectures, config.dtype = [model_class], "bfloat16"
        config.save_pretrained(folder / family.replace("_", "-"))
    for name, place in KNOWN.items():
        shutil.copytree(place, folder / name, dirs_exist_ok=True)


def main(folder: Path, *, docs: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_models(folder / "models")
    shutil.copy(ROOT / "examples/ocr_study.yaml", folder / "study.yaml")
    os.chdir(folder)  # so that sources are told without the path of this machine
    print(study("study.yaml", out="results", workers=1))
    study_page("results", "ocr-study.html", force=True)
    for question in QUESTIONS:
        print(ask("results", question))
    if docs:
        kept = ROOT / "docs/data/ocr_study"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree("results", kept, ignore=shutil.ignore_patterns(".lock"))
        shutil.copy("ocr-study.html", ROOT / "docs/data/ocr-study.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]), docs="--docs" in sys.argv)
