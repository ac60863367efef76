"""Two observations held side by side: the same calls, in the same order, with the same tensors?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .observation import Observation, ObservedCall, TensorSpec

EXAMPLES_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where a weightless run and a real run of the same model part.

    The n-th call of a module is compared with the n-th call of the same module. `calls_unpaired` counts the calls
    that only one of the runs made; `calls_differ` counts them and every call with a different shape or dtype.
    """

    calls_real: int
    calls_weightless: int
    calls_differ: int
    calls_unpaired: int
    calls_shape_differs: int
    calls_dtype_differs: int
    counts_equal: bool
    sequence_equal: bool
    result_equal: bool
    differing_paths: frozenset[str]
    examples: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Equal in call counts, order, every input and output tensor of every call, and the final result."""
        return self.sequence_equal and self.result_equal and not self.differing_paths


def compare(real: Observation, weightless: Observation) -> Comparison:
    """Compare `weightless` with `real`, call by call."""
    found: list[_Difference] = []
    for path, first, second in _pairs(real, weightless):
        if (difference := _difference(path, first, second)) is not None:
            found.append(difference)
    return Comparison(
        calls_real=len(real.calls),
        calls_weightless=len(weightless.calls),
        calls_differ=len(found),
        calls_unpaired=sum(each.unpaired for each in found),
        calls_shape_differs=sum(each.shape for each in found),
        calls_dtype_differs=sum(each.dtype for each in found),
        counts_equal=Counter(real.paths) == Counter(weightless.paths),
        sequence_equal=real.paths == weightless.paths,
        result_equal=real.result == weightless.result,
        differing_paths=frozenset(each.path for each in found),
        examples=tuple(f"{each.path or '(model)'}: {each.text}" for each in found[:EXAMPLES_KEPT]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    path: str
    text: str
    unpaired: bool = False
    shape: bool = False
    dtype: bool = False


def _difference(path: str, real: ObservedCall | None, weightless: ObservedCall | None) -> _Difference | None:
    if real is None or weightless is None:
        where = "real" if weightless is None else "weightless"
        return _Difference(path=path, text=f"a call only in the {where} run", unpaired=True)
    shape, dtype = _shapes(real) != _shapes(weightless), _dtypes(real) != _dtypes(weightless)
    if not (shape or dtype):
        return None
    text = f"real {_signature(real)}, weightless {_signature(weightless)}"
    return _Difference(path=path, text=text, shape=shape, dtype=dtype)


def _pairs(
    real: Observation, weightless: Observation
) -> Iterator[tuple[str, ObservedCall | None, ObservedCall | None]]:
    waiting: dict[str, list[ObservedCall]] = defaultdict(list)
    for call in reversed(weightless.calls):
        waiting[call.path].append(call)
    for call in real.calls:
        partners = waiting[call.path]
        yield call.path, call, partners.pop() if partners else None
    for path, left in waiting.items():
        for call in reversed(left):
            yield path, None, call


def _shapes(call: ObservedCall) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [shape for _, shape in call.inputs], [shape for _, shape in call.outputs or ()]


def _dtypes(call: ObservedCall) -> tuple[list[str], list[str]]:
    return [dtype for dtype, _ in call.inputs], [dtype for dtype, _ in call.outputs or ()]


def _signature(call: ObservedCall) -> str:
    return f"{_tensors(call.inputs)} -> {_tensors(call.outputs or ())}"


def _tensors(specs: tuple[TensorSpec, ...]) -> str:
    shown = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in specs[:4])
    return f"({shown}{', ...' if len(specs) > 4 else ''})"
