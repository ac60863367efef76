"""The shapes of kernels at many points: sizes that are forms, and everything else as it is at every point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from llm_perf_opt.analyses.function.figures.costs import Fit
from llm_perf_opt.analyses.function.form import Form, Point
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, KernelShape, ProductShape

_TYPES = (ProductShape, AttentionShape, ExpertsShape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeForms:
    """A shape of the type at `type_place`; `sizes` are its integers, `fixed` its other fields."""

    type_place: int
    sizes: tuple[tuple[str, Form], ...]
    fixed: tuple[tuple[str, object], ...]

    def at(self, point: Point) -> KernelShape:
        """The shape at one point."""
        values: dict[str, Any] = {**dict(self.fixed), **{name: form.at(point) for name, form in self.sizes}}
        return _TYPES[self.type_place](**values)


def shape_forms(shapes: Sequence[KernelShape | None], fit: Fit) -> ShapeForms | None:
    """One shape at several points; None: there is none, they are of several types, or a size is no form."""
    kind = type(shapes[0])
    if kind not in _TYPES or any(type(shape) is not kind for shape in shapes):
        return None
    sizes: list[tuple[str, Form]] = []
    fixed: list[tuple[str, object]] = []
    for name in (one.name for one in fields(_TYPES[_TYPES.index(kind)])):
        values = tuple(getattr(shape, name) for shape in shapes)
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            form = fit(values)
            if form is None:
                return None
            sizes.append((name, form))
        elif len(set(values)) == 1:
            fixed.append((name, values[0]))
        else:
            return None
    return ShapeForms(type_place=_TYPES.index(kind), sizes=tuple(sizes), fixed=tuple(fixed))
