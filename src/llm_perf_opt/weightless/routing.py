"""Who gets which token when router scores have no values: the policies behind `topk`.

Total expert work is the same under each (every row takes k experts); how many experts are touched, and how unevenly, is
the policy's choice. The trace says which one answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, read_json
from llm_perf_opt.ops.grouped_experts import touched_experts

_REPLAY_FILE = FileKind(
    name="file of expert counts",
    fix='write {"prefill": [[rows of expert 0, rows of expert 1, ...], one list per routing call], "decode": ...}',
    error=UsageError,
)


class RoutingPolicy(Protocol):
    """Chooses k distinct of n candidates for every row."""

    name: str

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        """Indices of shape [rows, k]; `call_index` counts the `topk` calls of one run from 0."""
        ...

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        """How often `choose` takes each candidate, without making the indices."""
        ...


def _even_counts(choices: int, used: int, candidates: int) -> torch.Tensor:
    """`arange(choices) % used`, counted."""
    counts = torch.zeros(candidates, dtype=torch.long)
    counts[:used] = choices // used
    counts[: choices % used] += 1
    return counts


class BalancedRouting:
    """Row r takes candidates r*k .. r*k+k-1, modulo n: every expert gets the same number of rows, within one.

    The most experts that this many rows can touch: real routers repeat themselves and touch fewer (`UniformRouting`).
    """

    name = "balanced"

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        return (torch.arange(rows * k) % candidates).view(rows, k)

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        return _even_counts(rows * k, candidates, candidates)


class UniformRouting:
    """As many distinct experts as independent, uniformly drawn tokens touch on average, evenly loaded.

    Each of T rows draws k of n at random, so an expert stays idle with probability (1 - k/n)^T. The expected number of
    experts with rows, rounded, is what this policy touches: one row takes k, very many take all.
    """

    name = "uniform"

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        return (torch.arange(rows * k) % max(touched_experts(candidates, k, rows), 1)).view(rows, k)

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        return _even_counts(rows * k, max(touched_experts(candidates, k, rows), 1), candidates)


class OneExpertRouting:
    """Every row takes candidates 0 .. k-1: the worst load, the fewest experts touched."""

    name = "one"

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        return torch.arange(k).expand(rows, k).contiguous()

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        return _even_counts(rows * k, k, candidates)


class RandomRouting:
    """Every row takes k distinct candidates uniformly; the same seed gives the same run."""

    # Above this, k distinct draws by sorting a whole row of random keys would dominate the run.
    _SORTED_DRAW_LIMIT = 4096
    _ROWS_AT_ONCE = 1 << 14

    def __init__(self, seed: int = 0) -> None:
        self.name = f"random:{seed}"
        self._generator = torch.Generator().manual_seed(seed)

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        if candidates <= self._SORTED_DRAW_LIMIT:
            return torch.rand(rows, candidates, generator=self._generator).topk(k, dim=-1).indices
        start = torch.randint(candidates, (rows, 1), generator=self._generator)
        return (start + torch.arange(k)) % candidates

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        counts = torch.zeros(candidates, dtype=torch.long)
        for start in range(0, rows, self._ROWS_AT_ONCE):
            chosen = self.choose(min(self._ROWS_AT_ONCE, rows - start), candidates, k, call_index)
            counts += torch.bincount(chosen.flatten(), minlength=candidates)
        return counts


class ReplayRouting:
    """The i-th `topk` of the run gives expert e exactly `counts[i][e]` rows, as recorded from a real run.

    Which rows go to which expert is not recorded and not needed: shapes and costs depend on the counts alone.
    """

    name = "replay"

    def __init__(self, counts: Sequence[Sequence[int]]) -> None:
        self._counts = [torch.tensor(list(call), dtype=torch.long) for call in counts]

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        counts = self.counts(rows, candidates, k, call_index)
        # Laid out column by column: an expert's run never wraps onto a row twice, because no count exceeds the rows.
        return torch.repeat_interleave(torch.arange(candidates), counts).view(k, rows).t().contiguous()

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        if call_index >= len(self._counts):
            raise _mismatch(
                f"the run asks for routing {call_index + 1} times, the record has {len(self._counts)} entries"
            )
        counts = self._counts[call_index]
        if counts.numel() != candidates or int(counts.sum()) != rows * k or int(counts.max()) > rows:
            raise _mismatch(
                f"routing call {call_index} needs {rows} rows x {k} of {candidates} experts, "
                f"the record has {int(counts.sum())} choices of {counts.numel()}"
            )
        return counts


class EvenOverRanks:
    """A policy for experts on several ranks, each with a run of neighbours: the n-th choice is on rank n mod r.

    The policies above touch experts from the first on. Where the first ones all lie on one rank, that rank would get
    every row, which no router means. Candidates that do not divide over the ranks are no experts, and left alone.
    """

    def __init__(self, policy: RoutingPolicy, ranks: int) -> None:
        self.name = policy.name
        self._policy, self._ranks = policy, ranks

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        chosen = self._policy.choose(rows, candidates, k, call_index)
        if candidates % self._ranks:
            return chosen
        return chosen % self._ranks * (candidates // self._ranks) + chosen // self._ranks

    def counts(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        counts = self._policy.counts(rows, candidates, k, call_index)
        return counts if candidates % self._ranks else counts.view(-1, self._ranks).t().flatten()


def even_over_ranks(policy: RoutingPolicy, ranks: int) -> RoutingPolicy:
    """The policy for a model that is split over ranks; what names rows or ranks by itself is left alone."""
    return EvenOverRanks(policy, ranks) if isinstance(policy, (BalancedRouting, UniformRouting)) else policy


def read_replay(file: Path, phase: str) -> ReplayRouting:
    """Recorded counts from a JSON file: `{"prefill": [[rows of expert 0, ...], ...], "decode": [...]}`.

    The lists of a phase are its routing decisions in the order in which the model makes them.
    """
    from msgspec import Meta

    document = read_json(file, dict[str, Any], _REPLAY_FILE)
    if phase not in document:
        raise UsageError(
            f"No expert counts for phase {phase!r} in {file}.",
            why=f"it holds: {', '.join(list(document)[:20]) or 'nothing'}",
            fix=_REPLAY_FILE.fix,
        )
    rows = Annotated[int, Meta(ge=0, le=2**63 - 1)]
    with naming_file(file):
        counts = as_record({phase: document[phase]}, dict[str, list[list[rows]]], _REPLAY_FILE)
    return ReplayRouting(counts[phase])


def _mismatch(why: str) -> PerfOptError:
    return PerfOptError(
        "The recorded expert counts do not fit this run.",
        why=why,
        fix="record the counts from the same model and workload, or choose --routing uniform",
    )


def routing_policy(text: str, phase: str = "prefill") -> RoutingPolicy:
    """The policy named on the command line: `uniform`, `balanced`, `one`, `random`, `random:SEED` or `replay:FILE`."""
    name, _, argument = text.partition(":")
    if name == "uniform" and not argument:
        return UniformRouting()
    if name == "replay" and argument:
        return read_replay(Path(argument), phase)
    if name == "balanced" and not argument:
        return BalancedRouting()
    if name == "one" and not argument:
        return OneExpertRouting()
    if name == "random" and (not argument or argument.isdigit()):
        return RandomRouting(int(argument or 0))
    raise UsageError(
        f"No routing policy {text!r}.",
        why="a routing policy decides how many tokens each expert receives",
        fix="use uniform, balanced, one, random:SEED, or replay:FILE with recorded counts",
    )
