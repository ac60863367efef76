"""Why a test may be skipped in a gate: a short list. Any other reason fails it there; elsewhere a skip is a skip."""

from __future__ import annotations

import re

ALLOWED = {
    "no GPU": r"CUDA device|needs a GPU",
    "no released code": r"LLM_PERF_OPT_DSOCR_DIR",
    "no recordings of others": r"LLM_PERF_OPT_GPU_TRACES_DIR",
    "no object store": r"\bs3fs\b|\bmoto\b",
    "no trainer": r"is not installed: its recorded settings are compared",
}
BUT_IN_THE_LONG_GATE = {
    "no engine: the long gate makes environments for them": r"no (vLLM|SGLang)|environment with (vLLM|SGLang)"
}


def reasons(*, is_long: bool) -> dict[str, str]:
    """Name -> pattern of the reasons that count."""
    return ALLOWED if is_long else {**ALLOWED, **BUT_IN_THE_LONG_GATE}


def is_allowed(reason: str, *, is_long: bool = False) -> bool:
    return any(re.search(pattern, reason) for pattern in reasons(is_long=is_long).values())
