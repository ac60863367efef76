"""Op kinds written by hand, for prices that a person can work out."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta

Shape = tuple[int, ...]


def tensor(*shape: int, dtype: str = "float32") -> TensorMeta:
    return TensorMeta(shape, dtype, "cpu")


def kind(name: str, inputs: dict[str, TensorMeta], *outputs: TensorMeta, **more: Any) -> OpKind:
    """`inputs` by schema name; `arguments`, `output_aliases`, `mutates` and `parts` as keywords."""
    return OpKind(name=name, inputs=tuple(inputs.values()), input_names=tuple(inputs), outputs=outputs, **more)
