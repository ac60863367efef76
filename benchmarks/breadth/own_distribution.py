"""A model spread over ranks by transformers alone, in the order of `from_pretrained`: build, spread, tie weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def distributed_model(build: Callable[[], Any], sizes: Mapping[str, int]) -> Any:
    """The share of this rank. `sizes` are those of transformers' `DistributedConfig`, `tp_size` and so on."""
    from transformers import initialization
    from transformers.distributed import DistributedConfig

    with initialization.no_tie_weights():
        whole = build()
    kind = type(whole)
    settled, _, meshes = kind.prepare_distribute_model(DistributedConfig(**sizes))
    model = kind.maybe_distribute_model(whole, settled, meshes)
    model.tie_weights(recompute_mapping=False)
    return model
