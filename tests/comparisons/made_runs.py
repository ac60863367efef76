"""Small runs written as they happen: calls inside calls, with shapes and ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llm_perf_opt.comparisons import Comparison
from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind, TensorMeta

Shape = tuple[int, ...]
WIDTH = 4


class MadeRun:
    """A builder with short words. Modules are `path -> class`; tensors are float32 unless told."""

    def __init__(self, classes: Mapping[str, str], *, dtype: str = "float32") -> None:
        self.builder = CallGraphBuilder()
        self.dtype = dtype
        self._tokens = iter(range(1, 1_000_000))
        for path, name in classes.items():
            children = tuple(other for other in classes if other and other.rpartition(".")[0] == path)
            self.builder.module(path, name, children, {})

    def meta(self, shape: Shape, dtype: str | None = None) -> TensorMeta:
        return self.builder.meta(shape, dtype or self.dtype, "cpu")

    def weight(self, name: str, *shape: int) -> None:
        self.builder.parameter(name, self.meta(shape), next(self._tokens), 4, is_buffer=False)

    @contextmanager
    def call(self, path: str, *inputs: Shape, outputs: Sequence[Shape] | None = None) -> Iterator[None]:
        """A forward; what comes out has the shape of what goes in, unless told."""
        self.builder.enter(path, [(self.meta(shape), next(self._tokens)) for shape in inputs])
        yield
        results = inputs if outputs is None else outputs
        self.builder.leave([(self.meta(shape), next(self._tokens)) for shape in results])

    def leaf(self, path: str, *inputs: Shape, outputs: Sequence[Shape] | None = None) -> None:
        with self.call(path, *inputs, outputs=outputs):
            pass

    def mm(self, rows: int) -> None:
        """`[rows, WIDTH] x [WIDTH, WIDTH]`: 2 * rows * WIDTH * WIDTH FLOPs."""
        left, right = self.meta((rows, WIDTH)), self.meta((WIDTH, WIDTH))
        kind = OpKind(name="aten.mm.default", inputs=(left, right), outputs=(left,), output_aliases=(-1,))
        self._run(kind)

    def op(self, name: str, rows: int = 1) -> None:
        """One op of one tensor."""
        meta = self.meta((rows, WIDTH))
        self._run(OpKind(name=name, inputs=(meta,), outputs=(meta,), output_aliases=(-1,)))

    def _run(self, kind: OpKind) -> None:
        tokens = [next(self._tokens) for _ in (*kind.inputs, *kind.outputs)]
        self.builder.op(kind, tokens[:-1], tokens[-1:])

    def graph(self, **header: Any) -> CallGraph:
        full: dict[str, Any] = {
            "model": "made",
            "phase": "prefill",
            "tracer": "weightless",
            "workload": {},
            "stages": [],
            "runtime": {},
            "library_versions": {"torch": "2.13.0"},
        }
        return self.builder.finish(**full | header)


def causes(comparison: Comparison) -> set[tuple[str, str | None]]:
    """`(aspect, cause)` of every finding."""
    return {(str(finding.difference.aspect), finding.cause) for finding in comparison.findings}
