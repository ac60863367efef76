"""A packed step: chunks of prefills and decoding sequences in one batch without padding, as serving engines run them.

The rule is proven op by op, from the form of its figure over equal sequences. A figure `a + batch g(new, cached)` is
`a + sum of g(new_i, cached_i)` on a packed batch: what does not grow with sequences, the weights, is there once. A
figure of the tokens alone, as of routed experts, is that figure at all tokens of the step. Ops of any other form
(positions and masks that sequences of one length share) have no packed figure: they are named, with what they may be at
most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.sweeps.function.figures.costs import CostForms, OpFitting
from llm_perf_opt.sweeps.function.fitting import BATCH
from llm_perf_opt.sweeps.function.form import Form, Monomial, Point, Step, step_value
from llm_perf_opt.sweeps.function.search.cells import Cell

NEW_TOKENS, CONTEXT = "new_tokens", "context"
PACKED_FIGURES = ("flops", "vector_flops", "bytes_moved", "launches")


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One sequence of a step: tokens that it computes, and tokens that it has in the cache."""

    new_tokens: int
    cached_tokens: int

    def point(self) -> Point:
        """As a batch of its own."""
        return {BATCH: 1, NEW_TOKENS: self.new_tokens, CONTEXT: self.cached_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOp:
    """Ops of one kind, all runs together: figure -> its value in a packed step."""

    op: str
    runs: int
    figures: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedOp:
    """Ops of one kind with a figure that has no packed meaning. `at_most`: if run for each sequence by itself."""

    op: str
    runs: int
    figure: str  # "bytes_moved", ...
    form: str
    reason: str
    at_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFigures:
    """The figures of a packed step without the ops in `unpacked`, and how many of its bytes sequences share."""

    flops: int
    vector_flops: int
    bytes_moved: int
    launches: int
    shared_bytes: int  # of the bytes: what is read once for the whole step, the weights
    unpriced_ops: int
    unpacked: tuple[UnpackedOp, ...]

    def at_most(self, figure: str) -> int:
        """A figure with all ops, those without a packed figure as if each sequence ran them alone."""
        packed: int = getattr(self, figure)
        return packed + sum(op.at_most for op in self.unpacked if op.figure == figure)


class PackedProgram:
    """The program of a cell with several batches, at sequences of any lengths."""

    def __init__(self, cell: Cell) -> None:
        counts, fitting = Counter(ops_of(cell.program.skeleton).kind), OpFitting(cell.region)
        self._costs = [(kind.kind.name, counts[row], fitting.cost(kind)) for row, kind in enumerate(cell.program.kinds)]

    def by_op(self, sequences: Sequence[PackedSequence]) -> Iterator[PackedOp]:
        """The figures of each kind of op; a figure without packed meaning is not among them."""
        rule = PackingRule(sequences)
        for name, count, cost in self._costs:
            values = {figure: rule.value(getattr(cost, figure)) for figure in PACKED_FIGURES}
            known = {figure: count * value for figure, value in values.items() if value is not None}
            yield PackedOp(op=name, runs=count, figures=known)

    def figures(self, sequences: Sequence[PackedSequence]) -> PackedFigures:
        """The figures of one step over these sequences."""
        rule, totals, unpacked = PackingRule(sequences), Counter[str](), Counter[tuple[str, str, Form]]()
        for name, count, cost in self._costs:
            totals["unpriced_ops"] += count * (cost.unpriced_ops.constant or 0)
            totals["shared_bytes"] += count * _shared(cost, rule)
            for figure in PACKED_FIGURES:
                form: Form = getattr(cost, figure)
                value = rule.value(form)
                if value is None:
                    unpacked[name, figure, form] += count
                else:
                    totals[figure] += count * value
        return PackedFigures(
            **{name: totals[name] for name in (*PACKED_FIGURES, "shared_bytes", "unpriced_ops")},
            unpacked=tuple(
                UnpackedOp(
                    op=name,
                    runs=count,
                    figure=figure,
                    form=str(form),
                    reason=_reason(form),
                    at_most=count * sum(form.at(sequence.point()) for sequence in sequences),
                )
                for (name, figure, form), count in unpacked.items()
            ),
        )


class PackingRule:
    """Forms over equal sequences, at sequences that are not equal."""

    def __init__(self, sequences: Sequence[PackedSequence]) -> None:
        self._counts = Counter(sequences)  # most decoding sequences of a plan are alike
        self._tokens = sum(sequence.new_tokens for sequence in sequences)
        self._matmuls: dict[Monomial, int | None] = {}

    def value(self, form: Form) -> int | None:
        """The figure of the packed step; None where the form has no packed meaning."""
        total = 0
        for monomial, coefficient in form.terms.items():
            value = self._matmul(monomial)
            if value is None:
                return None
            total += coefficient * value
        return total

    def _matmul(self, monomial: Monomial) -> int | None:
        if monomial not in self._matmuls:
            self._matmuls[monomial] = self._found(monomial)
        return self._matmuls[monomial]

    def _found(self, monomial: Monomial) -> int | None:
        steps = [atom for atom in monomial if isinstance(atom, Step)]
        plain = [atom for atom in monomial if isinstance(atom, str)]
        if not monomial:
            return 1
        if plain.count(BATCH) == 1 and not any(_varies_with_batch(step) for step in steps):
            per_sequence = Form({tuple(atom for atom in monomial if atom != BATCH): 1})
            return sum(count * per_sequence.at(sequence.point()) for sequence, count in self._counts.items())
        if sorted(plain) != [*[BATCH] * (len(plain) // 2), *[NEW_TOKENS] * (len(plain) // 2)]:
            return None
        value: int = self._tokens ** (len(plain) // 2)
        for step in steps:
            inside = self.value(step.of) if _varies_with_batch(step) else None
            if inside is None:
                return None
            value *= step_value(step.kind, inside, step.constants)
        return value


def _varies_with_batch(step: Step) -> bool:
    return any(atom == BATCH or (isinstance(atom, Step) and _varies_with_batch(atom)) for atom in step.of.atoms())


def _shared(cost: CostForms, rule: PackingRule) -> int:
    """Bytes that do not grow with every sequence: weights, including the weights of touched experts."""
    terms = cost.bytes_moved.terms.items()
    shared = Form.sum_of(
        (term, coefficient) for term, coefficient in terms if not any(isinstance(a, str) for a in term)
    )
    return rule.value(shared) or 0


def _reason(form: Form) -> str:
    batches = [monomial.count(BATCH) for monomial in form.terms if monomial]
    if not any(batches) and not any(isinstance(atom, Step) for atom in form.atoms()):
        return "sequences of one length share it: there is no batch in it"
    if any(count > 1 for count in batches):
        return "it grows with the square of the batch"
    return "a part of it is shared by sequences of one length"
