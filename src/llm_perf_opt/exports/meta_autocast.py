"""Autocast for a device that it does not know: model code that switches it off must run on meta tensors too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def autocast_knows_meta() -> Iterator[None]:
    """Regions of `torch.autocast` for the meta device are taken as those of the CPU; as before afterwards."""
    original = torch.autocast.__init__

    def initialise(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = initialise  # type: ignore[method-assign]  # a patch, taken off below
    try:
        yield
    finally:
        torch.autocast.__init__ = original  # type: ignore[method-assign]  # what it was
