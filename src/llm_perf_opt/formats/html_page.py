"""What every page has: its own script in one piece, and the policy that says which text may act."""

from __future__ import annotations

import base64
import hashlib
import re
from graphlib import TopologicalSorter
from importlib.resources import files


def hash_source(text: str) -> str:
    """How a content security policy names the one text that it allows."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<module>[\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function|class) )", re.MULTILINE)


def page_file(name: str) -> str:
    """The text of a file in `reports/page/`."""
    return files("llm_perf_opt.formats").joinpath("page", name).read_text(encoding="utf-8")


def page_modules() -> dict[str, str]:
    """Name -> text of every module, each after those that it imports."""
    folder = files("llm_perf_opt.formats").joinpath("page")
    texts = {entry.name: page_file(entry.name) for entry in folder.iterdir() if entry.name.endswith(".js")}
    needs = {name: sorted(_IMPORT.findall(text)) for name, text in sorted(texts.items())}
    return {name: texts[name] for name in TopologicalSorter(needs).static_order()}


def page_script() -> str:
    """All modules as one strict script in a scope of its own."""
    bodies = [_EXPORT.sub("", _IMPORT.sub("", text)) for text in page_modules().values()]
    return "\n".join(['"use strict";', "{", *bodies, "}"])
