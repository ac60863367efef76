"""The guides are followed step by step: the file is written where they say, registered as they say, and used."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from llm_perf_opt.advice import changes
from llm_perf_opt.cli import main
from llm_perf_opt.core import plugins
from llm_perf_opt.core.callgraph import read_callgraph
from llm_perf_opt.core.plugins import Registry

DOCS = Path(__file__).parents[2] / "docs" / "contributing"
MADE = re.compile(r"```(?:python|toml)\n(\s*# (\S+\.(?:py|toml))\n.*?)```", re.DOTALL)
REGISTERED = re.compile(r'\*\*Register it\*\* in `(\w+)`.*?```python\n\s*"([\w-]+)": "([\w.]+):(\w+)",', re.DOTALL)


def files_of(guide: str) -> dict[str, str]:
    """Every file that the guide tells to write."""
    text = (DOCS / f"{guide}.md").read_text("utf-8")
    return {path: textwrap.dedent(body) for body, path in MADE.findall(text)}


@pytest.fixture
def followed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Steps 1 and 2 of a guide: the module exists under its name, and the registry has the line."""
    guide: str = request.param
    ((path, body),) = files_of(guide).items()
    registry, name, module, attribute = REGISTERED.search((DOCS / f"{guide}.md").read_text("utf-8")).groups()
    assert path == f"src/{module.replace('.', '/')}.py"
    file = tmp_path / Path(path).name
    file.write_text(body)
    spec = importlib.util.spec_from_file_location(module, file)
    made: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, made)
    spec.loader.exec_module(made)
    table: Registry[object] = getattr(changes if registry == "CHANGES" else plugins, registry)
    monkeypatch.setitem(table._entries, name, f"{module}:{attribute}")
    yield name


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.mark.parametrize("followed", ["add-a-model"], indirect=True)
def test_a_model_is_added(
    followed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "trace", followed, "--prompt-tokens", 10, "--out", tmp_path / "run") == 0
    graph = read_callgraph(tmp_path / "run" / "prefill.callgraph.json")
    assert graph.call_counts[""] == 1
    assert "head" in capsys.readouterr().out
    assert run(monkeypatch, "trace", followed, "--image", "10x10") == 2


@pytest.mark.parametrize("followed", ["add-a-tracer"], indirect=True)
def test_a_tracer_is_added(followed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(plugins.MODELS._entries, "small", "tests.house.small_model:SmallAdapter")
    assert run(monkeypatch, "trace", "small", "--tracer", followed, "--out", tmp_path) == 0
    graph = read_callgraph(tmp_path / "prefill.callgraph.json")
    assert graph.problems() == []
    assert graph.call_counts == {"": 1, "0": 1, "1": 1}


@pytest.mark.parametrize("followed", ["add-a-source"], indirect=True)
def test_a_source_is_added(followed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(plugins.MODELS._entries, "small", "tests.house.small_model:SmallAdapter")
    assert run(monkeypatch, "cost", "small", "--sources", f"counted,{followed}", "--strict") == 0
    assert followed in capsys.readouterr().out


@pytest.mark.parametrize("followed", ["add-a-report-format"], indirect=True)
def test_a_report_format_is_added(
    followed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(plugins.MODELS._entries, "small", "tests.house.small_model:SmallAdapter")
    assert run(monkeypatch, "trace", "small", "--format", followed) == 0
    assert "Cost by stage: 1 rows" in capsys.readouterr().out


@pytest.mark.parametrize("followed", ["add-a-change"], indirect=True)
def test_a_change_is_added(followed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "advise", "deepseek-ocr-tiny", "--device", "h100-sxm", "--verbose") == 0
    assert changes.CHANGES.get(followed).title in capsys.readouterr().out


def test_a_device_is_added(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (name, body), (_, links) = files_of("add-a-device").items()
    (tmp_path / name).write_text(body)
    monkeypatch.setitem(plugins.MODELS._entries, "small", "tests.house.small_model:SmallAdapter")
    assert run(monkeypatch, "trace", "small", "--device", "my-card", "--devices", tmp_path / name) == 0
    assert "My Card 24GB" in capsys.readouterr().out
    (tmp_path / name).write_text(f"{body}\n{links}")
    assert run(monkeypatch, "devices", "cluster", "2x8 my-card", "--devices", tmp_path / name) == 0
    assert "my-fabric" in capsys.readouterr().out
