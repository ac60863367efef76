"""No text of a report turns into markup in Markdown: proven by a parser that lets HTML pass, over every text field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import count
from typing import Any

import pytest
from markdown_it import MarkdownIt

from llm_perf_opt.core.graph_view import CollectiveGroup
from llm_perf_opt.core.report import LINE_STYLES, Listing, Report
from llm_perf_opt.formats.markdown_format import MarkdownReport
from tests.formats.made_reports import full_report

SCRIPT = "<script>alert(1)</script>"
HOSTILE = (
    SCRIPT,
    f"`{SCRIPT}`",
    f"``` {SCRIPT}",
    f"a\n\n{SCRIPT}",
    f"|{SCRIPT}|",
    f"\\{SCRIPT}",
    f"    {SCRIPT}",
    f"--> {SCRIPT}",
    f"\u2028{SCRIPT}",
    f"*{SCRIPT}_",
    "<img src=x onerror=alert(1)>",
    "<!-- " + SCRIPT,
    "[x](javascript:alert)",
    "[x]: javascript:alert",
    "![x](x)",
    "<javascript:alert>",
)
ACTING = {"html_block", "html_inline", "link_open", "image"}
PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")


def changed(value: Any, text: Callable[[], str]) -> Any:
    """The same record with another text in the place of each, but for words that are chosen from a list."""
    if isinstance(value, str):
        return value if isinstance(value, Enum) or value in LINE_STYLES else text()
    if isinstance(value, tuple):
        return tuple(changed(item, text) for item in value)
    if isinstance(value, Mapping):
        return {text(): changed(item, text) for item in value.values()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: changed(getattr(value, one.name), text) for one in fields(value)})
    return value


def every_field() -> Report:
    """A report with all that a report can hold, boxes that talk to other ranks and a listing among it."""
    report = full_report()
    graph = report.graph or next(chapter.graph for chapter in report.chapters if chapter.graph is not None)
    groups = (CollectiveGroup(kind="all-reduce", payload_bytes=8, ranks=2, count=1),)
    roots = tuple(replace(root, collectives=groups) for root in graph.roots)
    return replace(report, answer=("fits",), graph=replace(graph, roots=roots), listings=(Listing("log", "one\ntwo"),))


def acting(markdown: str) -> Iterator[str]:
    """Whatever a parser takes for HTML, a link or an image."""
    waiting = list(PARSER.parse(markdown))
    while waiting:
        token = waiting.pop()
        waiting += token.children or []
        if token.type in ACTING:
            yield f"{token.type}: {token.content[:80]}"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_of_a_report_turns_into_markup(hostile: str) -> None:
    number = count()
    report = changed(every_field(), lambda: f"{hostile} {next(number)}")
    markdown = MarkdownReport().render(report)
    assert next(number) > 100
    assert list(acting(markdown)) == []
    assert "<script" not in PARSER.render(markdown)


def test_the_parser_finds_what_would_act() -> None:
    for raw in (f"| a |\n| -- |\n| {SCRIPT} |", "[x](y)", f"text\n\n{SCRIPT}", "- [x]: y\n\n[x]"):
        assert list(acting(raw)), raw
