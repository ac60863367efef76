"""What becomes of a part in an export lab: what was tried, what came out, and the ops of the static graph.

These nouns cross from `exports`, which knows torch, to `analyses`, which prices the ops and writes the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line reads the names of the checks before it knows whether there will be a graph
    from llm_perf_opt.core.callgraph.records import OpKind


class Check(StrEnum):
    """What is tried with a part, in the order of the matrix."""

    EXPORT = "torch.export"
    DYNAMIC = "dynamic shapes"
    ONNX = "onnx"
    PARITY = "onnxruntime"
    WEIGHTS = "weights"
    COMPILE = "torch.compile"


CHECKS_BY_NAME = {
    "export": Check.EXPORT,
    "dynamic": Check.DYNAMIC,
    "onnx": Check.ONNX,
    "onnxruntime": Check.PARITY,
}  # those that are asked for by name; weights and compiling have options of their own

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Verdict(StrEnum):
    """How it went; what was not tried is distinct from what failed."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The result of one check. A failure names its exception, the line that caused it, and what to do."""

    check: Check
    verdict: Verdict
    detail: str = ""  # what is worth knowing of a success, or why nothing was tried
    error: str | None = None  # class of the exception
    reason: str | None = None
    operator: str | None = None  # "aten._grouped_mm.default"
    site: str | None = None  # "moe.py:75 in moe_infer"
    source_line: str | None = None
    remedy: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOutcome:
    """Whether one dimension may vary in the exported graph; if not, which guard fixed it and where, or why untried."""

    axis: str  # "batch"
    argument: str  # "hidden_states[0]"
    size: int  # in the run
    verdict: Verdict
    guards: int = 0  # conditions on it that the graph checks when it runs
    range: str = ""  # "2 and more"
    guard: str | None = None
    site: str | None = None
    source_line: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """A distinct op of the static graph and how often it stands there."""

    kind: OpKind
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The same weights and inputs in eager torch and in another runtime, default: float32."""

    max_abs_error: float
    max_rel_error: float  # against the largest value of that output
    largest_value: float
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """Where dynamo had to leave the graph."""

    reason: str
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFigures:
    """Eager and compiled runs of one process, taken in pairs; medians of `runs` each."""

    graphs: int
    breaks: tuple[GraphBreak, ...]
    compile_seconds: float  # of the first call, from an empty cache, what a later one does not take
    eager_seconds: float
    compiled_seconds: float
    compiled_of_eager: float  # median over the pairs
    runs: int
    threads: int
    autotuned: int  # kernels that Inductor chose by timing them


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTrial:
    """One mode of torch.compile. `figures` are None where it failed; `remarks` say what of the mode had no effect."""

    mode: str
    figures: CompileFigures | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """A file with weights, loaded again and run by itself, against the module with the same weights and inputs."""

    file: str  # "projector.onnx"
    runtime: str  # "onnxruntime"
    file_bytes: int  # with external data
    parity: Parity


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """Everything known of one part. `ops` is None where there is no static graph."""

    name: str
    title: str
    phase: str
    path: str
    wraps: tuple[str, ...]  # the modules of the trace that do the same work
    class_name: str
    inputs: tuple[str, ...]  # "hidden_states: float32[1, 913, 1280]"
    adaptation: str  # what the part itself changes
    does_other_work: bool  # than the modules of the trace: its FLOPs need not be theirs
    adaptations: tuple[str, ...]  # everything that was changed so that an exporter can take it
    parameters: int
    outcomes: tuple[CheckOutcome, ...]
    axes: tuple[AxisOutcome, ...] = ()
    ops: tuple[GraphOp, ...] | None = None
    eager_flops: int | None = None  # by torch's own counter, from a run of the same module on the meta device
    eager_unknown: str | None = None  # why that figure is missing or incomplete
    parity: Parity | None = None
    compiled: tuple[CompileTrial, ...] = ()
    weighted: tuple[FileCheck, ...] = ()
    files: tuple[Path, ...] = ()

    def outcome(self, check: Check) -> CheckOutcome:
        """The result of one check."""
        return next(outcome for outcome in self.outcomes if outcome.check is check)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to try. Weights are made only where they are needed, and only up to `max_weight_bytes` for one part.

    `load_weights` are the values that go into the files: "random", or a folder of safetensors; None: no values.
    """

    checks: frozenset[Check] = frozenset(Check) - {Check.COMPILE, Check.WEIGHTS}
    max_weight_bytes: int = 1 << 30
    compile_runs: int = 9
    compile_modes: tuple[str, ...] = ("default",)
    load_weights: str | None = None
    out: Path | None = None  # folder for .pt2, .onnx and listings; None: nothing is written
