"""Versions of the libraries a trace depends on, for its header."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("torch", "transformers", "numpy")


def library_versions() -> dict[str, str]:
    """Installed versions; a library that is absent is left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
