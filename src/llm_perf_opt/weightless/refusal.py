"""What the engine cannot run, said so that a person can act: the op, the module, the line and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import error_line, error_notes
from llm_perf_opt.weightless.recording import OpRecorder

Site = tuple[CodeType, int]

_HERE = str(Path(__file__).parent.parent) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"


def calling_site() -> Site:
    """The innermost frame outside torch and outside this package's machinery."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def failing_site(error: BaseException) -> Site | None:
    """Where model code raised the error: the innermost such frame that it passed through."""
    site = None
    step = error.__traceback__
    while step is not None:
        if not _is_machinery(step.tb_frame.f_code.co_filename):
            site = step.tb_frame.f_code, step.tb_lineno
        step = step.tb_next
    return site


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


_MARK = "weightless: "


class Refusal(PerfOptError):
    """The engine stops here; continuing would invent more than an oracle may."""


def unknown_op(func: Any, recorder: OpRecorder | None, cause: BaseException) -> Refusal:
    """The refusal for an op that has no meta kernel, no decomposition and no CPU kernel that could stand in."""
    return Refusal(
        f"{func} cannot run without weights, {place(recorder)}.",
        why=f"torch cannot propagate its shapes ({first_line(cause)}) and no rule here knows them",
        fix=f"give Engine(rules={{{func.name().replace('::', '.')}: shape_function}}), or register a fake kernel "
        "with torch.library.register_fake",
    )


def place(recorder: OpRecorder | None) -> str:
    """`in model.layers.3.mlp, at /path/modeling.py:123`."""
    path = recorder.builder.current_path if recorder is not None else None
    module = f"in module {path or '(root)'}" if path is not None else "outside any traced module"
    return f"{module}, at {site_path(calling_site())}"


def locate(error: BaseException, func: Any, recorder: OpRecorder | None) -> None:
    """Add to an ordinary torch error where it happened; its type stays, since model code may catch it."""
    if any(note.startswith(_MARK) for note in error_notes(error)):
        return
    error.add_note(f"{_MARK}while running {func} {place(recorder)}")


def first_line(error: BaseException) -> str:
    """The first line of an error, short enough for one sentence."""
    return error_line(error, 160)
