"""How a model is split between ranks: tensor, expert, pipeline, fully sharded and data parallel; and which rank runs.

Ranks are numbered as transformers and torch number them: tensor parallel innermost, then fully sharded, then pipeline;
replicas of the whole come outermost. Experts add no ranks: they are split between the ranks of one pipeline stage.

Engines have one more kind: `attention_dp` groups of tensor-parallel ranks have sequences of their own and share the
experts of one replica, so they step together. vLLM calls that data parallel with expert parallel; `dp` here are whole
replicas, which share nothing. It is no option of a trace: the reference code does not spread a model so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import OptionRecord, option
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, parse_foreign_json, parse_toml, read_bytes

AXES = ("tp", "ep", "pp", "fsdp", "dp")
HEADER_KEY = "parallel"  # in the deployment of a trace
REPLICATED_KEY = "replicated"  # next to the plan in a header: parameters that every rank holds whole
MAX_RANKS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan(OptionRecord):
    """Sizes of each kind of parallelism. All of them 1: one device, and nothing is spread."""

    taken_by: ClassVar[str] = "A parallel plan"

    tp: int = option(1, at_least=1, help="Ranks that share each weight matrix: tensor parallel.")
    ep: int = option(1, at_least=1, help="Ranks that share the experts; --tp and --fsdp provide them.")
    pp: int = option(1, at_least=1, help="Stages that share the layers: pipeline parallel.")
    fsdp: int = option(1, at_least=1, help="Ranks that share the stored weights and gather them to run: fully sharded.")
    dp: int = option(1, at_least=1, help="Replicas of the whole, each with its own batch: data parallel.")
    attention_dp: int = 1  # groups with sequences of their own that share the experts of a replica
    rank: int | None = option(None, at_least=0, help="The rank to trace. Default: one of each kind of rank.")
    plan: str | None = option(
        None, metavar="FILE", help="JSON or TOML file with the rules of the plan. Default: the model's own plan."
    )

    def __post_init__(self) -> None:
        OptionRecord.__post_init__(self)
        if self.attention_dp < 1:
            raise UsageError(
                f"attention-dp cannot be {self.attention_dp}.", why="it must be at least 1", fix="give a larger number"
            )
        if self.ranks > MAX_RANKS:
            raise UsageError(
                f"A plan of {self.ranks:,} ranks is too large.",
                why=f"the limit is {MAX_RANKS:,} ranks, so that a typing error does not run for hours",
                fix="lower one of tp, pp, fsdp, dp",
            )
        if self.ep > 1 and self.stage_ranks % self.ep:
            raise UsageError(
                f"{self.ep} ranks cannot share the experts.",
                why=f"experts are split between the ranks of one pipeline stage, which has {self.stage_ranks} here",
                fix="choose an ep that divides them: tp x fsdp, or tp x attention-dp",
            )
        if self.plan is not None and not self.is_spread:
            raise UsageError(
                f"The plan {self.plan} would change nothing.",
                why="its rules say what ranks share, and there is only one rank",
                fix="add --tp N, --ep N, --pp N or --fsdp N",
            )
        if self.rank is not None and self.rank >= self.ranks:
            raise UsageError(
                f"There is no rank {self.rank}.", why=f"the plan has ranks 0 to {self.ranks - 1}", fix="choose another"
            )

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage, which can share its experts."""
        return self.tp * self.fsdp * self.attention_dp

    @property
    def replica_ranks(self) -> int:
        """Ranks of one replica: the world in which its collectives run."""
        return self.stage_ranks * self.pp

    @property
    def ranks(self) -> int:
        """All ranks, every replica counted."""
        return self.replica_ranks * self.dp

    @property
    def is_spread(self) -> bool:
        """Whether more than one rank holds the model."""
        return self.replica_ranks > 1

    def kinds_of_rank(self) -> tuple[int, ...]:
        """One rank of each kind, in order: the first of each pipeline stage.

        The ranks of one stage run the same program on equal shards. Stages differ: the first looks tokens up, the last
        computes logits, and the last may hold more layers. Of three stages or more those between are of one kind.
        """
        if self.rank is not None:
            return (self.rank,)
        stages = (0,) if self.pp == 1 else (0, self.pp - 1) if self.pp == 2 else (0, 1, self.pp - 1)
        return tuple(stage * self.stage_ranks for stage in stages)

    def of_rank(self, rank: int) -> ParallelPlan:
        """The same plan, for one of its ranks."""
        return replace(self, rank=rank)

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return rank % self.replica_ranks // self.stage_ranks

    def ranks_like(self, rank: int) -> int:
        """How many ranks of all replicas are of the kind of this one, itself included."""
        is_between = 0 < self.stage_of(rank) < self.pp - 1
        return self.stage_ranks * self.dp * (self.pp - 2 if is_between else 1)

    def ranks_of_kinds(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """For one rank of each kind, in order, how many ranks of all replicas it stands for.

        Several stand for all ranks between them; one alone for its own pipeline stages.
        """
        if len(ranks) < 2:
            return tuple(map(self.ranks_like, ranks))
        ends = [*ranks[1:], self.replica_ranks]
        return tuple((end - rank) * self.dp for rank, end in zip(ranks, ends, strict=True))

    def sizes(self) -> dict[str, int]:
        """The sizes that are not 1, of the kinds that a trace can have."""
        return {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}

    def describe(self) -> str:
        """As people write it: `tp8 ep8`, `ep8 attention-dp8`; one device where nothing is spread."""
        groups = {"attention-dp": self.attention_dp} if self.attention_dp > 1 else {}
        return " ".join(f"{axis}{size}" for axis, size in {**self.sizes(), **groups}.items()) or "one device"

    def header(self) -> dict[str, int | str]:
        """For the header of a trace: sizes, ranks and which rank this is."""
        return {
            **self.sizes(),
            "ranks": self.ranks,
            "rank": self.rank or 0,
            **({"plan": self.plan} if self.plan else {}),
        }


def layer_pattern(name: str) -> str:
    """The name of a parameter with a `*` for every number in its path: it is the same in all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def replicated_in(deployment: Mapping[str, object]) -> frozenset[str] | None:
    """Patterns of the parameters that every rank holds whole; None: the header of the trace does not say."""
    header = deployment.get(HEADER_KEY)
    names = header.get(REPLICATED_KEY) if isinstance(header, Mapping) else None
    return frozenset(map(str, names)) if isinstance(names, list) else None


def plan_in(deployment: Mapping[str, object]) -> ParallelPlan | None:
    """The plan that the header of a trace names; None: the trace is of one device."""
    header = deployment.get(HEADER_KEY)
    if not isinstance(header, Mapping):
        return None
    return ParallelPlan.make(**{name: header[name] for name in ("plan", "rank", *AXES) if name in header})


# A parallel plan in a file: which modules are spread how, by rules like those that transformers' models carry.
#
#     [tp]
#     "model.layers.*.self_attn.q_proj" = "colwise"
#     "model.layers.*.self_attn.o_proj" = "rowwise"
#
#     [ep]
#     "model.layers.*.mlp.experts" = "ep_dispatch_experts"
#
# A `*` stands for the number of a layer. The styles are the ones that the installed transformers has. A model
# that brings its plan in its folder here takes no such rules. DeepSeek-OCR takes how the views of a page are encoded:
#
#     [vision]
#     views = "split"      # or "replicated": every rank encodes all of them

PLAN_FILE = FileKind(
    name="plan file",
    fix='write tables [tp] and [ep] of rules like "model.layers.*.mlp.down_proj" = "rowwise"',
    max_bytes=2**20,
    max_elements=2**14,
    max_levels=4,
    error=UsageError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRules:
    """How the views of a page are encoded; None: as the model's own plan says."""

    views: Literal["split", "replicated"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """The rules of a file, by kind of parallelism."""

    tp: dict[str, str] = field(default_factory=dict)
    ep: dict[str, str] = field(default_factory=dict)
    vision: VisionRules = field(default_factory=VisionRules)


def read_plan_rules(path: Path) -> PlanRules:
    """The rules of a TOML file, or of a JSON file where the name ends so."""
    with naming_file(path):
        raw = read_bytes(path, PLAN_FILE)
        document = parse_foreign_json(raw, PLAN_FILE) if path.suffix == ".json" else parse_toml(raw, PLAN_FILE)
        rules = as_record(document, PlanRules, PLAN_FILE)
    if not rules.tp and not rules.ep and rules.vision.views is None:
        raise UsageError(f"The plan file {path} has no rule in it.", why="it would change nothing", fix=PLAN_FILE.fix)
    return rules
