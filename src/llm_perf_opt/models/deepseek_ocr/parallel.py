"""The model as one rank of a plan holds it: built whole, then cut down in place, whoever wrote its code.

Parameters become the rank's shards and forwards are wrapped; no file is changed. It fits the blueprint and the released
code, which have the same names. The plan is the usual one: q, k, v, gate and up by columns, o and down by rows with one
all-reduce behind, the embedding by rows of the vocabulary, the head by columns with an all-gather. A block of experts
sums routed and shared ones on each rank first, so that one all-reduce serves both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan, layer_pattern
from llm_perf_opt.harness.module_calls import unwatch
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.ranks import Shares, share_views, splits_heads

MIXTURE = "DeepseekV2MoE"  # the class of a block of experts, in both codes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """The place of this rank among `parts`, and the group of all ranks that sum or gather together."""

    index: int
    parts: int
    group: Any

    def reduced(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        dist.all_reduce(partial, group=self.group)
        return partial

    def gathered(self, columns: Tensor) -> Tensor:
        """The last dimension of all ranks, side by side."""
        return all_gathered(columns, self.group).view(self.parts, *columns.shape).movedim(0, -2).flatten(-2)


def spread_model(model: Any, plan: ParallelPlan, config: DeepSeekOcrConfig, *, are_views_split: bool) -> Any:
    """Leave of a whole model the shards of the rank that `torch.distributed` says this process is."""
    group = dist.new_group(group_desc="mesh_tp")
    part = RankPart(index=dist.get_rank(group), parts=plan.tp, group=group)
    _split_embedding(model.model.embed_tokens, part)
    for layer in model.model.layers:
        if splits_heads(config.decoder, plan):
            _split_attention(layer.self_attn, part)
        if type(layer.mlp).__name__ == MIXTURE:
            _split_mixture(layer.mlp, part, plan.ep)
        else:
            _split_mlp(layer.mlp, part.index, part.parts)
            _then(layer.mlp.down_proj, part.reduced)
    _keep(model.lm_head, 0, part.index, part.parts)
    _then(model.lm_head, part.gathered)
    if are_views_split:
        split_views(model.model, group, lambda side: config.sam.feature_side(side) ** 2)
    return model


def parameter_sizes(model: nn.Module) -> dict[str, int]:
    """Name -> values."""
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


def still_whole(before: Mapping[str, int], model: nn.Module) -> tuple[str, ...]:
    """Patterns of the parameters that are on this rank as large as they were, in all layers."""
    held, is_whole = parameter_sizes(model), dict[str, bool]()
    for name, size in before.items():
        pattern = layer_pattern(name)
        is_whole[pattern] = is_whole.get(pattern, True) and held.get(name) == size
    return tuple(pattern for pattern, holds in is_whole.items() if holds)


def _split_embedding(embedding: Any, part: RankPart) -> None:
    """By rows, as transformers and serving engines do it: a rank looks up the tokens it has, and others count as 0."""
    _keep(embedding, 0, part.index, part.parts)
    rows = embedding.weight.shape[0]
    first = part.index * rows

    def forward(token_ids: Tensor) -> Tensor:
        own = token_ids - first
        is_elsewhere = (own < 0) | (own >= rows)
        embedded = F.embedding(own.masked_fill(is_elsewhere, 0), embedding.weight)
        return part.reduced(embedded.masked_fill_(is_elsewhere.unsqueeze(-1), 0))

    embedding.forward = forward


def _split_attention(attention: Any, part: RankPart) -> None:
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        _keep(projection, 0, part.index, part.parts)
    _keep(attention.o_proj, 1, part.index, part.parts)
    attention.num_heads //= part.parts
    attention.num_key_value_heads //= part.parts
    _then(attention.o_proj, part.reduced)


def _split_mlp(mlp: Any, index: int, parts: int) -> None:
    _keep(mlp.gate_proj, 0, index, parts)
    _keep(mlp.up_proj, 0, index, parts)
    _keep(mlp.down_proj, 1, index, parts)


def _split_mixture(mixture: Any, part: RankPart, ep: int) -> None:
    """Shared experts over all ranks, routed ones over `ep` shares, each of them over the ranks of its share."""
    per_share = part.parts // ep
    share = part.index // per_share
    _split_mlp(mixture.shared_experts, part.index, part.parts)
    for index, expert in enumerate(mixture.experts):
        if index % ep == share:
            _split_mlp(expert, part.index % per_share, per_share)
        else:
            mixture.experts[index] = None
    if ep > 1:
        mixture.moe_infer = functools.partial(run_own_experts, mixture.experts, share, ep)
    _then(mixture, part.reduced)


def run_own_experts(
    experts: nn.ModuleList, share: int, shares: int, tokens: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """What the experts of this rank add to each token, summed in float32; a token that chose none of them gets 0.

    Every rank has every token, so nothing is sent to an expert: the rank picks the rows that chose its own.
    """
    rows, choices = (ids % shares == share).nonzero(as_tuple=True)
    chosen = ids[rows, choices]
    order = chosen.argsort()
    rows, choices = rows[order], choices[order]
    counts = torch.bincount(chosen, minlength=len(experts)).cpu().numpy()
    picked, outputs, start = tokens[rows], [], 0
    for expert, count in zip(experts, counts, strict=True):
        if count:
            outputs.append(expert(picked[start : start + count]))
            start += count
    total = tokens.new_zeros(tokens.shape, dtype=weights.dtype)
    if outputs:
        weighted = torch.cat(outputs).to(weights.dtype).mul_(weights[rows, choices].unsqueeze(-1))
        total.index_add_(0, rows, weighted)
    return total.to(tokens.dtype)


def _keep(module: nn.Linear | nn.Embedding, dim: int, index: int, parts: int) -> None:
    """Cut the weight down to one of equal parts, in memory of its own."""
    if isinstance(module, nn.Linear) and module.bias is not None:
        raise UsageError(
            "A projection with a bias cannot be split between ranks.",
            why="the plan of DeepSeek-OCR is for its released configuration, which has none in the decoder",
            fix="trace it on one device",
        )
    size, ragged = divmod(module.weight.shape[dim], parts)
    assert not ragged, "sizes are checked before the model is built"
    own = module.weight.detach().narrow(dim, index * size, size).clone()
    module.weight = nn.Parameter(own, requires_grad=module.weight.requires_grad)


def _then(module: Any, follow: Callable[[Tensor], Tensor]) -> None:
    """Let something follow each forward of one module; its class may be patched meanwhile."""

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        return follow(type(module).forward(module, *args, **kwargs))

    module.forward = forward


# Vision in data parallel: each rank encodes some of the views, and one all-gather gives all tokens to all ranks.
#
# The model's own forward encodes page after page. Before it runs, this rank's views go through the encoders and the
# tokens are gathered. While it runs, the encoders hand out what was gathered, so its code stays as it is.

TokensOf = Callable[[int], int]  # (side of a view in pixels) -> tokens that it becomes
Features = list[tuple[Tensor, Tensor]]  # pixels as the model has them, and their tokens [views, tokens, width]


def split_views(model: Any, group: Any, tokens_of: TokensOf) -> None:
    """Let the forwards of one model share their views between the ranks of a group."""

    def forward(**given: Any) -> Any:
        images = given["images"]
        if not images or given["input_ids"].shape[1] == 1:  # a decode looks at no page
            return type(model).forward(model, **given)
        grids = given["images_spatial_crop"].tolist()
        features = _encoded_by_all(model, images, grids, group, tokens_of)
        with _handing_out(model, features):
            return type(model).forward(model, **given)

    model.forward = forward


def _encoded_by_all(
    model: Any, images: Sequence[Any], grids: Sequence[Sequence[int]], group: Any, tokens_of: TokensOf
) -> Features:
    """Tokens of every view of every page. Ranks with fewer rows than others pad: all send equally much."""
    tiles = [columns * rows if columns * rows > 1 else 0 for columns, rows in grids]
    sides = images[0][0].shape[-1], images[0][1].shape[-1]
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    shares = share_views(tiles, ranks, global_pixels=sides[1] ** 2, tile_pixels=sides[0] ** 2)
    tokens = tokens_of(sides[0]), tokens_of(sides[1])
    rows = [sum(page.tiles * tokens[0] + page.has_global * tokens[1] for page in pages) for pages in shares]
    own = [encoded.flatten(0, 1) for encoded in _encoded_here(model, images, shares[rank])]
    empty: Tensor = model.image_newline
    if max(rows) > rows[rank]:
        own.append(empty.new_zeros(max(rows) - rows[rank], empty.shape[0]))
    sent = torch.cat(own) if len(own) > 1 else own[0]
    return list(_by_view(all_gathered(sent, group).chunk(ranks), images, shares, tokens))


def all_gathered(sent: Tensor, group: Any) -> Tensor:
    """What every rank sends, one below the other along the first dimension."""
    everything = sent.new_empty(dist.get_world_size(group) * sent.shape[0], *sent.shape[1:])
    dist.all_gather_single(everything, sent, group=group)
    return everything


def _encoded_here(model: Any, images: Sequence[Any], shares: Shares) -> Iterator[Tensor]:
    for (tiles, page), share in zip(images, shares, strict=True):
        if share.tiles:
            yield _encode(model, tiles[share.first : share.last])
        if share.has_global:
            yield _encode(model, page)


def _encode(model: Any, pixels: Tensor) -> Tensor:
    """Projected CLIP and SAM features, as the model's own forward makes them."""
    local = model.sam_model(pixels)
    contextual = model.vision_model(pixels, local)
    both = torch.cat([contextual[:, 1:], local.flatten(2).permute(0, 2, 1)], dim=-1)
    projected: Tensor = model.projector(both)
    return projected


def _by_view(
    sent: Sequence[Tensor], images: Sequence[Any], shares: Sequence[Shares], tokens: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What each rank sent, put together again page by page."""
    rest = list(sent)

    def take(rank: int, rows: int) -> Tensor:
        taken, rest[rank] = rest[rank][:rows], rest[rank][rows:]
        return taken

    for page, (tiles, global_view) in enumerate(images):
        pieces, last = [], None
        for rank, pages in enumerate(shares):
            if pages[page].tiles:
                pieces.append(take(rank, pages[page].tiles * tokens[0]))
            if pages[page].has_global:
                last = take(rank, tokens[1])
        if pieces:
            together = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
            yield tiles, together.unflatten(0, (-1, tokens[0]))
        assert last is not None, "every page has a global view, and one rank encodes it"
        yield global_view, last.unsqueeze(0)


@contextmanager
def _handing_out(model: Any, features: Features) -> Iterator[None]:
    """In place of the encoders: the projector gives the tokens of the view that came last, the others nothing."""
    current: list[Tensor] = []

    def sam(pixels: Tensor) -> Tensor:
        current[:] = [feature for known, feature in features if known is pixels]
        side = math.isqrt(current[0].shape[1])
        return pixels.new_empty(pixels.shape[0], 0, side, side)

    def clip(pixels: Tensor, local: Tensor) -> Tensor:
        return pixels.new_empty(pixels.shape[0], current[0].shape[1] + 1, 0)

    def projector(both: Tensor) -> Tensor:
        return current[0]

    encoders = ((model.sam_model, sam), (model.vision_model, clip), (model.projector, projector))
    before = [(encoder, encoder.__dict__.get("forward")) for encoder, _ in encoders]
    try:
        for encoder, stand_in in encoders:
            encoder.__dict__["forward"] = stand_in
        yield
    finally:
        for encoder, own in before:
            unwatch(encoder, own)
