"""What a source gives for one stage: its figures, what it saw but could not count, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.units import format_flops


class Method(StrEnum):
    """How a figure came about, from the most to the least direct look at one stage."""

    ISOLATED = "isolated"  # the stage's own modules, run by themselves with the shapes of the whole run
    EXTRACTED = "extracted"  # the stage's share of a whole run
    CLOSED_FORM = "closed form"  # a formula over sizes; nothing ran
    WHOLE_RUN = "whole run"  # one figure for a phase, not cut into stages


class WorkFamily(StrEnum):
    """What kind of matrix work an operator does, under whatever name a source lists it."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "fused attention"
    GROUPED = "grouped matmul"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFigure:
    """One operator of a stage as the source names it. `flops` of None: the source saw it and has no figure."""

    name: str
    family: WorkFamily
    flops: int | None
    calls: int | None = None
    activations: int | None = None  # elements it put out, where the source counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFigure:
    """One module with everything inside it, as the source counts it; of modules that are alike, all of them together.

    `completed_flops` is the same with formulas of ours for what the source has none, None where one of them is unknown.
    """

    path: str  # of the first of those that are alike
    flops: int
    completed_flops: int | None
    activations: int
    operators: tuple[tuple[str, int], ...]  # name -> FLOPs, the most expensive first

    @property
    def macs(self) -> int:
        """Multiply-adds, each of which is two FLOPs."""
        return self.flops // 2


ADDING_CAUSES = frozenset({"elementwise-counted", "rounded-up", "whole-on-expert-ranks"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindSpot:
    """Work that the source saw and left out of its figure. `cause` is one of `causes` in the ledger's table."""

    cause: str
    operator: str
    calls: int
    flops: int | None = None  # what it left out, where another source can tell
    is_bound: bool = False  # whether `flops` is the most that it may have left out

    @property
    def adds(self) -> bool:
        """Whether it makes the source count more than there is, not less."""
        return self.cause in ADDING_CAUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """The figures of one source for one stage of one phase, in FLOPs (a multiply-add is two) whatever it counts itself.

    A figure of None is one the source does not give. `failure` says why there are none at all. `unit` is what the
    source counted before conversion. `activations` are elements put out by the counted operators, fvcore's convention.
    `flops` of a source that left something out is no total: see `is_complete`. `completed_flops` is the figure of the
    same source once it has formulas of ours for the operators in `completed_with`; None where a gap stays.
    """

    source: str
    phase: str
    stage: str
    method: Method
    flops: int | None = None
    parameters: int | None = None
    activations: int | None = None
    bytes_moved: int | None = None
    active_parameters: int | None = None  # elements of weights that enter a matmul, per forward of the phase
    weight_bytes: int | None = None
    kv_cache_bytes: int | None = None  # held when the phase ends
    kv_bytes_per_token: int | None = None
    routing: str | None = None  # policy that assigned tokens to experts; None: no router, or unknown
    stored_as: str | None = None  # formats of weights and cache; None: in the types of the workload
    bytes_as_held: int | None = None  # `bytes_moved` with weights as the code holds them; None: unknown, or the same
    operators: tuple[OperatorFigure, ...] = ()
    blind_spots: tuple[BlindSpot, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str | None = None
    unit: str = "flop"  # "flop" | "mac"
    own_table: str | None = None  # the source's own printed table, where it has one
    completed_flops: int | None = None
    completed_with: tuple[str, ...] = ()
    modules: tuple[ModuleFigure, ...] = ()
    uncalled_modules: tuple[str, ...] = ()  # by path: not called, or by their `forward`
    tensors: str | None = None  # what the source ran on, "weightless" or "real"; None: it does not say
    version: str | None = None  # of the library that counted
    is_cross_check: bool = False  # a static figure: it stands for a stage only where no other source has one
    seconds: float | None = None  # how long the count took

    @property
    def is_complete(self) -> bool:
        """Whether `flops` holds all matrix work of the stage and nothing else, so that it may stand as a total."""
        return self.flops is not None and all(spot.flops == 0 for spot in self.blind_spots)

    @property
    def left_out_ops(self) -> int:
        """Calls of operators that `flops` lacks in part or in full."""
        return sum(spot.calls for spot in self.blind_spots if not spot.adds and spot.flops != 0)

    @property
    def at_least_flops(self) -> int | None:
        """What the stage takes at least by this source: its figure without what it adds; None where that is unknown."""
        added = [spot.flops for spot in self.blind_spots if spot.adds]
        if self.flops is None or None in added:
            return None
        return self.flops - sum(flops for flops in added if flops is not None)


def left_out(figures: SourceFigures) -> str:
    """What a source leaves out or adds: `leaves out 469 GFLOP of aten.foo, and work of unknown size of aten.bar`."""
    parts = []
    for spot in figures.blind_spots:
        amount = "work of unknown size" if spot.flops is None else format_flops(spot.flops)
        parts.append(f"{'adds' if spot.adds else 'leaves out'} {amount} of {spot.operator}")
    return ", ".join(parts)


_ATTENTION = (
    *("scaled_dot_product", "scaled_dot_attention", "flash_attention", "efficient_attention", "flex_attention"),
    *("unified_attention", "unified_mla_attention"),
)
_GROUPED = ("grouped_mm", "grouped_linear", "routed_experts")
_CONVOLUTIONS = ("conv", "conv1d", "conv2d", "conv3d", "convolution")
_MATMULS = (
    "linear",
    "bilinear",
    "trilinear",
    "matmul",
    "einsum",
    "mm",
    "bmm",
    "addmm",
    "addbmm",
    "baddbmm",
    "smm",
    "gemm",
    "proj",
)
_VECTOR_MATMULS = ("mv", "addmv", "dot", "vdot", "vecdot", "tensordot", "inner")


def operator_name(operator: str) -> str:
    """The bare name in `aten.addmm.default`, `aten::addmm`, `transformers.grouped_mm_fallback` or `addmm`."""
    parts = operator.replace("::", ".").split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")


def flops_in(figures: SourceFigures, family: WorkFamily) -> int:
    """What a source counts for one family of operators; operators without a figure add nothing."""
    return sum(operator.flops or 0 for operator in figures.operators if operator.family is family)


def family_of(operator: str) -> WorkFamily:
    """The family of an operator, by the words of its name; resampling is no matmul, linear though it may be."""
    name = operator_name(operator)
    words = name.split("_")
    if any(part in name for part in _ATTENTION):
        return WorkFamily.ATTENTION
    if any(part in name for part in _GROUPED):
        return WorkFamily.GROUPED
    if any(word in _CONVOLUTIONS for word in words):
        return WorkFamily.CONVOLUTION
    if "upsample" not in words and any(word in (*_MATMULS, *_VECTOR_MATMULS) for word in words):
        return WorkFamily.MATMUL
    return WorkFamily.OTHER
