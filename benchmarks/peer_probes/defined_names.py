"""Which of a tool's own names speak of a subject: a look at its sources that says where an absence was looked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SUBJECTS = {
    "memory": r"memory|byte|footprint",
    "kv-cache": r"kv_?cache|past_key",
    "predicted-time": r"latency|roofline|ttft|inference_time",
    "serving": r"throughput|ttft|tpot|^serving",
    "picture": r"draw|graphviz|_dot$|svg|mermaid|plot",
    "backward": r"backward|back_?prop",
}


def names_about(sources: Path) -> dict[str, list[str]]:
    """Public functions, classes, methods and fields whose name matches, by subject."""
    files = [sources] if sources.is_file() else sorted(sources.rglob("*.py"))
    names = {name for file in files for name in _defined(ast.parse(file.read_text(encoding="utf-8")))}
    return {
        subject: sorted(name for name in names if re.search(pattern, name, re.IGNORECASE))
        for subject, pattern in SUBJECTS.items()
    }


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        else:
            continue
        if not name.startswith("_"):
            yield name
