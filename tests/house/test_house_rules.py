"""The style, turned into failing tests: sizes, no broad except, nothing printed outside the command line."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import llm_perf_opt

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILES = sorted(
    file
    for room in ("src", "tests", "benchmarks", "scripts")
    if (ROOT / room).is_dir()
    for file in (ROOT / room).rglob("*.py")
)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def lines(file: Path) -> Iterator[tuple[int, str]]:
    return enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes(file) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_a_file_holds_one_idea() -> None:
    long = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    most = {"src": 600, "benchmarks": 600, "scripts": 600}  # one idea in one place, not in four files that import it
    assert {name: lines for name, lines in long.items() if lines > most.get(name.partition("/")[0], 400)} == {}


def test_few_files_are_fragments() -> None:
    """A file of a quarter of an idea costs its reader three more; `__init__` only opens a room."""
    sizes = [len(file.read_text("utf-8").splitlines()) for file in SOURCES if file.name != "__init__.py"]
    assert sum(size < 40 for size in sizes) <= 25
    assert 100 <= median(sizes) <= 220


def imported_modules(file: Path) -> Iterator[str]:
    """Modules of the package that `file` imports: when it is loaded, inside functions, and for type checkers."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def circles(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left when all are taken away that need nothing which is left: who imports itself by a detour."""
    while free := {name for name, needed in needs.items() if not needed & needs.keys()}:
        needs = {name: needed for name, needed in needs.items() if name not in free}
    return needs


def test_no_module_imports_itself_by_a_detour() -> None:
    """An import that waits in a function, or is there for types alone, is one that a reader has to follow as well.

    A room's `__init__` may list what is in the room; otherwise the imports of the house form no cycle.
    """
    modules = {
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts): file
        for file in SOURCES
        if file.name != "__init__.py"
    }
    assert circles({name: modules.keys() & imported_modules(file) for name, file in modules.items()}) == {}


def test_a_circle_is_found_in_functions_and_behind_type_checking(tmp_path: Path) -> None:
    for name, text in {
        "first": "if TYPE_CHECKING:\n    from llm_perf_opt import second\n",
        "second": "def ask():\n    import llm_perf_opt.third\n",
        "third": "from llm_perf_opt.first import anything\n",
        "fourth": "from llm_perf_opt.first import anything\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    modules = {f"llm_perf_opt.{file.stem}": file for file in tmp_path.iterdir()}
    needs = {name: modules.keys() & imported_modules(file) for name, file in modules.items()}
    assert needs["llm_perf_opt.first"] == {"llm_perf_opt.second"}
    assert {"llm_perf_opt.first", "llm_perf_opt.second", "llm_perf_opt.third"} <= circles(needs).keys()


def test_the_import_rule_holds_for_types_and_inside_functions() -> None:
    """import-linter reads every import unless it is told to pass over those for type checkers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    assert not settings.get("exclude_type_checking_imports", False)


def test_no_room_has_the_name_of_a_question() -> None:
    """Python binds a package that was imported to its name in the front door: `lpo.cost(...)` would call a package."""
    rooms = {file.parent.name for file in (ROOT / "src" / "llm_perf_opt").glob("*/__init__.py")}
    assert rooms & {*llm_perf_opt.__all__} == set()


def test_no_function_is_longer_than_a_page() -> None:
    assert [f"{name_of(file)}:{f.lineno} {f.name}" for file in FILES for f in functions(file) if lines_of(f) > 60] == []


def test_the_usual_function_is_short() -> None:
    assert median(lines_of(function) for file in SOURCES for function in functions(file)) < 15


def test_an_exemption_from_the_linter_carries_its_reason() -> None:
    """Above all a broad `except` (BLE001), which may only stand where nothing can be swallowed, and says why."""
    bare = re.compile(r"# noqa(?!: [A-Z]+\d+(, ?[A-Z]+\d+)* +\S+)")
    found = [f"{name_of(file)}:{number}" for file in FILES for number, line in lines(file) if bare.search(line)]
    assert [place for place in found if not place.startswith(name_of(Path(__file__)))] == []


def test_no_file_is_called_after_nothing() -> None:
    empty_words = {"utils", "util", "common", "helpers", "misc"}
    assert [name_of(file) for file in FILES if empty_words & {file.stem, file.parent.name}] == []


def test_a_class_name_means_one_thing() -> None:
    """Of two classes of one name a reader opens the wrong one, and an import does not say which is meant."""
    homes: dict[str, list[str]] = {}
    for file in SOURCES:
        for node in nodes(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(f"{name_of(file)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_a_skip_gives_its_reason() -> None:
    """A `skip`, `skipif` or `xfail` without a word hides a test from the reader."""
    marks = {"pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}
    silent = [
        f"{name_of(file)}:{node.lineno}"
        for file in FILES
        for node in nodes(file)
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in marks
            and "reason" not in {k.arg for k in node.keywords}
        )
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.skip" and not (node.args or node.keywords))
    ]
    assert silent == []


TEXTS = {".py", ".md", ".toml", ".json", ".ipynb", ".sh", ".yml", ".yaml", ".svg", ".html", ".j2"}
ROOMS = ("src", "tests", "benchmarks", "scripts", "docs", "examples")


def test_the_house_speaks_of_itself_alone() -> None:
    """No path of the machine it was written on, and no file outside the repository, is part of the project."""
    published = [file for room in ROOMS for file in (ROOT / room).rglob("*")]
    texts = [file for file in (*published, *ROOT.iterdir()) if file.suffix in TEXTS and file.is_file()]
    places = re.compile(r"(?<![\w.])/(?:work|opt|root|home|tmp)\b|\.\./" + "shared")
    assert [
        f"{name_of(file)}: {found[0]}"
        for file in (*texts, ROOT / ".ci" / "run")
        if (found := places.search(file.read_text(encoding="utf-8")))
    ] == []
