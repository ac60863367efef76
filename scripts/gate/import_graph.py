"""Who imports whom, read from the sources: which files a change can reach, and over how many imports.

A name in quotes that is the path of a module counts as an import too, since plug-ins are found by such names. A data
file counts as imported by the modules of the nearest folder above it that has some, a page by the scripts that run
what stands on pages.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

ROOTS = ("src/llm_perf_opt", "tests", "scripts", "benchmarks")
_MODULE_NAME = re.compile(r"(?:llm_perf_opt|tests|scripts|benchmarks)(?:\.\w+)+")
_PAGE_READERS = ("scripts/cli_pages.py", "scripts/jobs_page.py", "scripts/page_commands.py", "scripts/page_python.py")
_FRONT_DOOR = "src/llm_perf_opt/__init__.py"  # names everything and loads it on demand: who imports it imports `api`


class ImportGraph:
    """The files of a tree and their imports, as paths relative to its root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = sorted(
            str(file.relative_to(root)) for place in ROOTS for file in (root / place).rglob("*.py") if file.is_file()
        )
        self._file_of = {module_of(file): file for file in self.files}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """File -> the files that import it."""
        files_of: dict[str, set[str]] = defaultdict(set)
        for file in self.files:
            for imported in self.imports_of(file):
                files_of[imported].add(file)
        return files_of

    def imports_of(self, file: str) -> set[str]:
        """The files of the tree that this one imports, wherever in it the import stands."""
        tree = ast.parse((self.root / file).read_text("utf-8"), file)
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                names.update(_MODULE_NAME.findall(node.value))
        files = {self._file_of[name] for name in names if name in self._file_of}
        if "llm_perf_opt" in names and file != _FRONT_DOOR:
            files.update(other for other in self.files if other.startswith("src/llm_perf_opt/api/"))
        return files - {file, _FRONT_DOOR}

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """File -> the least number of imports between it and something that changed; 0 is the change itself."""
        reached = dict.fromkeys(self._starts(changed), 0)
        waiting = deque(reached)
        while waiting:
            file = waiting.popleft()
            for importer in self.importers.get(file, ()):
                if importer not in reached:
                    reached[importer] = reached[file] + 1
                    waiting.append(importer)
        return reached

    def _starts(self, changed: Iterable[str]) -> set[str]:
        known = set(self.files)
        starts: set[str] = set()
        for name in changed:
            if name in known:
                starts.add(name)
            elif name.endswith(".md"):
                starts.update(known.intersection(_PAGE_READERS))
            elif name.startswith(ROOTS):  # a data file, or a module that is gone
                above = ([file for file in self.files if Path(file).parent == place] for place in Path(name).parents)
                starts.update(next(filter(None, above), []))
        return starts


def module_of(file: str) -> str:
    """`src/llm_perf_opt/api/trace.py` -> `llm_perf_opt.api.trace`; a package is named by its folder."""
    parts = Path(file).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
