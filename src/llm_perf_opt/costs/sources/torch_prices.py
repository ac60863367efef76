"""What torch's own FLOP counter makes of a piece of work, and formulas for the ops that it has none for.

They fill the blind spots of a source, never its figure.

Attention gets torch's own formula, which it keeps for the CUDA kernels alone. A grouped matmul is counted group by
group, from where the offsets say that each ends: the price list of the trace goes by shapes, and knows no group.

Fused ops that it has no formula for get one of `extra_formulas`, or most experts and much attention would have but one
source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_flop_count

from llm_perf_opt.core.source_figures import BlindSpot, OperatorFigure, WorkFamily, family_of, operator_name
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.twins import tensors_in
from llm_perf_opt.weightless import Engine, Ghost

Shape = Sequence[int]

_CAUSES = {WorkFamily.ATTENTION: "fused-attention-uncounted", WorkFamily.GROUPED: "grouped-matmul-uncounted"}
_RECURRENT = ("lstm", "gru", "rnn")
_HARMLESS_NAMESPACES = ("aten.", "prim.", "prims.")


def does_matrix_work(operator: str) -> bool:
    """Whether an op of this name multiplies matrices; a recurrent layer does so inside."""
    is_recurrent = any(word in _RECURRENT for word in operator_name(operator).split("_"))
    return is_recurrent or family_of(operator) is not WorkFamily.OTHER


def may_do_matrix_work(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """By its name, or because it is of another namespace and touches float tensors: such an op may do anything."""
    name = str(func)
    if does_matrix_work(name):
        return True
    return not name.startswith(_HARMLESS_NAMESPACES) and any(tensor.is_floating_point() for tensor in tensors)


def plain_values(tensor: torch.Tensor) -> list[int]:
    """The values of a small real tensor, read without any mode noticing."""
    with _disable_current_modes():
        return [int(value) for value in tensor.tolist()]


def cause_of_gap(operator: str) -> str:
    """The name under which the ledger knows that a source has no figure for this op."""
    return _CAUSES.get(family_of(operator), "op-without-formula")


def flops_of(operator: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int | None:
    """Two per multiply-add, from the shapes of all tensor arguments in order; None for an op that is not known here."""
    formula = _FORMULAS.get(operator_name(operator))
    if formula is None and family_of(operator) is WorkFamily.ATTENTION:
        formula = _attention
    return None if formula is None else formula(inputs, outputs)


def _attention(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Every query against every key, then the weighted sum of values; a causal mask is not halved."""
    query, key, value = inputs[:3]
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _grouped(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    left, right = inputs[:2]
    if len(left) == 2 and len(right) == 2:  # the summed dimension is split between the groups
        return 2 * left[0] * left[1] * right[1]
    return 2 * math.prod(outputs[0]) * left[-1]


def _matmul(position: int) -> Callable[[Sequence[Shape], Sequence[Shape]], int]:
    def flops(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        return 2 * math.prod(outputs[0]) * inputs[position][-1]

    return flops


def _batch_summed(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return 2 * math.prod(outputs[0]) * inputs[1][0] * inputs[1][-1]


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return 2 * math.prod(outputs[0]) * math.prod(inputs[1][1:])


def _recurrent(leading: int) -> Callable[[Sequence[Shape], Sequence[Shape]], int]:
    """Every weight matrix meets every step of every sample once; `leading` arguments are no weights."""

    def flops(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        weights = [math.prod(shape) for shape in inputs[leading:] if len(shape) == 2]
        return 2 * math.prod(inputs[0][:-1]) * sum(weights)

    return flops


_FORMULAS: dict[str, Callable[[Sequence[Shape], Sequence[Shape]], int]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "linear", "mv", "dot", "vdot", "inner", "int_mm"), _matmul(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _matmul(1)),
    **dict.fromkeys(("grouped_mm", "scaled_grouped_mm", "grouped_mm_fallback"), _grouped),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(
        ("lstm", "gru", "rnn_tanh", "rnn_relu", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent(2)
    ),
    "lstm_cell": _recurrent(3),
    "addbmm": _batch_summed,
}


_ATTENTION = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
_GROUPED = ("aten._grouped_mm", "transformers.grouped_mm_fallback")


def attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Torch's formula on four dimensions: whatever precedes the heads is the batch, and shared heads work for each."""
    result = out_shape[0] if isinstance(out_shape[0], (tuple, list, torch.Size)) else out_shape
    batch, heads = math.prod(result[:-3]), (1, *result)[-3]
    shapes = [(batch, heads, *shape[-2:]) for shape in (query, key, value)]
    return int(sdpa_flop_count(*shapes))


def grouped_flops(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, out_val: Any = None, **__: Any
) -> int:
    """Two per multiply-add of each group's own matmul; without values in the offsets, as if no row were left over."""
    sizes = _group_sizes(offs)
    if left.ndim == right.ndim == 3:
        return 2 * left.numel() * right.shape[-1]
    split = left.shape[-1] if left.ndim == right.ndim else left.shape[0] if left.ndim == 2 else right.shape[-1]
    taken = split if sizes is None else sum(sizes)
    if left.ndim == right.ndim:  # the summed dimension is split
        return 2 * left.shape[0] * right.shape[1] * taken
    return 2 * left.shape[-1] * taken * (right.shape[-1] if left.ndim == 2 else left.shape[-2])


grouped_flops._get_raw = True  # type: ignore[attr-defined]  # it wants tensors, since shapes do not tell the groups


def _group_sizes(offsets: torch.Tensor | None) -> list[int] | None:
    if offsets is None or type(offsets) is Ghost:
        return None
    ends = plain_values(offsets)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def extra_formulas() -> dict[Any, Callable[..., int]]:
    """Op -> formula, of those that this torch has no formula for and that exist by now."""
    wanted: dict[str, Callable[..., int]] = {f"aten.{name}": attention_flops for name in _ATTENTION}
    wanted |= dict.fromkeys(_GROUPED, grouped_flops)
    priced = {_packet(name): formula for name, formula in wanted.items()}
    return {packet: formula for packet, formula in priced.items() if packet is not None and packet not in flop_registry}


def _packet(name: str) -> Any:
    """The op of that name, or None: a library registers its own when it is first imported."""
    namespace, _, bare = name.partition(".")
    return getattr(getattr(torch.ops, namespace), bare, None)


class Tally:
    """Figures and silences by operator."""

    def __init__(self, formulas: Collection[Any] = flop_registry) -> None:
        self._formulas = formulas
        self.flops: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._causes: dict[str, str] = {}
        self._unknown: set[str] = set()

    def on_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An op ran that the counter did not split up any further."""
        packet = getattr(func, "_overloadpacket", func)  # a higher-order op is registered itself
        name = str(packet)
        if packet in self._formulas:
            self.calls[name] += 1
            return
        tensors = [*tensors_in(list(args)), *tensors_in(dict(kwargs))]
        if may_do_matrix_work(func, tensors):
            inputs, outputs = ([tuple(tensor.shape) for tensor in group] for group in (tensors, tensors_in(output)))
            flops = flops_of(name, inputs, outputs)
            self.calls[name] += 1
            self._causes[name] = cause_of_gap(name)
            self._left_out[name] += flops or 0
            self._unknown.update({name} if flops is None else ())

    def add(self, other: Tally, times: int) -> None:
        """The figures of something that happened `times` times."""
        for mine, theirs in ((self.flops, other.flops), (self.calls, other.calls), (self._left_out, other._left_out)):
            mine.update({name: count * times for name, count in theirs.items()})
        self._causes |= other._causes
        self._unknown |= other._unknown

    def operators(self) -> tuple[OperatorFigure, ...]:
        """The counted ones, then those that were seen without a figure."""
        return tuple(
            OperatorFigure(name=name, family=family_of(name), flops=self.flops.get(name), calls=self.calls[name])
            for name in (*self.flops, *self._causes)
        )

    def blind_spots(self) -> tuple[BlindSpot, ...]:
        """One per operator that did matrix work without a figure."""
        return tuple(
            BlindSpot(
                cause=cause,
                operator=name,
                calls=self.calls[name],
                flops=None if name in self._unknown else self._left_out[name],
            )
            for name, cause in self._causes.items()
        )


def count(engine: Engine, work: Callable[[], object]) -> Tally:
    """What the counter says when `work` runs under the engine."""

    def counted() -> Tally:
        extra = extra_formulas()
        tally = Tally({*flop_registry, *extra})
        with OpWatch(tally.on_op), FlopCounterMode(display=False, custom_mapping=extra) as counter, silenced():
            work()
        flops = counter.get_flop_counts().get("Global", {})
        tally.flops.update({str(operator): figure for operator, figure in flops.items()})
        return tally

    return engine.run(counted)
