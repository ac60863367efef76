"""The same thing at several samples and in several blocks of a loop, as one thing with forms.

A size that is the same in all blocks is a form of the workload. One that is not is a share of an expert, or grows by as
much from block to block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.sweeps.function.fitting import Fitter, Routed
from llm_perf_opt.sweeps.function.form import AFTER_BLOCK, BLOCK, OF_BLOCK, Form, Step, StepKind
from llm_perf_opt.sweeps.function.program.alignment import Parting
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule
from llm_perf_opt.sweeps.function.program.sized import RepeatedItem, Size, SizedKind, SizedMeta, Worded


class SamplePlace(NamedTuple):
    """Where something was seen: the number of the sample, and the block (-1 outside loops)."""

    sample: int
    block: int


_NUMBER = re.compile(r"(\d+)")
Values = Sequence[int]
Text = Callable[[], str]


@dataclass(eq=False)
class SizeForms:
    """Finds forms of what was seen in several places."""

    fitter: Fitter
    _by_samples: dict[tuple[int, ...], Fitter] = field(default_factory=dict, init=False)
    _known: dict[tuple[Any, ...], Form | None] = field(default_factory=dict, init=False)
    _values: dict[Form, dict[SamplePlace, int]] = field(default_factory=dict, init=False)

    def size(self, seen: Sequence[SamplePlace], values: Values, routed: Routed | None, what: Text) -> Size:
        """A number that is the same wherever blocks do not matter."""
        if len(set(values)) == 1:
            return values[0]
        key = tuple(seen), tuple(values), routed
        if key not in self._known:
            self._known[key] = self._found(seen, values, routed)
        form = self._known[key]
        if form is None:
            shown = list(dict.fromkeys(values))[:8]
            raise NoRule(Parting(what=NO_RULE, op=None, text=f"{what()} is {shown} at the samples"))
        return form if form.constant is None else form.constant

    def _found(self, seen: Sequence[SamplePlace], values: Values, routed: Routed | None) -> Form | None:
        # Shares of experts first: at a few samples a plain form may fit them by chance, and be wrong at other points.
        if routed is not None and (form := self._of_expert(seen, values, routed)) is not None:
            return form
        by_sample: dict[int, dict[int, int]] = {}
        for place, value in zip(seen, values, strict=True):
            by_sample.setdefault(place.sample, {})[place.block] = value
        if all(len(set(blocks.values())) == 1 for blocks in by_sample.values()):
            return self._plain({sample: next(iter(blocks.values())) for sample, blocks in by_sample.items()})
        # Different from block to block: a line with one slope for all samples, such as the offset of a chunk.
        steps = {
            (b - a, y - x)
            for blocks in by_sample.values()
            for (a, x), (b, y) in zip(sorted(blocks.items()), sorted(blocks.items())[1:], strict=False)
        }
        slopes = {y // b for b, y in steps if not y % b}
        if len(slopes) != 1 or any(y % b for b, y in steps):
            return None
        slope = slopes.pop()
        firsts = {sample: min(blocks.items()) for sample, blocks in by_sample.items()}
        rest = self._plain({sample: value - slope * block for sample, (block, value) in firsts.items()})
        return None if rest is None else rest + Form.atom(BLOCK) * slope

    def _plain(self, values: Mapping[int, int]) -> Form | None:
        samples = tuple(sorted(values))
        return self._at(samples).dimension(tuple(values[sample] for sample in samples))

    def bytes_of(self, seen: Sequence[SamplePlace], values: Values, routed: Routed | None, what: Text) -> Size:
        """The bytes of a block of memory, in which dimensions are multiplied."""
        by_sample = {place.sample: value for place, value in zip(seen, values, strict=True)}
        if routed is not None and (form := self._bytes_of_expert(seen, values, routed)) is not None:
            return form
        if any(by_sample[place.sample] != value for place, value in zip(seen, values, strict=True)):
            raise NoRule(Parting(what=NO_RULE, op=None, text=f"{what()} is another in each block of a loop"))
        samples = tuple(sorted(by_sample))
        size = self._at(samples).size(tuple(by_sample[sample] for sample in samples))
        if size is None:
            raise NoRule(Parting(what=NO_RULE, op=None, text=f"{what()} is {list(by_sample.values())} at the samples"))
        return size if size.constant is None else size.constant

    def _bytes_of_expert(self, seen: Sequence[SamplePlace], values: Values, routed: Routed) -> Form | None:
        """Bytes for each row of the expert of the block."""
        share = Form.atom(Step(StepKind.SHARE, routed.tokens, (routed.chosen, routed.experts, OF_BLOCK)))
        rows = share.bound(seen[0].block).at(self.fitter.points[seen[0].sample])
        form = share * (values[0] // max(rows, 1))
        return form if len(set(values)) > 1 and self.gives(form, seen, values) else None

    def _at(self, samples: tuple[int, ...]) -> Fitter:
        # An expert's block runs only at samples where the expert has rows; a form is fitted to those alone.
        if len(samples) == len(self.fitter.points):
            return self.fitter
        if samples not in self._by_samples:
            self._by_samples[samples] = replace(self.fitter, points=[self.fitter.points[sample] for sample in samples])
        return self._by_samples[samples]

    def gives(self, form: Form, seen: Sequence[SamplePlace], values: Values) -> bool:
        """Whether a form has these values where they were seen."""
        known = self._values.setdefault(form, {})
        for place, value in zip(seen, values, strict=True):
            if place not in known:
                here = form.bound(place.block) if place.block >= 0 else form
                known[place] = here.at(self.fitter.points[place.sample])
            if known[place] != value:
                return False
        return True

    def _of_expert(self, seen: Sequence[SamplePlace], values: Values, routed: Routed) -> Form | None:
        """Rows of the expert of the block: how many, where they begin and where they end."""
        for kind, expert in ((StepKind.SHARE, OF_BLOCK), (StepKind.OFFSET, OF_BLOCK), (StepKind.OFFSET, AFTER_BLOCK)):
            form = Form.atom(Step(kind, routed.tokens, (routed.chosen, routed.experts, expert)))
            if self.gives(form, seen, values):
                return form
        return None

    def meta(
        self,
        seen: Sequence[SamplePlace],
        metas: Sequence[TensorMeta],
        routed: Routed | None,
        what: str = "a tensor of a call",
    ) -> SizedMeta:
        """A tensor."""
        first = metas[0]
        if any((m.dtype, len(m.shape)) != (first.dtype, len(first.shape)) for m in metas):
            raise NoRule(Parting(what=NO_RULE, op=None, text=f"{what} has other types or ranks"))
        shape = tuple(
            self.size(seen, values, routed, lambda: f"{what}: dimension {dim} of {list(first.shape)}")  # noqa: B023  # used at once
            for dim, values in enumerate(zip(*(m.shape for m in metas), strict=True))
        )
        return SizedMeta(shape, first.dtype, first.device)

    def kind(
        self,
        seen: Sequence[SamplePlace],
        kinds: Sequence[OpKind],
        routed: Routed | None,
        tensors: tuple[Sequence[SizedMeta], Sequence[SizedMeta]] | None = None,
    ) -> SizedKind:
        """An op. Its inputs and outputs are given where one of them is a list over a loop."""
        first = kinds[0]
        parts = zip(*(kind.parts for kind in kinds), strict=True)
        inputs, outputs = tensors or (
            self._tensors(seen, [kind.inputs for kind in kinds], routed, f"{first.name}, an input"),
            self._tensors(seen, [kind.outputs for kind in kinds], routed, f"{first.name}, an output"),
        )
        return SizedKind(
            kind=first,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            arguments=self.json(seen, [kind.arguments for kind in kinds], routed, f"{first.name}, an argument"),
            parts=tuple(self.kind(seen, part, routed) for part in parts),
        )

    def _tensors(
        self, seen: Sequence[SamplePlace], rows: Sequence[Sequence[TensorMeta]], routed: Routed | None, what: str
    ) -> tuple[SizedMeta, ...]:
        return tuple(self.meta(seen, metas, routed, what) for metas in zip(*rows, strict=True))

    def json(self, seen: Sequence[SamplePlace], values: Sequence[Any], routed: Routed | None, what: str) -> Any:
        """A number, or numbers in lists and mappings."""
        first = values[0]
        if all(value == first for value in values):
            return first
        if all(type(value) is int for value in values):
            return self.size(seen, values, routed, lambda: what)
        if all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
            return {key: self.json(seen, [value[key] for value in values], routed, f"{what} ({key})") for key in first}
        is_list = all(type(value) is type(first) and isinstance(value, (list, tuple)) for value in values)
        if is_list and len({len(value) for value in values}) == 1:
            return type(first)(self.json(seen, items, routed, what) for items in zip(*values, strict=True))
        if is_list and all(item == first[0] for value in values for item in value) and all(values):
            times = self.size(seen, [len(value) for value in values], routed, lambda: f"the length of {what}")
            return RepeatedItem(first[0], Form.of(times))
        if all(isinstance(value, str) for value in values):
            return self._worded(seen, [_NUMBER.split(value) for value in values], what)
        raise self._refused(values, what)

    def _worded(self, seen: Sequence[SamplePlace], texts: Sequence[Sequence[str]], what: str) -> Worded:
        """Texts cut into words and numbers."""
        if any(text[::2] != texts[0][::2] for text in texts):
            raise self._refused(["".join(words) for words in texts], what)
        rows = zip(*(map(int, words[1::2]) for words in texts), strict=True)
        numbers = [self.size(seen, row, None, lambda: what) for row in rows]
        return Worded(tuple(chain.from_iterable(zip_longest(texts[0][::2], numbers, fillvalue=""))))

    def _refused(self, values: Sequence[Any], what: str) -> NoRule:
        shown = [str(value)[:60] for value in list(values)[:8]]
        return NoRule(Parting(what=NO_RULE, op=None, text=f"{what} is {shown} at the samples"))
