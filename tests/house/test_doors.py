"""A reader or a writer without a campaign fails here: the source is searched, and the lists must say the same."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from scripts.campaigns import doors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "llm_perf_opt"
CAMPAIGNS = ROOT / "scripts" / "campaigns"
READ_METHODS = {"read_text", "read_bytes", "cat_file", "from_pretrained", "hf_hub_download"}
READ_CALLS = {
    *("open", "os.open", "os.getenv", "json.load", "json.loads", "tomllib.load", "tomllib.loads", "sqlite3.connect"),
    *("duckdb.connect", "safe_open", "Image.open", "torch.load", "torch.export.load", "np.load", "pickle.load"),
    *("input", "yaml.load", "yaml.safe_load", "pq.read_table", "pq.ParquetFile"),
}
READ_NAMES = {"environ", "stdin"}  # of os and of sys
WRITE_METHODS = {"write_text", "write_bytes", "pipe_file"}
WRITE_CALLS = {"write_whole", "write_together", "write_result", "move_whole", "np.save", "torch.save"}
OWN_WRITERS = {"run_folder.write_text", "folder.write_text", "self.write_text"}  # of a run folder, which is one itself


def places(source: str, acts: Callable[[ast.AST], bool]) -> Iterator[str]:
    """The functions, with the classes around them, in which such a node stands."""

    def walk(node: ast.AST, around: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            around = (*around, node.name)
        if acts(node):
            yield ".".join(around) or "<module>"
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(ast.parse(source), ())


def name_of(node: ast.expr) -> str:
    """`os.path.join` of such an expression; an empty text for anything but names with points between them."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _mode(call: ast.Call, place: int) -> str:
    """Of an `open`: its second argument, or the first of a method; "r" where none is given."""
    given = [one.value for one in call.keywords if one.arg == "mode"] or call.args[place : place + 1]
    return str(given[0].value) if given and isinstance(given[0], ast.Constant) else "r"


def _opened(node: ast.Call) -> str | None:
    """The mode of a file that is opened by Python; None for any other call."""
    called = name_of(node.func)
    if called == "open":
        return _mode(node, 1)
    is_path = isinstance(node.func, ast.Attribute) and node.func.attr == "open"
    if not is_path or called in READ_CALLS | {"webbrowser.open", "os.fdopen"}:
        return None
    is_store = bool(node.args) and not isinstance(node.args[0], ast.Constant)  # filesystem.open(path, mode)
    return _mode(node, 1 if is_store else 0)


def is_read(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in READ_NAMES and name_of(node.value) in ("os", "sys")
    if not isinstance(node, ast.Call):
        return False
    called, mode = name_of(node.func), _opened(node)
    if called == "os.open" or any(name_of(one) == "os.devnull" for one in node.args):
        return False
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr in READ_METHODS
    return is_method or called in READ_CALLS or (mode is not None and mode.startswith("r"))


def is_write(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called, mode = name_of(node.func), _opened(node)
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr in WRITE_METHODS and called not in OWN_WRITERS
    return is_method or called in WRITE_CALLS or (mode is not None and mode[:1] in ("w", "x", "a"))


@cache
def sources() -> dict[str, str]:
    return {file.relative_to(PACKAGE).as_posix(): file.read_text("utf-8") for file in sorted(PACKAGE.rglob("*.py"))}


def found(acts: Callable[[ast.AST], bool]) -> set[str]:
    return {f"{name}::{place}" for name, text in sources().items() for place in places(text, acts)}


def unregistered(seen: set[str], table: doors.Doors) -> set[str]:
    return {place for place in seen if not any(fnmatchcase(place, known) for known in table)}


def stale(seen: set[str], table: doors.Doors) -> set[str]:
    return {known for known in table if not any(fnmatchcase(place, known) for place in seen)}


def file_kinds() -> set[str]:
    """The name of every `FileKind` in the source."""
    calls = (node for text in sources().values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    named = (
        one.value for call in calls if name_of(call.func) == "FileKind" for one in call.keywords if one.arg == "name"
    )
    return {ast.literal_eval(name) for name in named}


def attacked() -> set[str]:
    """The kinds of `hostile_files`, without their variants: names that functions and tables give to a kind."""
    bodies = [
        node
        for file in CAMPAIGNS.glob("*kinds.py")
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.Assign | ast.AnnAssign)
    ]
    names: list[ast.expr | None] = []
    for node in (inner for body in bodies for inner in ast.walk(body)):
        if isinstance(node, ast.Call):
            names += [*node.args[:1], *(word.value for word in node.keywords if word.arg == "name")]
        elif isinstance(node, ast.Dict):
            names += node.keys
    first = [name.values[0] if isinstance(name, ast.JoinedStr) else name for name in names]
    texts = [one.value for one in first if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return {text.partition(",")[0] for text in texts}


def test_every_kind_of_file_leads_to_a_campaign() -> None:
    assert file_kinds() == doors.FILES.keys()


def test_every_other_read_is_registered() -> None:
    seen = found(is_read)
    assert unregistered(seen, doors.READS) == set()
    assert stale(seen, doors.READS) == set()


def test_every_writer_is_registered() -> None:
    seen = found(is_write)
    assert unregistered(seen, doors.WRITES) == set()
    assert stale(seen, doors.WRITES) == set()


def test_every_line_is_read_by_a_function_that_is_there() -> None:
    for place in doors.LINES:
        name, _, function = place.partition("::")
        assert f"def {function}(" in sources()[name], place


def test_a_registered_reader_has_a_campaign_or_a_reason() -> None:
    known = attacked()
    for table in (doors.FILES, doors.LINES, doors.READS):
        for place, campaigns in table.items():
            if isinstance(campaigns, str):
                assert len(campaigns.split()) > 3, place
            else:
                assert {one.partition(",")[0] for one in campaigns} <= known, place


def keys_of(file: str, name: str) -> set[str]:
    """The keys of the one dictionary of that name at the top of a campaign's file."""
    tree = ast.parse((CAMPAIGNS / file).read_text("utf-8"))
    assigned = {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    table = assigned[name]
    assert isinstance(table, ast.Dict)
    return {ast.literal_eval(key) for key in table.keys if key is not None}


def test_a_registered_writer_is_broken_a_thousand_times_by_itself() -> None:
    writers, verbs = keys_of("writers.py", "WRITERS"), keys_of("verbs.py", "VERBS")
    led_to = [set(campaigns) for campaigns in doors.WRITES.values() if not isinstance(campaigns, str)]
    assert set().union(*led_to) <= writers | verbs
    assert all(campaigns & writers for campaigns in led_to)
    assert set().union(*led_to) >= writers, "a campaign of something that nobody writes"


@pytest.mark.parametrize(
    "source",
    [
        "def f(p): return p.read_text()",
        "def f(p): return open(p).read()",
        "def f(p): return p.open('rb')",
        "def f(p): return json.loads(p)",
        "def f(): return os.environ['HOME']",
        "class C:\n    def f(self): return Image.open(self.p)",
        "def f(fs, p): return fs.open(p, 'rb')",
        "def f(fs, p): return fs.cat_file(p)",
    ],
)
def test_an_unregistered_read_is_found(source: str) -> None:
    assert list(places(source, is_read)) == ["C.f" if "class" in source else "f"]
    assert unregistered({"core/new.py::f"}, doors.READS) == {"core/new.py::f"}


@pytest.mark.parametrize(
    "source",
    [
        "def f(p): p.write_bytes(b'')",
        "def f(p): p.open('xb')",
        "def f(p): write_whole(p, [])",
        "def f(p): open(p, 'w')",
        "def f(fs, p): fs.pipe_file(p, b'')",
    ],
)
def test_an_unregistered_write_is_found(source: str) -> None:
    assert list(places(source, is_write)) == ["f"]
    assert list(places("def f(p): p.open()", is_write)) == []
