"""The answer to what a model costs: figures of every source side by side, why they differ, and the files of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt import __version__
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.output_files import make_folder, require_free, sealed_text, write_together
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.reading import filled
from llm_perf_opt.core.report import Report, counted, largest_text, listed, stage_names
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.units import format_count, format_flops, format_parameters
from llm_perf_opt.costs.collectives import with_collectives
from llm_perf_opt.costs.counted import SOURCE as COUNTED
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.memory.kv_cache import STEPS
from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage
from llm_perf_opt.costs.reconcile import FigureDifference, FlopsDifference, Ledger
from llm_perf_opt.costs.run_description import deployment_notes, run_notes
from llm_perf_opt.costs.static_figures import StageCompute, StaticCompute
from llm_perf_opt.costs.static_file import static_compute_json
from llm_perf_opt.costs.static_report import incomplete_sources, sources_with_figures, static_report

if TYPE_CHECKING:
    from llm_perf_opt.costs.memory.memory_report import AttentionCase
    from llm_perf_opt.costs.memory.need import RunMemory
    from llm_perf_opt.costs.necessary.stage_needs import StageNeeds


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CostAnswer(Answer):
    """What every source says of each stage. A source that fails is a reason in `ledger.missing`, not the end.

    `memory` is None where nothing was traced. `attention_cases` compare the memory of eager and of fused attention, if
    both were traced. `stopped` holds the phases in which the model raised.
    """

    model: str
    workload: Mapping[str, Json]
    deployment: Mapping[str, Json]
    stages: tuple[StageCompute, ...]
    ledger: Ledger  # pairs of sources: differences, their causes, and what is unexplained
    parameters: int | None
    stopped: Mapping[str, str]  # phase -> reason
    memory: RunMemory | None
    attention_cases: tuple[AttentionCase, ...]
    _static: StaticCompute
    _graphs: tuple[CallGraph, ...]

    @property
    def flops(self) -> int | None:
        """All stages together; one unknown stage makes the sum unknown."""
        return self._static.flops

    @property
    def flops_at_least(self) -> int | None:
        """The same, where a stage is unknown with the most that one source counted of it."""
        return self._static.flops_at_least

    @property
    def active_parameters(self) -> int | None:
        """Elements of weights that one decode step multiplies with, of experts those that its whole batch touches.

        None without a decode.
        """
        return self._static.active_parameters

    @property
    def active_per_token(self) -> int | None:
        """Elements of weights that one token is multiplied with, whatever the batch; None where no trace tells."""
        steps = [necessary_by_stage(graph) for graph in self._graphs if graph.phase in STEPS and graph.ops]
        return known_sum(work.active_matrix_parameters for step in steps for work in step.values()) if steps else None

    @property
    def bytes_moved(self) -> int | None:
        """By the ops of the trace; None where nothing was traced."""
        return known_sum(None if stage.cost is None else stage.cost.bytes_moved for stage in self.stages)

    @property
    def necessary_flops(self) -> int | None:
        """What any implementation must compute; None where the trace does not tell."""
        return known_sum(None if stage.necessary is None else stage.necessary.flops for stage in self._needs)

    @property
    def unpriced_ops(self) -> int | None:
        """Ops that are in no total; None where nothing was traced."""
        return self._static.unpriced_ops

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that gave a figure or a reason, in the order in which they were asked."""
        named = [source.source for stage in self.stages for source in stage.sources]
        return tuple(dict.fromkeys((*named, *(source for source, *_ in self.missing))))

    @property
    def differences(self) -> tuple[FlopsDifference, ...]:
        """Stages of which two sources count other FLOPs, with the causes."""
        return self.ledger.differences

    @property
    def unexplained(self) -> tuple[FlopsDifference | FigureDifference, ...]:
        """Whatever two sources differ in without a known cause."""
        return self.ledger.unexplained

    @property
    def missing(self) -> tuple[tuple[str, str, str, str], ...]:
        """Source, phase, stage and reason, where a source says nothing."""
        return self.ledger.missing

    @property
    def incomplete(self) -> tuple[SourceFigures, ...]:
        """Figures of stages that are no totals, since their source left something out or added something."""
        return tuple(source for stage in self.stages for source in incomplete_sources(stage))

    @property
    def whole_runs(self) -> tuple[SourceFigures, ...]:
        """What fvcore, if it was asked, says of each phase as one piece, by module and operator; part of no sum."""
        return self._static.whole_runs

    @property
    def static(self) -> StaticCompute:
        """The record that `static_compute.json` is written from."""
        return self._static

    @property
    def graphs(self) -> tuple[CallGraph, ...]:
        """The phases that were counted, those apart in which the model raised."""
        return self._graphs

    @property
    def active_texts(self) -> tuple[str, ...]:
        """`574 M active per token`, and where its batch touches more experts what a decode step multiplies with."""
        token, step = self.active_per_token, self.active_parameters
        told = [] if token is None else [f"{format_parameters(token)} active per token"]
        if step is not None and step != token:
            told.append(f"{format_parameters(step)} used by a decode step of batch {self.workload.get('batch', '?')}")
        return tuple(told)

    @property
    def answer(self) -> tuple[str, ...]:
        """What it costs as written and at least, where most of it is, and whether the sources agree."""
        flops, needed = self.flops, self.necessary_flops
        written = "FLOPs not known" if flops is None else f"{format_flops(flops)} as written"
        least = "" if needed is None else f", {format_flops(needed)} necessary"
        held = "" if self.parameters is None else f"; {format_parameters(self.parameters)} parameters"
        held += "".join(f", {part}" for part in self.active_texts)
        flops_of = (stage.flops for stage in self.stages)
        most = largest_text(dict(zip(stage_names(self.stages), flops_of, strict=True)))
        differing, unknown = len(self.differences), len(self.unexplained)
        said = sources_with_figures(self._static)
        agree = f"{listed(said, 6)} agree" if len(said) > 1 else f"One source: {listed(said)}"
        if differing or unknown:
            causes = f"{format_count(unknown)} unexplained" if unknown else "each with its cause"
            agree = f"{counted(max(differing, unknown), 'difference')} between sources, {causes}"
        silent = f"; {counted(len(self.missing), 'figure')} missing" if self.missing else ""
        return (
            f"{self.model}: {written}{least}{held}.",
            *([f"Most FLOPs: {most}."] if most else []),
            f"{agree}{silent}.",
        )

    def report(self) -> Report:
        """Totals and stages side by side, a chapter per stage, and memory."""
        summary = self.summary()
        memory: tuple[Report, ...] = ()
        if self.memory is not None:
            from llm_perf_opt.costs.memory.memory_report import memory_report

            memory = (memory_report(self.memory, self.attention_cases),)
        notes = (*run_notes(self._graphs), *summary.notes)
        report = replace(with_collectives(summary, self._graphs), notes=notes, answer=self.answer)
        return replace(report, chapters=(*memory, *summary.chapters))

    def summary(self) -> Report:
        """The same without memory."""
        report = static_report(self._static)
        if not self._graphs:
            return report
        from llm_perf_opt.costs.necessary.stage_needs import with_necessary

        notes = (*deployment_notes(self._graphs), *report.notes)
        return with_necessary(replace(report, notes=notes), self._needs)

    @cached_property
    def _needs(self) -> tuple[StageNeeds, ...]:
        from llm_perf_opt.costs.necessary.stage_needs import stage_needs

        return stage_needs(self._graphs)

    def to_json(self) -> str:
        """The document that `static_compute.schema.json` describes."""
        memory: dict[str, Any] | None = None
        if self.memory is not None:
            from llm_perf_opt.costs.memory.memory_report import memory_json

            memory = memory_json(self.memory, self.attention_cases)
        document = static_compute_json(self._static, tool_version=__version__, memory=memory, graphs=self._graphs)
        return sealed_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))

    def fvcore_table(self) -> str:
        """The tables that fvcore itself prints, of whole phases, then of stages; empty where it gave none.

        Its `#flops` are multiply-adds.
        """
        runs = [(f"{run.phase}, the whole phase", run) for run in self.whole_runs]
        stages = [(f"{source.stage} ({source.phase})", source) for stage in self.stages for source in stage.sources]
        return "\n\n".join(
            f"{heading}\n{source.own_table}"
            for heading, source in (*runs, *stages)
            if source.source == "fvcore" and source.own_table
        )

    def save_files(self, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
        """`static_compute.json` after its schema, the report in every format, and fvcore's table if it was asked."""
        folder = Path(folder)
        reserve_cost_files(folder, force=force)
        report = self.report()
        texts = {JSON_FILE: self.to_json()}
        texts |= {STEM + suffix: REPORTERS.get(name)().render(report) for name, suffix in _FORMATS.items()}
        if table := self.fvcore_table():
            texts[FVCORE_FILE] = table
        write_together({folder / name: [text.encode()] for name, text in texts.items()})
        return tuple(folder / name for name in texts)


STEM = "static_compute"
JSON_FILE = f"{STEM}.json"
FVCORE_FILE = "fvcore_table.txt"
_FORMATS = {"markdown": ".md", "csv": ".csv", "html": ".html"}


def reserve_cost_files(folder: Path, *, force: bool) -> None:
    """Refuse, before the work begins, to overwrite a file of `save_files`; make the folder."""
    names = (JSON_FILE, FVCORE_FILE, *(STEM + suffix for suffix in _FORMATS.values()))
    require_free((folder / name for name in names), force=force)
    make_folder(folder)


def cost_answer(
    static: StaticCompute,
    graphs: tuple[CallGraph, ...] = (),
    memory: RunMemory | None = None,
    cases: tuple[AttentionCase, ...] = (),
) -> CostAnswer:
    """The answer that these figures give."""
    traced = {graph.phase for graph in graphs}
    silent = [entry for entry in static.ledger.missing if entry[0] == COUNTED]
    return filled(
        CostAnswer,
        static,
        stopped={phase: reason for _, phase, _, reason in silent if phase not in traced},
        memory=memory,
        attention_cases=cases,
        _static=static,
        _graphs=graphs,
    )
