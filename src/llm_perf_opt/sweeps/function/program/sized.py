"""Ops and tensors with sizes that are forms, and what they are in one block of a loop and at one point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm_perf_opt.core.callgraph.records import Json, OpKind, TensorMeta
from llm_perf_opt.sweeps.function.form import Form, Point

Size = int | Form


@dataclass(frozen=True, slots=True)
class RepeatedItem:
    """A list of one thing this many times: what a header says of each sequence."""

    item: Json
    times: Form


@dataclass(frozen=True, slots=True)
class Worded:
    """A text with numbers in it: what a header says of all sequences."""

    parts: tuple[str | Size, ...]


@dataclass(frozen=True, slots=True)
class SizedMeta:
    """A tensor with dimensions that may be forms."""

    shape: tuple[Size, ...]
    dtype: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizedKind:
    """An op with dimensions and arguments that may be forms; `kind` is the op at the first sample."""

    kind: OpKind
    inputs: tuple[SizedMeta, ...]
    outputs: tuple[SizedMeta, ...]
    arguments: Mapping[str, Json]  # ints may be forms, at any depth
    parts: tuple[SizedKind, ...] = ()

    def at(self, point: Point) -> OpKind:
        """The op at one point."""
        return Numbers(point).kind(self)

    def leaves(self) -> tuple[Any, ...]:
        """All that may differ between two runs of one op, in one order: sizes and arguments, its parts' too."""
        sizes = (size for meta in (*self.inputs, *self.outputs) for size in meta.shape)
        return (*sizes, *_leaves_of(self.arguments), *(leaf for part in self.parts for leaf in part.leaves()))

    def forms(self) -> Iterator[Form]:
        """Every form in it, its arguments' and parts' too."""
        for meta in (*self.inputs, *self.outputs):
            yield from (size for size in meta.shape if isinstance(size, Form))
        yield from _forms_in(self.arguments)
        for part in self.parts:
            yield from part.forms()


def kind_varies(kind: SizedKind) -> bool:
    """Whether an op has other sizes in each block of a loop."""
    return any(form.varies_by_block for form in kind.forms())


def meta_varies(meta: SizedMeta) -> bool:
    """Whether a tensor has other sizes in each block of a loop."""
    return any(isinstance(size, Form) and size.varies_by_block for size in meta.shape)


def in_block(size: Size, block: int) -> Size:
    """A size in one block of a loop; -1: outside loops."""
    if not isinstance(size, Form) or block < 0 or not size.varies_by_block:
        return size
    form = size.bound(block)
    return form if form.constant is None else form.constant


def meta_in_block(meta: SizedMeta, block: int) -> SizedMeta:
    """A tensor in one block of a loop."""
    return SizedMeta(tuple(in_block(size, block) for size in meta.shape), meta.dtype, meta.device)


def kind_in_block(kind: SizedKind, block: int) -> SizedKind:
    """An op in one block of a loop."""
    return replace(
        kind,
        inputs=tuple(meta_in_block(meta, block) for meta in kind.inputs),
        outputs=tuple(meta_in_block(meta, block) for meta in kind.outputs),
        arguments=_json_in_block(kind.arguments, block),
        parts=tuple(kind_in_block(part, block) for part in kind.parts),
    )


def _json_in_block(value: Any, block: int) -> Any:
    match value:
        case Form():
            return in_block(value, block)
        case Mapping():
            return {key: _json_in_block(item, block) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_json_in_block(item, block) for item in value)
        case _:
            return value


def _forms_in(value: Any) -> Iterator[Form]:
    if isinstance(value, Form):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _forms_in(item)


def _leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves_of(item)
    elif isinstance(value, RepeatedItem):
        yield from (*_leaves_of(value.item), value.times)
    elif isinstance(value, Worded):
        yield from value.parts
    else:
        yield value


class Numbers:
    """Forms turned into numbers at one point; each form once."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._known: dict[Form, int] = {}

    def __call__(self, size: Size) -> int:
        """A size as a number."""
        if isinstance(size, int):
            return size
        known = self._known.get(size)
        if known is None:
            self._known[size] = known = size.at(self._point)
        return known

    def leaves(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The leaves of an op with numbers for forms."""
        return tuple([self(leaf) if isinstance(leaf, Form) else leaf for leaf in leaves])

    def meta(self, meta: SizedMeta) -> TensorMeta:
        """A tensor."""
        shape = tuple([size if isinstance(size, int) else self(size) for size in meta.shape])
        return TensorMeta(shape, meta.dtype, meta.device)

    def kind(self, sized: SizedKind) -> OpKind:
        """An op."""
        kind = sized.kind
        return OpKind(
            name=kind.name,
            inputs=tuple([self.meta(meta) for meta in sized.inputs]),
            outputs=tuple([self.meta(meta) for meta in sized.outputs]),
            arguments=self.json(sized.arguments),
            input_names=kind.input_names,
            output_aliases=kind.output_aliases,
            mutates=kind.mutates,
            parts=tuple([self.kind(part) for part in sized.parts]),
        )

    def json(self, value: Any) -> Any:
        """Arguments, or a header."""
        match value:
            case Form():
                return self(value)
            case RepeatedItem():
                return [self.json(value.item)] * self(value.times)
            case Worded():
                return "".join(part if isinstance(part, str) else str(self(part)) for part in value.parts)
            case Mapping():
                return {key: self.json(item) for key, item in value.items()}
            case list() | tuple():
                return type(value)(self.json(item) for item in value)
            case _:
                return value
