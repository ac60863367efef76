"""How a page says which of its own texts may act."""

from __future__ import annotations

import base64
import hashlib


def hash_source(text: str) -> str:
    """How a content security policy names the one text that it allows."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
