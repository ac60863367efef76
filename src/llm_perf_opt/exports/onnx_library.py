"""The optional ONNX packages, asked for by name so that a missing one is an outcome with a remedy."""

from __future__ import annotations

import importlib
from types import ModuleType

from llm_perf_opt.export_outcome import Check, Outcome, Verdict

_NEEDED = {Check.ONNX: ("onnx", "onnxscript"), Check.PARITY: ("onnx", "onnxscript", "onnxruntime")}


def missing_packages(check: Check) -> Outcome | None:
    """The outcome of a check whose packages are not installed; None if all are."""
    for name in _NEEDED[check]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return Outcome(
                check=check,
                verdict=Verdict.SKIPPED,
                told=f"{name} is not installed",
                error=type(error).__name__,
                remedy="pip install 'llm-perf-opt[onnx]'",
            )
    return None


def onnx_package() -> ModuleType:
    """The `onnx` package; call `missing_packages` first."""
    return importlib.import_module("onnx")


def onnxruntime_package() -> ModuleType:
    """The `onnxruntime` package; call `missing_packages` first."""
    return importlib.import_module("onnxruntime")
