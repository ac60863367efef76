"""`llm-perf-opt doctor`: is everything here that a trace needs, and how to get what is not."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata

import typer

from llm_perf_opt import __version__
from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, show
from llm_perf_opt.core.report import Column, Level, Note, Report, Table

TESTED_TORCH = "2.13"  # docs/decisions/torch-pin.md; the same bound stands in pyproject.toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A distribution, what it is needed for, and the command that brings it; `extra` is None where all need it."""

    distribution: str
    purpose: str
    extra: str | None = None

    @property
    def pip_command(self) -> str:
        """How to install it."""
        wanted = f"torch=={TESTED_TORCH}.*" if self.distribution == "torch" else self.distribution
        return f"pip install '{wanted if self.extra is None else f'llm-perf-opt[{self.extra}]'}'"


NEEDS = (
    Need(distribution="torch", purpose="running models"),
    Need(distribution="numpy", purpose="models that call .numpy()"),
    Need(distribution="jinja2", purpose="the graph page"),
    Need(distribution="pillow", purpose="--image FILE"),
    Need(distribution="typer", purpose="this command"),
    Need(distribution="fvcore", purpose="cost --sources fvcore", extra="fvcore"),
    Need(distribution="transformers", purpose="tracing a Hugging Face folder", extra="hf"),
    Need(distribution="onnx", purpose="export --check onnx", extra="onnx"),
    Need(distribution="onnxscript", purpose="export --check onnx", extra="onnx"),
    Need(distribution="onnxruntime", purpose="export --check onnxruntime", extra="onnx"),
    Need(distribution="resvg-py", purpose="graph --format png", extra="png"),
    Need(distribution="hydra-core", purpose="profile configurations", extra="profile"),
    Need(distribution="hydra-joblib-launcher", purpose="profile --multirun on several cores", extra="profile"),
    Need(distribution="torchlens", purpose="trace --tracer torchlens", extra="torchlens"),
    Need(distribution="safetensors", purpose="trace --load-weights DIR", extra="weights"),
)


def doctor(format_name: FormatOption = None, json_wanted: JsonOption = False) -> None:
    """Say what is installed and what is missing."""
    reporter = choose_reporter(format_name, json_wanted)
    versions = {need.distribution: _installed_version(need.distribution) for need in NEEDS}
    show(_report(versions), reporter)
    if any(versions[need.distribution] is None for need in NEEDS if need.extra is None):
        raise typer.Exit(1)


def _installed_version(distribution: str) -> str | None:
    """From the package's metadata: importing torch to ask would take seconds."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _report(versions: dict[str, str | None]) -> Report:
    rows = [
        ("llm-perf-opt", __version__, "", "ok"),
        ("python", platform.python_version(), "", "ok"),
        *(
            (need.distribution, versions[need.distribution] or "-", need.purpose, _verdict(need, versions))
            for need in NEEDS
        ),
    ]
    columns = (Column("part"), Column("version"), Column("needed for"), Column("verdict"))
    return Report(
        title="What is installed here",
        tables=(Table(title="", columns=columns, rows=tuple(rows)),),
        notes=tuple(_notes(versions)),
    )


def _verdict(need: Need, versions: dict[str, str | None]) -> str:
    version = versions[need.distribution]
    if version is None:
        return "missing" if need.extra is None else "optional, not installed"
    if need.distribution == "torch" and not _is_tested_torch(version):
        return f"not tested; tested with {TESTED_TORCH}"
    return "ok"


def _is_tested_torch(version: str) -> bool:
    return version.split(".")[:2] == TESTED_TORCH.split(".")


def _notes(versions: dict[str, str | None]) -> list[Note]:
    notes = []
    for need in NEEDS:
        verdict = _verdict(need, versions)
        if verdict != "ok":
            level = Level.WARNING if need.extra is None else Level.INFO
            notes.append(Note(f"{need.distribution}: {verdict}. {need.pip_command}", level))
    return notes or [Note("Everything a trace needs is here. No GPU is needed.")]
