"""The line of model code that is running: where an oracle answered, where a refusal happened."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

import torch

Site = tuple[CodeType, int]

_HERE = str(Path(__file__).parent.parent) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"


def calling_site() -> Site:
    """The innermost frame outside torch and outside this package's machinery."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def _is_machinery(filename: str) -> bool:
    if filename.startswith(_TORCH):
        return True
    # Model folders of this package are model code like any other.
    return filename.startswith(_HERE) and not filename.startswith(_HERE + "models/")


def site_text(site: Site) -> str:
    """`modeling.py:123 in forward`; the folder is left out so that traces of two machines compare equal."""
    code, line = site
    return f"{Path(code.co_filename).name}:{line} in {code.co_name}"


def site_path(site: Site) -> str:
    """`/full/path/modeling.py:123`, for a person who wants to open it."""
    code, line = site
    return f"{code.co_filename}:{line}"
