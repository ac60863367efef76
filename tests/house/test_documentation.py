"""The documentation is checked like code: names, verbs, options and the commands it shows."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from llm_perf_opt.cli.app import app
from llm_perf_opt.core.plugins import DRAWINGS, FOLDERS, MODELS, REPORTERS, SOURCES, TRACERS
from llm_perf_opt.costs.reconcile import CAUSES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
COMMAND = typer.main.get_command(app)
VERBS = COMMAND.commands  # type: ignore[attr-defined]  # the root command is a group


def shown_commands() -> list[str]:
    """Every `llm-perf-opt ...` line in a shell block of a page, comments and pipes cut off, placeholders left out."""
    blocks = [block for page in PAGES for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    lines = [line.split("#")[0].split("|")[0].strip() for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("llm-perf-opt ") and not re.search(r"\[|[A-Z]{3}", line)})


@pytest.mark.parametrize(
    "registry", [MODELS, FOLDERS, TRACERS, SOURCES, REPORTERS, DRAWINGS], ids=lambda registry: registry.kind
)
def test_every_plugin_is_documented(registry: object) -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert [name for name in registry.names() if f"`{name}`" not in text] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_a_page_that_names_every_option(verb: str) -> None:
    page = (ROOT / "docs" / "reference" / "cli" / f"{verb}.md").read_text("utf-8")
    options = [name for parameter in VERBS[verb].params for name in parameter.opts if name.startswith("--")]
    assert [name for name in options if name not in page] == []


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_shown_can_be_parsed(line: str) -> None:
    _, verb, *words = shlex.split(line)
    VERBS[verb].make_context(verb, words, resilient_parsing=False)


def test_the_pages_show_commands_at_all() -> None:
    assert len(shown_commands()) >= 8


SCHEMAS = {
    "reference/callgraph-file.md": "core/callgraph/schema.json",
    "reference/static-compute-file.md": "costs/static_compute.schema.json",
    "reference/function-file.md": "sweeps/function/files/function.schema.json",
}


@pytest.mark.parametrize("page_name", SCHEMAS)
def test_the_page_on_a_file_names_every_key_of_its_schema(page_name: str) -> None:
    page = (ROOT / "docs" / page_name).read_text("utf-8")
    schema = json.loads((ROOT / "src" / "llm_perf_opt" / SCHEMAS[page_name]).read_text("utf-8"))
    assert [key for key in schema["properties"] if f"`{key}`" not in page] == []


def test_the_page_on_costs_names_every_cause_of_the_ledger() -> None:
    page = (ROOT / "docs" / "start" / "what-does-it-cost.md").read_text("utf-8")
    assert [cause for cause in CAUSES if f"`{cause}`" not in page] == []


OLDER_NAMES = re.findall(
    r"^\| (`.*?`) \| (`.*?`) \|", (ROOT / "docs" / "reference" / "older-names.md").read_text("utf-8"), re.M
)
KEYS = json.loads((ROOT / "src" / "llm_perf_opt" / SCHEMAS["reference/callgraph-file.md"]).read_text("utf-8"))[
    "properties"
]


def is_python(name: str) -> bool:
    """Whether the dotted name leads to a module, a class, or something inside one."""
    parts = name.split(".")
    found: object = None
    for depth, part in enumerate(parts):
        try:
            found = importlib.import_module(".".join(parts[: depth + 1]))
        except ImportError:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
    return True


def leads_somewhere(now: str) -> bool:
    if now.startswith("llm-perf-opt "):
        _, verb, *words = shlex.split(now)
        VERBS[verb].make_context(verb, words, resilient_parsing=False)
        return True
    if now.startswith("llm_perf_opt"):
        return is_python(now)
    return now in KEYS or (ROOT / now).is_file() or (ROOT / "docs" / now).is_file()


@pytest.mark.parametrize(("older", "now"), OLDER_NAMES)
def test_every_older_name_leads_to_something_that_exists(older: str, now: str) -> None:
    assert [name for name in re.findall(r"`([^`]+)`", now) if not leads_somewhere(name)] == []


def test_what_is_gone_leads_nowhere() -> None:
    assert not leads_somewhere("llm_perf_opt.runners.nothing")
    assert not leads_somewhere("llm_perf_opt.core.callgraph.CallGraph.nothing")
    assert not leads_somewhere("nothing.md")


def test_the_page_of_older_names_has_them_all() -> None:
    assert len(OLDER_NAMES) == 46
