"""Writing into tensors: a ghost has nothing to overwrite; a real tensor may no longer hold the truth afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost
from llm_perf_opt.weightless.recipes import Fresh, SameAs
from llm_perf_opt.weightless.rules.registry import shape_rule, value_rule
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, contiguous_spec, preserved_layout, spec_of_tensor

_WRITES = (
    "index_put_", "_index_put_impl_", "masked_scatter_", "masked_fill_", "scatter_", "scatter_add_", "scatter_reduce_",
    "index_add_", "index_copy_", "index_fill_", "put_", "copy_", "fill_", "zero_", "normal_", "uniform_", "random_",
    "bernoulli_", "clamp_", "clamp_min_", "clamp_max_", "exponential_", "cauchy_", "log_normal_", "geometric_",
    "erfinv_",
)  # fmt: skip


@value_rule(*_WRITES)
def write_integers(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A real integer or boolean target gets the oracle's values for every ghost among the sources."""
    if type(args[0]) is Ghost or args[0].dtype in FLOAT_DTYPES:
        return NotImplemented
    real = [_real(engine, value) for value in args]
    func(*real, **{name: _real(engine, value) for name, value in kwargs.items()})
    return args[0]


def _real(engine: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return engine.materialise(value, "write")
    if isinstance(value, (list, tuple)):
        return [_real(engine, item) for item in value]
    return value


@shape_rule(*_WRITES)
def write_floats(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The target itself. The engine marks a real float target as holding stale values."""
    return SameAs((0,))


@shape_rule("index_put", "_unsafe_index_put", "index_add", "index_copy", "index_fill")
def write_copy(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    spec = args[0].spec if type(args[0]) is Ghost else spec_of_tensor(args[0])
    if not spec.is_float:
        return NotImplemented
    return Fresh(preserved_layout(spec, spec.dtype))


@shape_rule("masked_scatter")
def masked_scatter(engine: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return Fresh(contiguous_spec(torch.broadcast_shapes(args[0].shape, args[1].shape), args[0].dtype))
