"""Reads the facts about the released DeepSeek-OCR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "facts" / "deepseek_ocr"


def fact(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())
