"""What SECURITY.md promises of the source: no pickles, no shell, no requests, no program but those it names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import smoke_verbs

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "llm_perf_opt"
REQUESTS = {"asyncio", "ftplib", "http", "httpx", "requests", "smtplib", "socket", "ssl", "urllib"}
PICKLES = {"dill", "marshal", "pickle", "shelve"}
CALLS = {"eval", "exec", "compile", "torch.load", "torch.hub.load", "joblib.load", "np.load", "numpy.load"}
PROGRAMS = {"subprocess", "os.system", "os.popen", "pty", "webbrowser"}
STARTERS = {  # file -> what SECURITY.md names for it
    "measurements/timed/nsight.py": ("`nsys`", "`ncu`"),
    "harness/tracers/torchlens_tracer.py": ("`dot`",),
    "cli/report_command.py": ("`report --open`",),
    "serving/engine_process/environment.py": ("the Python of an engine's environment",),
    "serving/engine_process/process.py": ("the Python of an engine's environment",),
    "serving/engine_process/make_environment.py": ("`make_environment`",),
    "sweeps/studies/bounded_sql.py": ("`ask --sql`",),
}


def findings(source: str) -> Iterator[tuple[str, str]]:
    """Kind and name of every import and call that a promise is about."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in (name.split(".")[0] for name in names):
                if name in REQUESTS | PICKLES:
                    yield "import", name
                if name in PROGRAMS:
                    yield "program", name
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS:
                yield "call", called
            if called in PROGRAMS or any(keyword.arg == "shell" for keyword in node.keywords):
                yield "call", f"{called} of a shell"


def test_the_source_opens_no_pickle_and_makes_no_request() -> None:
    found = {
        (file.relative_to(PACKAGE).as_posix(), what)
        for file in PACKAGE.rglob("*.py")
        for kind, what in findings(file.read_text("utf-8"))
        if kind != "program"
    }
    assert found == set()


def test_every_program_that_is_started_is_named() -> None:
    starting = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if any(kind == "program" for kind, _ in findings(file.read_text("utf-8")))
    }
    assert starting == STARTERS.keys()
    (row,) = re.findall(r"^\| programs on the `PATH` \|.*$", (ROOT / "SECURITY.md").read_text("utf-8"), re.MULTILINE)
    assert [name for names in STARTERS.values() for name in names if name not in row] == []


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import pickle", "import"),
        ("from urllib.request import urlopen", "import"),
        ("import torch\ntorch.load('x')", "call"),
        ("eval('1')", "call"),
        ("run('ls', shell=True)", "call"),
        ("import os\nos.system('ls')", "call"),
        ("import subprocess", "program"),
    ],
)
def test_a_breach_is_found(source: str, kind: str) -> None:
    assert [found for found, _ in findings(source)] == [kind]
    assert list(findings("import torch\nmodel.eval()\ntorch.compile(model)\nre.compile('x')")) == []


@pytest.mark.slow
def test_a_folder_of_transformers_is_traced_without_a_request(tmp_path: Path) -> None:
    """Also where the user has not set HF_HUB_OFFLINE. The stand-in ends the process: nobody can catch that."""
    smoke_verbs.prepare(tmp_path)
    program = (
        "import os, socket, sys\n"
        "def refuse(*given, **options): os.write(2, b'a request\\n'); os._exit(9)\n"
        "socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse\n"
        "sys.argv = ['llm-perf-opt', *sys.argv[1:]]\n"
        "from llm_perf_opt.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "trace", "llama", "--prompt-tokens", "4", "--trust-remote-code"]
    world = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    ran = subprocess.run(command, cwd=tmp_path, env=world, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-1000:]
    assert re.search(r"(?m)^decode ", ran.stdout)


def test_one_file_asks_the_hub_and_the_page_names_every_file_that_it_asks_for() -> None:
    from llm_perf_opt.models.huggingface.hub import CONFIGURATION

    asking = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"hf_hub_download|snapshot_download|HfApi", file.read_text("utf-8"))
    }
    assert asking == {"models/huggingface/hub.py"}
    page = (ROOT / "docs" / "reference" / "names.md").read_text("utf-8")
    assert [name for name in CONFIGURATION if f"`{name}`" not in page] == []
    assert "docs/reference/names.md" in (ROOT / "SECURITY.md").read_text("utf-8")


LISTENERS = {"socketserver", "http.server", "xmlrpc.server", "wsgiref", "uvicorn", "flask", "aiohttp"}


def test_no_port_is_opened_by_the_source() -> None:
    """Neither a server of a library nor a socket of our own: sockets are not even imported."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not LISTENERS & set(names), file
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            assert not (is_call and node.func.attr in ("listen", "bind_port", "create_server")), file  # type: ignore[attr-defined]


def test_ray_is_started_where_it_is_asked_for_alone_and_without_its_dashboard() -> None:
    """One file imports it; a Ray of this machine is local to it, and a cluster is joined, not started."""
    from llm_perf_opt.sweeps.studies import ray_engine

    importing = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(import ray|from ray)\b", file.read_text("utf-8"), re.MULTILINE)
    }
    assert importing == {"sweeps/studies/ray_engine.py"}
    asked: list[dict[str, object]] = []

    class Ray:
        @staticmethod
        def init(**options: object) -> None:
            asked.append(options)

    ray_engine._connect(Ray, None, 2)
    ray_engine._connect(Ray, "ray://head:10001", None)
    assert (asked[0]["address"], asked[0]["include_dashboard"]) == ("local", False)
    assert asked[1]["address"] == "ray://head:10001"
    assert "include_dashboard" not in asked[1]


def test_the_threat_model_names_tests_that_are_there() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Threat model")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| who")]
    assert len(rows) == 8
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert [name for name in named if not (ROOT / name).is_file()] == []
