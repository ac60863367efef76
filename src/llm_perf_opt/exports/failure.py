"""From an exception of an exporter to a reason with a place: the op, the line of model code, and what to do."""

from __future__ import annotations

import contextlib
import linecache
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from llm_perf_opt.core.export_outcome import Check, CheckOutcome, Verdict
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.harness.quiet import errors_dropped

# What exporters raise on code that they cannot take. Interrupts, memory and system errors are not among them.
EXPORT_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
_PACKAGE = str(Path(__file__).parent) + "/"
_MACHINERY = tuple(f"{path}/" for path in (Path(torch.__file__).parent, sysconfig.get_paths()["stdlib"]))
_SITE_PACKAGES = sysconfig.get_paths()["purelib"] + "/"
_LIBRARIES = ("onnx", "onnxscript", "onnx_ir", "onnxruntime", "numpy", "sympy")
_OPERATOR = re.compile(r"OpOverload\(op='([\w.]+)', overload='(\w+)'\)|\b((?:aten|prims|_c10d\w*)\.\w+\.\w+)\b")
_VALUES = (
    r"\.numpy\(\) is not supported|\.tolist\(\)|data-dependent|data dependent|GuardOnDataDependent|"
    r"Cannot call item|cannot be converted to a numpy|meta tensors|unbacked|Cannot copy out of meta"
)
_GROUPED = r"grouped_mm|[Gg]rouped matmul|aten\.histc"
_REMEDIES = (
    (_VALUES, "the code branches or loops on the values of a tensor, which a static graph does not have"),
    (r"No ONNX function found|DispatchError|No decompositions registered", "ONNX has no operator for it"),
    (r"Unsupported input type|pytree", "the exporter cannot see into one of the arguments"),
)


def failed(
    check: Check, error: BaseException, *, instead: tuple[str, ...] = (), seconds: float | None = None
) -> CheckOutcome:
    """The outcome of a check that raised."""
    chain = list(_causes(error))
    frame = next((model_frame for link in reversed(chain) if (model_frame := _model_frame(link)) is not None), None)
    text = "\n".join(f"{type(link).__name__}: {error_text(link)}" for link in chain)
    return CheckOutcome(
        check=check,
        verdict=Verdict.FAILED,
        error=type(error).__name__,
        reason=_reason(text, chain[-1]),
        operator=_operator(text),
        site=None if frame is None else f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}",
        source_line=None if frame is None else frame.line,
        remedy=_remedy(text, instead),
        seconds=seconds,
    )


def frame_site(frame: FrameType | None) -> tuple[str, str] | None:
    """The innermost frame of model code below the given one, as a place and the line itself."""
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if not _is_machinery(name):
            return f"{Path(name).name}:{line} in {frame.f_code.co_name}", linecache.getline(name, line).strip()
        frame = frame.f_back
    return None


def current_site() -> tuple[str, str] | None:
    """The line of model code that is running."""
    return frame_site(sys._getframe(1))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from, to the first of all."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or _handled_meanwhile(link)


def _handled_meanwhile(error: BaseException) -> BaseException | None:
    """The error that was being handled when this one was raised; None: one that only lingered in the thread.

    Whoever handles an error is the first frame of its traceback, and was then running below or above the new error.
    """
    context = error.__context__
    if context is None or context.__traceback__ is None or error.__traceback__ is None:
        return context
    frames = {id(frame) for frame, _ in traceback.walk_tb(error.__traceback__)}
    frames |= {id(frame) for frame, _ in traceback.walk_stack(error.__traceback__.tb_frame)}
    return context if id(context.__traceback__.tb_frame) in frames else None


def _model_frame(error: BaseException) -> traceback.FrameSummary | None:
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if not _is_machinery(frame.filename)), None)


def _is_machinery(filename: str) -> bool:
    """Torch, the exporters, the standard library and this package; its model folders are model code like any other."""
    if filename.startswith(_SITE_PACKAGES):
        return filename.removeprefix(_SITE_PACKAGES).split("/")[0] in ("torch", *_LIBRARIES)
    if filename.startswith(_PACKAGE):
        return not filename.startswith(_PACKAGE + "models/")
    return filename.startswith("<") or filename.startswith(_MACHINERY)


def _reason(text: str, root: BaseException) -> str:
    """What went wrong in one sentence, with the first line of the first error behind it."""
    message = next((line.strip() for line in error_text(root).splitlines() if line.strip()), type(root).__name__)[:300]
    cause = next((words for pattern, words in _REMEDIES if re.search(pattern, text)), None)
    return message if cause is None else f"{cause} ({message})"


def _operator(text: str) -> str | None:
    match = _OPERATOR.search(text)
    if match is None:
        return None
    return match[3] or f"{match[1]}.{match[2]}"


def _remedy(text: str, instead: tuple[str, ...]) -> str | None:
    if instead:
        return f"export instead: {', '.join(instead)}"
    if re.search(_VALUES, text):
        return "export the modules below it that depend on shapes alone, or a variant with static routing"
    if re.search(_GROUPED, text):
        return "ONNX has no grouped matmul: build the model with plain matmuls for its experts, or stay with the .pt2"
    return None


_LOGGERS = (
    "torch.onnx",
    "torch.export",
    "torch._export",
    "torch._dynamo",
    "torch._subclasses.fake_tensor",
    "onnxscript",
    "onnx_ir",
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No log, no warning, and no graph on stderr, where torch prints one before it refuses; as before afterwards."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    try:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), errors_dropped():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
