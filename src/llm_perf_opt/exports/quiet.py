"""Exporters tell at length what their result says anyway; what they log, warn and print is kept down meanwhile."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

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
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
