"""The forwards of the recordings in `tests/facts/gpu_traces`, traced without weights as the recorded release ran them.

The recordings are of an older transformers. Two of its habits change which kernels run. OWLv2 scaled the queries, not
the scores, and copied queries, keys and values head by head. Attention by `scaled_dot_product_attention` got copies of
its operands where a mask was given, and a cache kept the first keys without copying them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from tests.analyses.join.traced_models import CONFIGS, traced

FORWARDS = {"owlv2-large": 5}  # in the recorded step, one for each of the texts; 1 where not listed


@cache
def recorded_graph(model: str) -> CallGraph:
    """The call graph of one recorded forward."""
    if model == "owlv2-large":
        with _queries_scaled():
            traced.cache_clear()
            graph = traced(model)
        traced.cache_clear()
        return graph
    if model == "qwen1.5-0.5b":
        return _qwen()
    return traced(model)


@contextmanager
def _queries_scaled() -> Iterator[None]:
    """Attention of OWLv2 as in the recorded release."""
    import torch
    from transformers.models.owlv2.modeling_owlv2 import Owlv2Attention

    def forward(
        self: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        batch, tokens, width = hidden_states.shape

        def heads(values: torch.Tensor) -> torch.Tensor:
            split = values.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2).contiguous()
            return split.view(batch * self.num_heads, tokens, self.head_dim)

        query = heads(self.q_proj(hidden_states) * self.scale)
        key, value = heads(self.k_proj(hidden_states)), heads(self.v_proj(hidden_states))
        scores = torch.bmm(query, key.transpose(1, 2))
        if attention_mask is not None:
            scores = scores.view(batch, self.num_heads, tokens, tokens) + attention_mask
            scores = scores.view(batch * self.num_heads, tokens, tokens)
        mixed = torch.bmm(torch.nn.functional.softmax(scores, dim=-1), value)
        mixed = mixed.view(batch, self.num_heads, tokens, self.head_dim).transpose(1, 2)
        return self.out_proj(mixed.reshape(batch, tokens, width)), None

    with mock.patch.object(Owlv2Attention, "forward", forward):
        yield


def _qwen() -> CallGraph:
    """Without a cache, which did not copy; operands of attention copied, as with a mask at that time."""
    import torch
    from transformers import Qwen2Config, Qwen2Model
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def contiguous(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(module, query.contiguous(), key.contiguous(), value.contiguous(), *args, **kwargs)

    sizes = {
        name: value for name, value in CONFIGS["qwen1.5-0.5b"].items() if name not in ("architectures", "model_type")
    }
    with torch.device("meta"):
        model = Qwen2Model(Qwen2Config(**sizes, attn_implementation="sdpa")).to(torch.bfloat16).eval()
    tokens = torch.zeros(16, 559, dtype=torch.long)
    with mock.patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {"sdpa": contiguous}):
        return lpo.trace(model, kwargs={"input_ids": tokens, "use_cache": False}).graphs[0]
