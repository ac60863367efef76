"""How long the forwards of a serving engine take on a machine that was calibrated: the same kernels, its own tables.

A calibration knows plain PyTorch ops. A matmul is a linear map, attention the fused op on one read of keys for each
head, a vector kernel a copy of its bytes, and the routed experts of a layer are two matmuls for each expert that gets
rows. Between two kernels there is a module call. What else an engine does on the host (preparing inputs, choosing
tokens) is in none of the tables: on small models that is most of a step, and measured steps must correct it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.ops.grouped_experts import touched_experts
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.kernels.times import TimeOrigin
from llm_perf_opt.timing.rates import OpRun, Overhead, RateTime
from llm_perf_opt.timing.step.engine_step import VALUE_BYTES
from llm_perf_opt.timing.step.engine_time import ForwardTime, RankForward, WorkKind, kind_of


class CalibratedTimer:
    """The forwards of an engine on the machine of a calibration, in one dtype. Links between machines are unknown."""

    def __init__(self, calibration: Calibration, dtype: str) -> None:
        self._rates, self._dtype = CalibratedRates(calibration), dtype
        self._known: dict[Kernel, float | None] = {}

    def times(self, forwards: Sequence[RankForward]) -> list[ForwardTime]:
        """The time of each forward."""
        return [self._time(forward) for forward in forwards]

    def _time(self, forward: RankForward) -> ForwardTime:
        by_kind, kernels, unknown = Counter[WorkKind](), 0, 0
        for kernel, count in forward.kernels():
            kernels += count
            if kernel not in self._known:
                self._known[kernel] = self._seconds(kernel)
            if (seconds := self._known[kernel]) is None:
                unknown += count
            else:
                by_kind[kind_of(kernel)] += count * seconds  # type: ignore[assignment]
        kernel_seconds = sum(by_kind.values())
        gaps = kernels * _expected_s(self._rates.duration(Overhead.MODULE_CALL) or ())
        return ForwardTime(
            by_kind={**by_kind, WorkKind.GAPS: gaps},
            by_origin={TimeOrigin.INTERPOLATED: kernel_seconds},
            kernels=kernels,
            unknown=unknown,
        )

    def _seconds(self, kernel: Kernel) -> float | None:
        """As the calibrated prediction prices the ops; None: one of them was not measured."""
        if kernel.kind is KernelKind.COMMUNICATION:
            return None
        total = 0.0
        for kind in self._ops(kernel):
            if (times := self._rates.duration(OpRun(kind))) is None:
                return None
            total += _expected_s(times)
        return total

    def _ops(self, kernel: Kernel) -> Iterator[OpKind]:
        work = kernel.shape
        if kernel.kind is KernelKind.VECTOR:
            values = self._meta(max(1, round(kernel.bytes_moved / (2 * VALUE_BYTES))))  # read and written
            yield OpKind(name="aten.copy.default", inputs=(values, values), outputs=(values,))
        elif isinstance(work, MatmulShape):
            yield from [self._linear(work.rows, work.columns, work.depth)] * work.count
        elif isinstance(work, AttentionShape):
            keys = min(work.keys, work.window or work.keys)
            query, key, value = (
                self._meta(work.sequences, work.heads, tokens, width)
                for tokens, width in ((work.queries, work.width), (keys, work.width), (keys, work.value_width))
            )
            yield OpKind(name="aten.scaled_dot_product_attention.default", inputs=(query, key, value), outputs=(query,))
        elif isinstance(work, ExpertsShape):
            touched = touched_experts(work.experts, work.chosen, work.tokens)
            rows = max(1, round(work.tokens * work.chosen / touched))
            yield from [self._linear(rows, (2 if work.is_gated else 1) * work.inner, work.hidden)] * touched
            yield from [self._linear(rows, work.hidden, work.inner)] * touched

    def _linear(self, rows: int, columns: int, depth: int) -> OpKind:
        inputs, weight, result = self._meta(rows, depth), self._meta(columns, depth), self._meta(rows, columns)
        return OpKind(name="aten.linear.default", inputs=(inputs, weight), outputs=(result,))

    def _meta(self, *shape: int) -> TensorMeta:
        return TensorMeta(shape=shape, dtype=self._dtype, device="cpu")


def _expected_s(times: Sequence[RateTime]) -> float:
    return sum(time.band.expected or 0.0 for time in times)
