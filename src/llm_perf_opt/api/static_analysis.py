"""The static compute report for scripts: a session goes in, figures per stage come out, and files of them.

The analyzer looks at the session's adapter and changes nothing in it; no weights are needed or touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from llm_perf_opt.api.cost import QUICK_SOURCES, CostAnswer, cost_answer, cost_of
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.plugins import MODELS, REPORTERS, make_workload
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.source_figures import Method, OperatorFigure, SourceFigures
from llm_perf_opt.core.target import Json, Target
from llm_perf_opt.core.units import format_flops
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.counted import SOURCE as COUNTED
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.static_figures import StageCompute, StaticCompute
from llm_perf_opt.tracing.origin import Origin

_VIEW_FIELDS = ("base_size", "image_size", "crop_mode", "patch_size", "downsample_ratio")

TOTAL = "total"


@dataclass(frozen=True, slots=True)
class AnalysisConfig:
    """One page and one prompt, in the words of the released inference; a model without images takes neither size.

    The page is `image` (a file, `"1240x1754"`, or an opened image, of which only the size matters), or a synthetic one
    of `image_width` x `image_height` pixels. It is shown whole at `base_size` pixels a side and, with `crop_mode`, a
    page larger than `image_size` also as tiles of that size; without, `image_size` means nothing. `seq_len` counts the
    text tokens of the prompt. `patch_size` and `downsample_ratio` are fixed by the weights and only checked.
    """

    image_height: int | None = None
    image_width: int | None = None
    base_size: int = 1024
    image_size: int = 640
    seq_len: int = 512
    crop_mode: bool = True
    patch_size: int = 16
    downsample_ratio: int = 4
    use_analytic_fallback: bool = (
        True  # whether a closed form may be the figure of a stage that nothing else could count
    )
    image: Any = None
    decode_steps: int = 1
    batch: int = 1
    dtype: str | None = None  # of this and the next, None is what the session runs, or else the model's default
    attention: str | None = None

    @property
    def page(self) -> str | None:
        """The page as a workload names it; None where none was given."""
        written = self._written_size()
        if self.image is None:
            return written
        if isinstance(self.image, str | PathLike):
            return fspath(self.image)
        width, height = self.image.size
        if written not in (None, f"{width}x{height}"):
            raise UsageError(
                f"The image has {width}x{height} pixels, not {written}.",
                why="image_width and image_height say otherwise",
                fix="leave them out when an image is given",
            )
        return f"{width}x{height}"

    def _written_size(self) -> str | None:
        if self.image_width is None and self.image_height is None:
            return None
        if self.image_width is None or self.image_height is None:
            raise UsageError(
                "Half a page size.", why="only one of image_width and image_height is given", fix="give both"
            )
        return f"{self.image_width}x{self.image_height}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisInputs:
    """What a configuration means for one adapter. `targets` are its phases, with every default filled in.

    It unpacks into what the first phase calls the model with: `input_ids, model_kwargs = prepare_inputs(config)`.
    """

    config: AnalysisConfig
    adapter: ModelAdapter
    workload: Workload
    targets: tuple[Target, ...]
    device: str = "cpu"  # where the tensors are made

    def __iter__(self) -> Iterator[Any]:
        """The token ids, then the other arguments by name: real tensors, made without weights."""
        from llm_perf_opt.harness.isolation import first_call

        args, kwargs = first_call(self.adapter.targets(self.workload)[0], self.device)
        given = dict(kwargs)
        yield args[0] if args else given.pop("input_ids", None)
        yield given


@runtime_checkable
class SizedAdapter(ModelAdapter, Protocol):
    """An adapter with image modes that are chosen by their sizes."""

    def with_view_sizes(
        self, *, base_size: int, crop_size: int | None, patch_size: int, downsample_ratio: int
    ) -> tuple[ModelAdapter, str]:
        """An adapter that has such a mode, itself if it does already, and the name of the mode."""
        ...


@runtime_checkable
class KnowsHowItRuns(Protocol):
    """A session that says in which type, and with which attention code, it runs its model."""

    dtype: str
    attention: str | None


@runtime_checkable
class KnowsItsDevice(Protocol):
    """A session that says on which device it runs its model."""

    device: str


def prepared(config: AnalysisConfig, adapter: ModelAdapter, mode: str | None, session: object) -> AnalysisInputs:
    """The workload of `config` in that image mode, checked by the adapter; the session may tell dtype and attention."""
    sizes = {"image": config.page, "mode": mode}
    own = session if isinstance(session, KnowsHowItRuns) else None
    workload = make_workload(
        adapter,
        **{name: size for name, size in sizes.items() if size is not None},
        prompt_tokens=config.seq_len,
        decode_steps=config.decode_steps,
        batch=config.batch,
        attention=config.attention or (None if own is None else own.attention),
    )
    dtype = config.dtype or (None if own is None else own.dtype)
    workload = workload if dtype is None else replace(workload, dtype=dtype)
    return AnalysisInputs(
        config=config,
        adapter=adapter,
        workload=workload,
        targets=adapter.targets(workload),
        device=session.device if isinstance(session, KnowsItsDevice) else "cpu",
    )


def adapter_with_sizes(config: AnalysisConfig, adapter: ModelAdapter) -> tuple[ModelAdapter, str | None]:
    """An adapter with an image mode of the sizes in `config`, and its name.

    An adapter that knows no such sizes is taken as it is, unless one of them was set.
    """
    if isinstance(adapter, SizedAdapter):
        return _sized(config, adapter)
    defaults = {field.name: field.default for field in fields(AnalysisConfig)}
    for name in _VIEW_FIELDS:
        if getattr(config, name) != defaults[name]:
            raise UsageError(
                f"{adapter.title} has no use for {name}.",
                why="its inputs are not made of views of a page",
                fix=f"leave {name} out",
            )
    return adapter, None


def released_mode(config: AnalysisConfig, adapter: ModelAdapter, model: str) -> tuple[ModelAdapter, str | None]:
    """The mode of these sizes that the registered `model` has under a name, for an adapter that only takes names."""
    if isinstance(adapter, SizedAdapter):
        return _sized(config, adapter)
    known = cast("SizedAdapter", MODELS.get(model)())
    sized, mode = _sized(config, known)
    if sized is not known:
        raise UsageError(
            f"{adapter.title} has no image mode of these sizes.",
            why="the inputs of the folder's own code are made in its named modes only",
            fix="use the sizes of a named mode, or a session without trust_remote_code",
        )
    return adapter, mode


def _sized(config: AnalysisConfig, adapter: SizedAdapter) -> tuple[ModelAdapter, str]:
    return adapter.with_view_sizes(
        base_size=config.base_size,
        crop_size=config.image_size if config.crop_mode else None,
        patch_size=config.patch_size,
        downsample_ratio=config.downsample_ratio,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAnalysisResult:
    """One stage, or the whole run as `total`. None is unknown, never zero.

    `flops` is the first figure that left nothing out: of the stage run by itself, then of its share in a whole run,
    then a closed form. Where every source left something out it is None, and `flops_at_least` is the most that one of
    them counted; otherwise the two are equal. `isolated_flops`, `extracted_flops` and `analytic_flops` are the first
    complete figure of each kind, None where every source of that kind left something out; `notes` say what. Where only
    fvcore ran the stage by itself, `isolated_flops` has formulas of ours for what it has none; `isolated_by` says so.
    `activations` are elements put out by the counted operators. `operators` belong to `flops`, or else to
    `flops_at_least`. Every source's own words are in `sources`.
    """

    stage: str
    phase: str
    params: int | None
    flops: int | None
    flops_at_least: int | None
    activations: int | None
    operators: tuple[OperatorFigure, ...]
    isolated_flops: int | None
    isolated_by: str | None
    extracted_flops: int | None
    analytic_flops: int | None
    notes: tuple[str, ...]
    sources: tuple[SourceFigures, ...]

    @property
    def macs(self) -> int | None:
        """Multiply-adds, each of which is two FLOPs."""
        return None if self.flops is None else self.flops // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticComputeReport:
    """Every stage by name, the run as a whole, and what the writers need."""

    inputs: AnalysisInputs
    total: StageAnalysisResult
    stages: Mapping[str, StageAnalysisResult]
    notes: tuple[str, ...]
    run: CostAnswer

    @property
    def analysis(self) -> dict[str, Json]:
        """The configuration that was analysed."""
        return asdict(replace(self.inputs.config, image=self.inputs.config.page))

    def to_dict(self) -> dict[str, Json]:
        """What `write_static_compute_json` writes, without the seal: `metadata`, `total`, `stages` by name, ..."""
        return self.run.document(self.analysis)

    def __getitem__(self, key: str) -> Json:
        """`report["total"]["params"]`: an entry of `to_dict`."""
        return self.to_dict()[key]


def report_of_run(inputs: AnalysisInputs, run: CostAnswer) -> StaticComputeReport:
    """The report on a finished run."""
    return StaticComputeReport(
        inputs=inputs, total=total_of(run.static), stages=stages_of(run.static), notes=run.static.notes, run=run
    )


def stages_of(static: StaticCompute) -> dict[str, StageAnalysisResult]:
    """Every stage by its name, in the order in which they run."""
    return {stage.name: _stage_result(stage) for stage in static.stages}


def _stage_result(stage: StageCompute) -> StageAnalysisResult:
    return filled(
        StageAnalysisResult,
        stage,
        stage=stage.name,
        params=stage.first("parameters"),
        activations=stage.first("activations"),
        extracted_flops=stage.by_method(Method.EXTRACTED),
        analytic_flops=stage.by_method(Method.CLOSED_FORM),
        notes=tuple(_notes(stage)),
    )


def isolated_only(stage: StageCompute) -> StageAnalysisResult:
    """The stage as those see it that ran it by itself."""
    seen = tuple(source for source in stage.sources if source.method is Method.ISOLATED)
    return _stage_result(replace(stage, sources=seen))


def _notes(stage: StageCompute) -> Iterator[str]:
    if stage.preferred is not None:
        yield f"FLOPs as {stage.preferred.source} has them ({stage.preferred.method.value})"
    elif stage.incomplete is not None:
        yield f"FLOPs unknown: {stage.incomplete.source} counted most and left something out"
    for source in stage.sources:
        if source.failure is not None:
            yield f"{source.source} failed: {source.failure}"
        yield from (f"{source.source}: {note}" for note in source.notes)
        for spot in source.blind_spots:
            work = "work" if spot.flops is None else format_flops(spot.flops)
            yield f"{source.source} {'adds' if spot.adds else 'leaves out'} {work} of {spot.operator} ({spot.cause})"


def total_of(static: StaticCompute) -> StageAnalysisResult:
    """All stages of all phases together; one unknown stage makes a sum unknown. Weights of two phases count once."""
    stages = tuple(stages_of(static).values())
    return StageAnalysisResult(
        stage=TOTAL,
        phase=TOTAL,
        params=static.parameters,
        flops=static.flops,
        flops_at_least=static.flops_at_least,
        activations=known_sum(stage.activations for stage in stages),
        operators=_merged(operator for stage in stages for operator in stage.operators),
        isolated_flops=known_sum(stage.isolated_flops for stage in stages),
        isolated_by=", ".join(dict.fromkeys(stage.isolated_by for stage in stages if stage.isolated_by)) or None,
        extracted_flops=known_sum(stage.extracted_flops for stage in stages),
        analytic_flops=known_sum(stage.analytic_flops for stage in stages),
        notes=static.notes,
        sources=tuple(source for stage in stages for source in stage.sources),
    )


def whole_run_of(runs: Sequence[SourceFigures]) -> StageAnalysisResult:
    """What a source says of the phases as one piece each; a phase that it left something out of makes sums unknown."""
    failed = tuple(f"{run.source} did not take {run.phase} as a whole: {run.failure}" for run in runs if run.failure)
    completed = tuple(
        f"{run.phase}: {format_flops(run.completed_flops)} with formulas of ours for {', '.join(run.completed_with)}"
        for run in runs
        if run.completed_with and run.completed_flops is not None
    )
    return StageAnalysisResult(
        stage=TOTAL,
        phase=TOTAL,
        params=runs[0].parameters if runs else None,
        flops=known_sum(run.flops if run.is_complete else None for run in runs),
        flops_at_least=known_sum(run.at_least_flops for run in runs),
        activations=known_sum(run.activations for run in runs),
        operators=_merged(operator for run in runs for operator in run.operators),
        isolated_flops=None,
        isolated_by=None,
        extracted_flops=None,
        analytic_flops=None,
        notes=(*failed, *completed, *(f"{run.phase}: {note}" for run in runs for note in run.notes)),
        sources=tuple(runs),
    )


def _merged(operators: Iterable[OperatorFigure]) -> tuple[OperatorFigure, ...]:
    """Operators of one name as one, the most expensive first."""
    by_name: dict[str, OperatorFigure] = {}
    for new in operators:
        if (known := by_name.get(new.name)) is None:
            by_name[new.name] = new
            continue
        by_name[new.name] = replace(
            known,
            flops=known_sum((known.flops, new.flops)),
            calls=known_sum((known.calls, new.calls)),
            activations=known_sum((known.activations, new.activations)),
        )
    return tuple(sorted(by_name.values(), key=lambda operator: -(operator.flops or 0)))


def without_fallback(run: CostAnswer) -> CostAnswer:
    """The run with no closed form as the figure of a stage; where it was, the stage has no figure and a note."""
    bare = [stage for stage in run.static.stages if stage.preferred and stage.preferred.method is Method.CLOSED_FORM]
    if not bare:
        return run
    stages = tuple(_without_closed_form(stage) if stage in bare else stage for stage in run.static.stages)
    notes = tuple(f"{stage.name}: only a closed form is known, and the fallback to it is off" for stage in bare)
    static = replace(run.static, stages=stages, notes=(*run.static.notes, *notes))
    return cost_answer(static, run.graphs, run.memory, run.attention_cases)


def _without_closed_form(stage: StageCompute) -> StageCompute:
    return replace(stage, sources=tuple(source for source in stage.sources if source.method is not Method.CLOSED_FORM))


def write_static_compute_json(report: StaticComputeReport, path: Path | str) -> Path:
    """The document after `static_compute.schema.json`; a file that is there is replaced."""
    return _written(path, report.run.to_json(report.analysis))


def write_static_compute_markdown(report: StaticComputeReport, path: Path | str) -> Path:
    """Configuration, totals, the table of stages and a section for each."""
    return _written(path, REPORTERS.get("markdown")().render(report.run.report()))


def write_static_compute_fvcore_table(report: StaticComputeReport, path: Path | str) -> Path:
    """The tables that fvcore itself prints, stage after stage."""
    table = report.run.fvcore_table()
    if not table:
        raise PerfOptError(
            "There is no table of fvcore.",
            why="it was not asked, or could count no stage",
            fix="see the report's notes",
        )
    return _written(path, table)


def _written(path: Path | str, text: str) -> Path:
    file = Path(path)
    write_whole(file, [text.encode()])
    return file


FVCORE = "fvcore"
ISOLATED_SOURCES = ("torch-counter", FVCORE)


class HasAdapter(Protocol):
    """A session, as far as it must be one; its `dtype` and `attention` are taken over where it has any."""

    @property
    def adapter(self) -> ModelAdapter:
        """What gives the targets of the session's model, without weights."""
        ...


class StaticAnalyzer:
    """Asks every source but the export about the model of a session; what was asked once is not asked again.

    Prepare inputs first, or give each method a configuration.
    """

    def __init__(self, session: HasAdapter) -> None:
        self.session = session
        self._inputs: AnalysisInputs | None = None
        self._runs: dict[tuple[str, ...], CostAnswer] = {}

    def prepare_inputs(self, config: AnalysisConfig) -> AnalysisInputs:
        """The targets that the other methods then look at; what the model cannot mean is refused here."""
        adapter, mode = self._adapter_and_mode(config)
        self._inputs = prepared(config, adapter, mode, self.session)
        self._runs.clear()
        return self._inputs

    @property
    def stage_module_map(self) -> dict[str, list[str]]:
        """Stage -> modules that it claims with all inside; a phase has the largest ones that no stage has a part of.

        So a module belongs to a stage or phase if its name begins with one of these paths.
        """
        from llm_perf_opt.harness.isolation import module_paths

        targets = self.session.adapter.targets(make_workload(self.session.adapter))
        claimed = {stage.name: list(stage.paths) for target in targets for stage in target.stages}
        rest = _unclaimed(module_paths(targets[0]), [path for paths in claimed.values() for path in paths])
        return claimed | {target.phase: rest for target in targets}

    @property
    def m_stage_module_map(self) -> dict[str, list[str]]:
        """The same as `stage_module_map`."""
        return self.stage_module_map

    def analyze_full_model(
        self, config: AnalysisConfig | None = None, *, source: Literal["counted", "fvcore"] = "counted"
    ) -> StageAnalysisResult:
        """The whole run as one: counted from a weightless trace, or by fvcore's `FlopCountAnalysis` of whole phases.

        Of fvcore, `sources` has a record per phase with figures by operator and module.
        """
        if config is not None:
            self.prepare_inputs(config)
        if source == COUNTED:
            return total_of(self._run((COUNTED,), None).static)
        if source != FVCORE:
            raise UsageError(
                f"{source!r} takes no whole model.", why=f"{COUNTED} and {FVCORE} do", fix="use one of these"
            )
        run = self._runs.get(QUICK_SOURCES) or self._run((FVCORE,), None)
        return whole_run_of(run.whole_runs)

    def analyze_stage_isolated(self, stage: str, config: AnalysisConfig | None = None) -> StageAnalysisResult:
        """One stage by itself, with the shapes of the whole run, under torch's counter and fvcore."""
        if config is not None:
            self.prepare_inputs(config)
        run = self._runs.get(QUICK_SOURCES) or self._run(ISOLATED_SOURCES, None)
        stages = {figures.name: figures for figures in run.static.stages}
        if stage not in stages:
            raise UsageError(f"No stage {stage!r} ran.", why=f"stages: {', '.join(stages)}", fix="choose one of these")
        return isolated_only(stages[stage])

    def analyze_all_stages(self, config: AnalysisConfig | None = None) -> dict[str, StageAnalysisResult]:
        """Every stage by name, from every source but the export."""
        return stages_of(self._run(QUICK_SOURCES, config).static)

    def generate_report(self, config: AnalysisConfig | None = None) -> StaticComputeReport:
        """Everything that is known, ready to be written."""
        run = self._run(QUICK_SOURCES, config)
        return report_of_run(self._prepared(), run)

    def _adapter_and_mode(self, config: AnalysisConfig) -> tuple[ModelAdapter, str | None]:
        return adapter_with_sizes(config, self.session.adapter)

    def _prepared(self) -> AnalysisInputs:
        if self._inputs is None:
            raise UsageError(
                "Nothing is prepared.",
                why="the analyzer has no configuration to run",
                fix="call prepare_inputs(AnalysisConfig(...)) first, or give a configuration",
            )
        return self._inputs

    def _run(self, sources: tuple[str, ...], config: AnalysisConfig | None) -> CostAnswer:
        inputs = self._prepared() if config is None else self.prepare_inputs(config)
        if sources not in self._runs:
            origin = Origin(name=inputs.targets[0].model, source=inputs.adapter, workload=inputs.workload)
            run = cost_of(origin, sources)
            self._runs[sources] = run if inputs.config.use_analytic_fallback else without_fallback(run)
        return self._runs[sources]


class DeepseekOCRStaticAnalyzer(StaticAnalyzer):
    """The same for DeepSeek-OCR; a folder that runs its own code has the image modes of the released inference."""

    def _adapter_and_mode(self, config: AnalysisConfig) -> tuple[ModelAdapter, str | None]:
        return released_mode(config, self.session.adapter, "deepseek-ocr")


def _unclaimed(paths: Sequence[str], claimed: Sequence[str]) -> list[str]:
    """The largest modules without a claimed one inside, in the order of `paths`; the root where nothing is claimed."""

    def holds(path: str, other: str) -> bool:
        return not path or other == path or other.startswith(f"{path}.")

    outermost: list[str] = []
    for path in paths:
        is_free = not any(holds(path, other) or holds(other, path) for other in claimed)
        if is_free and not any(holds(larger, path) for larger in outermost):
            outermost.append(path)
    return outermost
