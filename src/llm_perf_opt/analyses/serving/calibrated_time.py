"""How long the forwards of a serving engine take on a machine that was calibrated: the same kernels, its own tables.

A calibration knows plain PyTorch ops. A product is a linear map, attention the fused op on one read of keys for each
head, a vector kernel a copy of its bytes, and the routed experts of a layer are two products for each expert that gets
rows. Between two kernels stands a module call. What an engine does on the host beside them (preparing inputs, choosing
tokens) is in none of the tables: on small models that is most of a step, and measured steps must correct it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.kernels.times import Origin
from llm_perf_opt.analyses.serving.engine_step import VALUE_BYTES, EngineWork, VectorWork, forward_kernels
from llm_perf_opt.analyses.serving.engine_time import KINDS, AskedForward, ForwardTime, WorkKind
from llm_perf_opt.analyses.time.calibrated_rates import time_at
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.ops.grouped_experts import expected_distinct
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, ProductShape
from llm_perf_opt.ops.op import CalibratedWork
from llm_perf_opt.ops.table import MODULE_CALL, calibrated_work_of


class CalibratedTimer:
    """The forwards of an engine on the machine of a calibration, in one dtype. Links between machines are unknown."""

    def __init__(self, calibration: Calibration, dtype: str) -> None:
        self._calibration, self._dtype = calibration, dtype
        self._known: dict[EngineWork, float | None] = {}

    def times(self, asked: Sequence[AskedForward]) -> list[ForwardTime]:
        """The time of each forward."""
        return [self._time(one) for one in asked]

    def _time(self, asked: AskedForward) -> ForwardTime:
        by_kind, kernels, unknown = Counter[WorkKind](), 0, 0
        for work, count in forward_kernels(asked.blocks, asked.forward, asked.plan):
            kernels += count
            if work not in self._known:
                self._known[work] = self._seconds(self._works(work))
            if (seconds := self._known[work]) is None:
                unknown += count
            else:
                kind = WorkKind.VECTOR if isinstance(work, VectorWork) else KINDS[type(work)]
                by_kind[kind] += count * seconds  # type: ignore[assignment]
        found = sum(by_kind.values())
        gaps = kernels * (self._seconds((MODULE_CALL,)) or 0.0)
        return ForwardTime(
            by_kind={**by_kind, WorkKind.GAPS: gaps},
            by_origin={Origin.INTERPOLATED: found},
            kernels=kernels,
            unknown=unknown,
        )

    def _seconds(self, works: Sequence[CalibratedWork]) -> float | None:
        """All of them; None: one was not measured, or there are none to ask for."""
        total = 0.0
        for work in works:
            table = self._calibration.table(work.family, work.dtype)
            if table is None or not work.sizes.keys() >= set(table.axes):
                return None
            total += work.times * time_at(table, work.sizes).median_s
        return total if works else None

    def _works(self, work: EngineWork) -> tuple[CalibratedWork, ...]:
        if isinstance(work, Collective):
            return ()
        if isinstance(work, VectorWork):
            elements = work.bytes_moved / (2 * VALUE_BYTES)  # read and written
            return (CalibratedWork(family="copy", dtype=self._dtype, sizes={"elements": elements}),)
        return tuple(one for kind in self._ops(work) for one in calibrated_work_of(kind) or ())

    def _ops(self, work: ProductShape | AttentionShape | ExpertsShape) -> Iterator[OpKind]:
        if isinstance(work, ProductShape):
            yield from [self._linear(work.rows, work.columns, work.depth)] * work.count
        elif isinstance(work, AttentionShape):
            keys = min(work.keys, work.window or work.keys)
            query, key, value = (
                self._meta(work.sequences, work.heads, tokens, width)
                for tokens, width in ((work.queries, work.width), (keys, work.width), (keys, work.value_width))
            )
            yield OpKind(name="aten.scaled_dot_product_attention.default", inputs=(query, key, value), outputs=(query,))
        else:
            touched = max(1, round(expected_distinct(work.experts, work.chosen, work.tokens)))
            rows = max(1, round(work.tokens * work.chosen / touched))
            yield from [self._linear(rows, 2 * work.inner, work.hidden)] * touched
            yield from [self._linear(rows, work.hidden, work.inner)] * touched

    def _linear(self, rows: int, columns: int, depth: int) -> OpKind:
        inputs, weight, result = self._meta(rows, depth), self._meta(columns, depth), self._meta(rows, columns)
        return OpKind(name="aten.linear.default", inputs=(inputs, weight), outputs=(result,))

    def _meta(self, *shape: int) -> TensorMeta:
        return TensorMeta(shape=shape, dtype=self._dtype, device="cpu")
