"""What is there: the models known by name, and what is installed of all that a run may need."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from llm_perf_opt import __version__
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.missing_packages import RUNS_MODELS, TESTED_TORCH
from llm_perf_opt.core.plugins import MODELS
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, counted, listed
from llm_perf_opt.models.huggingface.hub import cached_names, snapshot
from llm_perf_opt.models.huggingface.names import CatalogueModel, catalogue, matching, near_names
from llm_perf_opt.serving.engine_process.environment import ENGINES, EngineRecipe, checked_versions, find, is_checked


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelsAnswer(Answer):
    """Models known by name, and what each is; with `search`, the names that contain its words."""

    models: Mapping[str, str]  # registered name -> title
    others: tuple[CatalogueModel, ...]  # every other name, without those that share the sizes of one
    search: str | None = None

    def report(self) -> Report:
        """What was searched for; otherwise the registered models, and how many others there are of each kind."""
        return self._matches() if self.search is not None else self._overview()

    def _overview(self) -> Report:
        rows = tuple((name, title, f"llm-perf-opt trace {name}") for name, title in self.models.items())
        table = Table(title="", columns=(Column("model"), Column("what it is"), Column("command")), rows=rows)
        by_kind: dict[str, list[str]] = {}
        for model in self.others:
            by_kind.setdefault(model.kind or WHEEL_KIND, []).append(model.name)
        kinds = tuple((kind, len(names), ", ".join(names[:3])) for kind, names in by_kind.items())
        columns = (Column("kind"), Column("names", Kind.COUNT), Column("such as"))
        notes = (
            Note(
                "To list names, run llm-perf-opt models --search qwen; to trace one, llm-perf-opt trace Qwen/Qwen3-8B."
            ),
            Note(
                "For any other Hugging Face model run llm-perf-opt trace ORG/NAME, which downloads only its "
                "configuration, or llm-perf-opt trace DIR, with config.json in DIR. Add --trust-remote-code if it has "
                "its own code."
            ),
        )
        catalogue = Table(title="In the catalogue: no network needed", columns=columns, rows=kinds)
        known = len(self.models) + len(self.others)
        answer = (
            f"{counted(known, 'model is', 'models are')} known by name; any Hugging Face model works too.",
            f"Next: llm-perf-opt trace {next(iter(self.models), 'DIR')}, or llm-perf-opt trace ORG/NAME.",
        )
        return Report(title="Models known by name", answer=answer, tables=(table, catalogue), notes=notes)

    def _matches(self) -> Report:
        rows: list[tuple[Cell, ...]] = [(name, "registered", None, title) for name, title in self.models.items()]
        rows += [(other.name, other.kind or WHEEL_KIND, other.parameters, _origin(other)) for other in self.others]
        columns = (Column("model"), Column("kind"), Column("parameters", Kind.COUNT), Column("from"))
        if not rows:
            near = near_names(self.search or "")
            hint = f"Similar names: {', '.join(near)}." if near else "Any model on the Hub works by its name, ORG/NAME."
            return Report(title=f"No known name contains {self.search!r}", answer=(hint,))
        table = Table(title="", columns=columns, rows=tuple(rows))
        answer = (f"{counted(len(rows), 'name')}. Next: llm-perf-opt trace {rows[0][0]}.",)
        return Report(title=f"Known names with {self.search!r}", answer=answer, tables=(table,))


WHEEL_KIND = "in the extra kernels"


def _origin(model: CatalogueModel) -> str:
    return model.source if model.shared_with is None else f"same sizes as {model.shared_with}"


def known_models(search: str | None = None) -> ModelsAnswer:
    """The models that can be traced by name without a network; with `search`, the names that contain its words."""
    registered = {name: MODELS.get(name).title for name in MODELS.names()}
    known = catalogue()
    if search is None:
        others = tuple(model for model in known.values() if model.shared_with is None)
        return ModelsAnswer(models=registered, others=others)
    cached = (_cached(name) for name in cached_names())
    everything = {**known, **{model.name: model for model in cached}}
    return ModelsAnswer(
        models={name: registered[name] for name in matching(registered, search)},
        others=tuple(everything[name] for name in sorted(matching(everything, search), key=str.lower)),
        search=search,
    )


def _cached(name: str) -> CatalogueModel:
    known, cached = catalogue().get(name), snapshot(name)
    revision = "" if cached is None else f", revision {cached.revision[:12]}"
    kind, parameters = ("", None) if known is None else (known.kind, known.parameters)
    return CatalogueModel(
        name=name, kind=kind or "in the local cache", parameters=parameters, source=f"the Hugging Face cache{revision}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A distribution, what it is needed for, and the command that brings it; `extra` is None where all need it."""

    distribution: str
    purpose: str
    extra: str | None = None

    @property
    def pip_command(self) -> str:
        """How to install it."""
        return f"pip install '{self.distribution if self.extra is None else f'llm-perf-opt[{self.extra}]'}'"


NEEDS = (
    Need(distribution="numpy", purpose="tables of figures"),
    Need(distribution="jinja2", purpose="the graph page"),
    Need(distribution="msgspec", purpose="reading files back"),
    Need(distribution="pillow", purpose="--image FILE"),
    Need(distribution="typer", purpose="this command"),
    Need(distribution="fvcore", purpose="cost --sources fvcore", extra="fvcore"),
    Need(distribution="aiconfigurator-core", purpose="trace --rates tables", extra="kernels"),
    Need(distribution="duckdb", purpose="trace --rates tables", extra="kernels"),
    Need(distribution="onnx", purpose="export --check onnx", extra="onnx"),
    Need(distribution="onnxscript", purpose="export --check onnx", extra="onnx"),
    Need(distribution="onnxruntime", purpose="export --check onnxruntime", extra="onnx"),
    Need(distribution="resvg-py", purpose="graph --format png", extra="png"),
    Need(distribution="hydra-core", purpose="profile configurations", extra="profile"),
    Need(distribution="hydra-joblib-launcher", purpose="profile --multirun on several cores", extra="profile"),
    Need(distribution="ray", purpose="study --engine ray", extra="ray"),
    Need(distribution="duckdb", purpose="ask", extra="study"),
    Need(distribution="fsspec", purpose="study --out PLACE", extra="study"),
    Need(distribution="pyarrow", purpose="study", extra="study"),
    Need(distribution="pyyaml", purpose="study files", extra="study"),
    Need(distribution="torchlens", purpose="trace --tracer torchlens", extra="torchlens"),
    Need(distribution="torch", purpose="tracing a model", extra="trace"),
    Need(distribution="transformers", purpose="tracing a Hugging Face model", extra="trace"),
    Need(distribution="accelerate", purpose="LoRA in a training step", extra="train"),
    Need(distribution="peft", purpose="LoRA in a training step", extra="train"),
    Need(distribution="safetensors", purpose="trace --load-weights DIR", extra="weights"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One need and the version that is there, or None."""

    need: Need
    version: str | None

    @property
    def verdict(self) -> str:
        """`ok`, or what is wrong with it."""
        if self.version is None:
            return "missing" if self.need.extra is None else "optional, not installed"
        if self.need.distribution == "torch" and self.version.split(".")[:2] != TESTED_TORCH.split("."):
            return f"not tested; tested with {TESTED_TORCH}"
        return "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFound:
    """An engine in a Python of its own: which one and which version, or why there is none and what to do."""

    engine: EngineRecipe
    python: str | None = None
    version: str | None = None
    is_checked: bool = False
    problem: str = ""

    @property
    def verdict(self) -> str:
        """Whether its real engine was compared with a replay."""
        if self.version is None:
            return "optional, not installed"
        return "checked" if self.is_checked else "not checked"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InstallationAnswer(Answer):
    """Every distribution that a run may need, and the engines that replay requests."""

    version: str
    python: str
    distributions: tuple[Installed, ...]
    engines: tuple[EngineFound, ...]

    @property
    def is_complete(self) -> bool:
        """Whether everything is there that every command needs."""
        return all(
            distribution.version is not None for distribution in self.distributions if distribution.need.extra is None
        )

    def report(self) -> Report:
        """One row per distribution, and the command that brings what is missing."""
        rows = [
            ("llm-perf-opt", self.version, "", "ok"),
            ("python", self.python, "", "ok"),
            *(
                (part.need.distribution, part.version or "-", part.need.purpose, part.verdict)
                for part in self.distributions
            ),
        ]
        columns = (Column("part"), Column("version"), Column("needed for"), Column("verdict"))
        missing = [
            Note(
                f"{part.need.distribution}: {part.verdict}. {part.need.pip_command}",
                Level.WARNING if part.need.extra is None else Level.INFO,
            )
            for part in self.distributions
            if part.verdict != "ok"
        ]
        return Report(
            title="What is installed here",
            answer=tuple(self._lines()),
            tables=(Table(title="", columns=columns, rows=tuple(rows)), self._engine_table()),
            notes=(*(missing or [Note("Everything is here. No GPU is needed.")]), *self._engine_notes()),
        )

    def _lines(self) -> Iterator[str]:
        """Whether a trace can run, and what is missing."""
        missing = [part.need.distribution for part in self.distributions if part.version is None]
        needed = [part.need for part in self.distributions if part.version is None and part.need.extra is None]
        if needed:
            yield f"Not complete: {listed([need.distribution for need in needed])} missing. {needed[0].pip_command}"
        elif to_trace := [name for name in RUNS_MODELS if name in missing]:
            yield (
                "Saved traces and the models of the catalogue can be used. Tracing other models needs "
                f"{listed(to_trace)}: pip install 'llm-perf-opt[trace]'"
            )
        else:
            yield "Everything that a trace needs is installed. No GPU is needed."
        optional = sorted({name for name in missing if name not in [need.distribution for need in needed]})
        if optional:
            yield f"Optional and not installed: {listed(optional, 6)}."
        vllm, sglang = self.engines
        yield f"vLLM, for serve --traffic and --replay: {vllm.verdict}. SGLang, for --replay: {sglang.verdict}."

    def _engine_table(self) -> Table:
        columns = (Column("engine"), Column("version"), Column("its Python"), Column("verdict"))
        rows = tuple((own.engine.name, own.version or "-", own.python or "-", own.verdict) for own in self.engines)
        return Table(title="Engines, each in its own Python", columns=columns, rows=rows)

    def _engine_notes(self) -> Iterator[Note]:
        for own in self.engines:
            if own.version is None:
                yield Note(f"{own.engine.name}: {own.problem}")
            elif not own.is_checked:
                checked = ", ".join(checked_version.version for checked_version in checked_versions(own.engine))
                yield Note(
                    f"{own.engine.name}: replays were checked against the real engine in versions {checked}, but not "
                    f"{own.version}.",
                    Level.WARNING,
                )


def doctor() -> InstallationAnswer:
    """What is installed and what is missing."""
    parts = tuple(Installed(need=need, version=_version(need.distribution)) for need in NEEDS)
    return InstallationAnswer(
        version=__version__,
        python=platform.python_version(),
        distributions=parts,
        engines=tuple(map(_engine, ENGINES.values())),
    )


def _engine(engine: EngineRecipe) -> EngineFound:
    try:
        installed = find(engine)
    except PerfOptError as error:
        return EngineFound(engine=engine, problem=f"{error.what} {error.fix[:1].upper()}{error.fix[1:]}")
    return EngineFound(
        engine=engine,
        python=str(installed.python),
        version=installed.version,
        is_checked=is_checked(installed.release, engine),
    )


def _version(distribution: str) -> str | None:
    """From the package's metadata: importing torch to ask would take seconds."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
