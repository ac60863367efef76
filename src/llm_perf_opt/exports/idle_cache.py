"""A layer is handed the cache of all layers: tensors of the others are no inputs of it and are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.execution.twins import meta_twin
from llm_perf_opt.exports.failure import EXPORT_ERRORS
from llm_perf_opt.exports.meta_autocast import autocast_knows_meta
from llm_perf_opt.exports.part_under_test import PartUnderTest
from llm_perf_opt.exports.tensor_signature import cached_tensors


def without_idle_cache(subject: PartUnderTest) -> PartUnderTest:
    """The same part with only those tensors of a cache as inputs that an eager run on the meta device touches."""
    held = cached_tensors(subject.call)
    if not held:
        return subject
    twin = meta_twin(subject.call)
    touched = _Touched()
    try:
        with torch.no_grad(), autocast_knows_meta(), touched:
            twin(*twin.given)
    except EXPORT_ERRORS:
        return subject  # the export will fail as well, and say where
    idle = {place for place in held if id(twin.given[place]) not in touched.ids}
    subject.call.leave_out(idle)
    kept = tuple(name for place, name in enumerate(subject.names) if place not in idle)
    told = (f"{len(idle)} tensors of the cache that it never reads left out",) if idle else ()
    return replace(subject, names=kept, adaptations=(*subject.adaptations, *told))


class _Touched(TorchDispatchMode):
    """Identities of every tensor that an op was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ids |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        return func(*args, **(kwargs or {}))
