"""The page on the Python API shows code that works and names what is exported."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import llm_perf_opt
from llm_perf_opt import AnalysisConfig, StageAnalysisResult, StaticAnalyzer

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python-api.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_what_the_page_imports_is_exported() -> None:
    imported = {
        name.name
        for block in BLOCKS
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module == "llm_perf_opt"
        for name in node.names
    }
    assert len(imported) >= 6
    assert imported <= set(llm_perf_opt.__all__)


def test_the_formulas_on_the_page_give_the_released_figures(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in BLOCKS if "decode_passes" in block]
    exec(compile(block, "python-api.md", "exec"), {})
    assert capsys.readouterr().out.split() == ["1205024256", str(8192 * 61_440)]


@pytest.mark.parametrize("name", [field.name for field in fields(AnalysisConfig)])
def test_every_field_of_the_configuration_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_method_and_figure_is_named() -> None:
    public = {name: value for name, value in vars(StaticAnalyzer).items() if not name.startswith(("_", "m_"))}
    methods = [name for name, value in public.items() if callable(value)]
    assert [name for name in methods if f"`{name}(" not in PAGE] == []
    assert [name for name in public if name not in methods and f"`analyzer.{name}`" not in PAGE] == []
    figures = [field.name for field in fields(StageAnalysisResult) if field.name not in ("stage", "phase")]
    assert [name for name in figures if f"`{name}`" not in PAGE] == []
