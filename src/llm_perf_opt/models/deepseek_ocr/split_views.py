"""Vision in data parallel: each rank encodes some of the views, and one all-gather gives all tokens to all ranks.

The model's own forward encodes page after page. Before it runs, this rank's views go through the encoders and the
tokens are exchanged. While it runs, the encoders hand out what was gathered, so its code stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from llm_perf_opt.harness.module_calls import unwatch
from llm_perf_opt.models.deepseek_ocr.ranks import Shares, share_views

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

    for page, (tiles, whole) in enumerate(images):
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
        yield whole, last.unsqueeze(0)


@contextmanager
def _handing_out(model: Any, features: Features) -> Iterator[None]:
    """In place of the encoders: the projector gives the tokens of the view that came last, the others nothing."""
    current: list[Tensor] = []

    def sam(pixels: Tensor) -> Tensor:
        current[:] = [found for known, found in features if known is pixels]
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
