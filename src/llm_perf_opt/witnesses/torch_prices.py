"""What torch's own FLOP counter makes of a piece of work: figures by operator, and silence where it has no formula.

Fused ops that it has no formula for get one of `torch_formulas`, or most experts and much attention would have but one
source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch.utils.flop_counter import FlopCounterMode, flop_registry

from llm_perf_opt.execution.nested_tensors import tensors_in
from llm_perf_opt.execution.op_watch import OpWatch
from llm_perf_opt.execution.silence import silenced
from llm_perf_opt.testimony import BlindSpot, OperatorFigure, family_of
from llm_perf_opt.weightless import Engine
from llm_perf_opt.witnesses.product_shapes import cause_of_silence, flops_of, may_do_matrix_work
from llm_perf_opt.witnesses.torch_formulas import extra_formulas


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
            self._causes[name] = cause_of_silence(name)
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
