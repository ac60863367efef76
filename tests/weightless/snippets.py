"""Pieces of model code whose output shapes no value decides: each must give the same shapes real and weightless."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SNIPPETS: dict[str, Callable[[Tensor, Tensor], Any]] = {}


def snippet(function: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    SNIPPETS[function.__name__] = function
    return function


@snippet
def views_and_in_place(x: Tensor, ids: Tensor) -> Any:
    y = x.t().contiguous()
    y[0] = 1
    y.add_(2).mul_(0.5)
    y.unsqueeze_(0)
    first = y.shape
    y.squeeze_(0)
    y.transpose_(0, 1)
    return y, torch.empty(first), y[:, ::2], y.reshape(2, -1), y.flatten()


@snippet
def layout_changes(x: Tensor, ids: Tensor) -> Any:
    return x.permute(1, 0).reshape(3, 8), x.unfold(1, 3, 1), x.expand(2, 4, 6).movedim(0, 1), x.chunk(3, dim=1)


@snippet
def real_mask_on_either_side(x: Tensor, ids: Tensor) -> Any:
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0] = True
    chosen = x[mask]
    x[mask] = 0.0
    x[mask] = chosen * 2
    x[mask.any(dim=1)] = torch.ones(1, 6)
    return chosen, x[:, mask[0]], x[mask.any(1)]


@snippet
def masked_scatter_in_place_and_out(x: Tensor, ids: Tensor) -> Any:
    y = x.unsqueeze(0).repeat(2, 1, 1)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[:, 1:3] = True
    source = torch.ones(4, 6, dtype=x.dtype)
    y.masked_scatter_(mask.unsqueeze(-1), source)
    return y, y.masked_scatter(mask.unsqueeze(-1).expand_as(y), source)


@snippet
def scatter_and_index_put(x: Tensor, ids: Tensor) -> Any:
    y = torch.zeros(4, 8)
    y.scatter_(1, ids.view(2, 2).repeat(2, 1), 1.0)
    y.index_put_((ids, ids), x[:, 0])
    y.index_add_(0, ids, torch.ones(4, 8))
    y.index_copy_(0, ids, torch.ones(4, 8))
    return y, y.scatter(1, ids[:, None], x[:, :1]), x.index_put((ids,), x), x.index_fill(0, ids, 0.0)


@snippet
def where_and_comparisons(x: Tensor, ids: Tensor) -> Any:
    return torch.where(x > 0, x, -x), torch.where(ids > 1, 1.0, 0.0), (x >= 0).float(), x.clamp(min=0)


@snippet
def real_integers_keep_their_values(x: Tensor, ids: Tensor) -> Any:
    count = int(ids.sum())
    positions = torch.arange(count)[None] < ids[:, None]
    return torch.zeros(count, 3), positions, positions.nonzero(), x[: int(ids.max())], positions.sum(1).tolist()


@snippet
def gather_and_select(x: Tensor, ids: Tensor) -> Any:
    return x.gather(1, ids[:, None]), x.index_select(0, ids), x[ids], x[ids, ids], x[:, None, ids], x.take(ids)


@snippet
def experts_by_sorting(x: Tensor, ids: Tensor) -> Any:
    gate = torch.ones(6, 4)
    chosen = torch.topk((x @ gate).softmax(-1), 2, dim=-1)[1]
    counts = chosen.new_zeros((4, 4)).scatter_(1, chosen, 1).sum(0).cpu().numpy()
    order = chosen.view(-1).argsort()
    rows = x[order // 2]
    done, start = [], 0
    for number in counts:
        if number:
            done.append(rows[start : start + int(number)] * 2)
            start += int(number)
    together = torch.cat(done)
    back = torch.empty_like(together)
    back[order] = together
    return back.view(4, 2, 6).sum(1)


@snippet
def device_calls(x: Tensor, ids: Tensor) -> Any:
    with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
        y = nn.Linear(6, 3)(x)
    return y, x.to(ids.device), torch.zeros(3, device=x.device), x.cpu(), x.to(torch.float16)


@torch.jit.script
def _scripted(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a + b) * torch.sigmoid(1.702 * a)


@snippet
def scripted_function(x: Tensor, ids: Tensor) -> Any:
    return _scripted(x, x[0])


@snippet
def attention_variants(x: Tensor, ids: Tensor) -> Any:
    q = x.view(1, 2, 4, 3)
    k = x.view(1, 2, 4, 3)
    mask = torch.ones(4, 4).tril().bool()
    bias = torch.zeros(1, 2, 4, 4)
    return (
        F.scaled_dot_product_attention(q, k, k),
        F.scaled_dot_product_attention(q, k, k, is_causal=True),
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask),
        F.scaled_dot_product_attention(q, k, k, attn_mask=bias),
        F.scaled_dot_product_attention(q[:, :, :1], k, k, scale=0.3),
        F.scaled_dot_product_attention(q, k[:, :1], k[:, :1], enable_gqa=True),
    )


@snippet
def eager_attention(x: Tensor, ids: Tensor) -> Any:
    q = x.view(1, 2, 4, 3)
    scores = q @ q.transpose(2, 3) / math.sqrt(3)
    scores = scores + torch.full((4, 4), torch.finfo(x.dtype).min).triu(1)
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype) @ q


@snippet
def cache_growth(x: Tensor, ids: Tensor) -> Any:
    cache = x[:, :2]
    for step in range(3):
        cache = torch.cat([cache, x[:, step : step + 1]], dim=1)
    return cache


@snippet
def dropout_in_both_modes(x: Tensor, ids: Tensor) -> Any:
    return F.dropout(x, 0.3, training=True), F.dropout(x, 0.3, training=False), nn.Dropout(0.1)(x)


@snippet
def convolutions_and_pools(x: Tensor, ids: Tensor) -> Any:
    image = x.view(1, 1, 4, 6)
    return (
        nn.Conv2d(1, 4, 3, stride=2, padding=1)(image),
        nn.ConvTranspose2d(1, 2, 2, stride=2)(image),
        nn.Conv2d(4, 4, 1, groups=2)(image.expand(1, 4, 4, 6)),
        F.max_pool2d(image, 2),
        F.adaptive_avg_pool2d(image, 1),
        F.interpolate(image, scale_factor=2, mode="bicubic"),
        F.pixel_shuffle(image.expand(1, 4, 4, 6), 2),
        F.grid_sample(image, torch.zeros(1, 5, 7, 2)),
    )


@snippet
def einsum_and_linear_algebra(x: Tensor, ids: Tensor) -> Any:
    square = x @ x.t()
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.cdist(x, x),
        torch.linalg.svd(square)[1],
        torch.linalg.inv(square + torch.eye(4)),
        torch.fft.rfft(x),
        torch.view_as_complex(x.view(4, 3, 2)),
    )


@snippet
def recurrent_layers(x: Tensor, ids: Tensor) -> Any:
    lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
    return lstm(x[None]), nn.GRU(6, 5)(x[:, None]), nn.LSTM(6, 5, proj_size=3)(x[:, None])


@snippet
def encoder_layer_with_padding(x: Tensor, ids: Tensor) -> Any:
    layer = nn.TransformerEncoderLayer(6, 2, dim_feedforward=8, batch_first=True).eval()
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return encoder(x[None], src_key_padding_mask=torch.tensor([[False, False, True, True]]))


@snippet
def sorting_and_reductions(x: Tensor, ids: Tensor) -> Any:
    return x.sort(-1, descending=True), x.argsort(dim=0), x.max(dim=1), x.cummax(1), x.median(dim=1), x.argmax(-1)


@snippet
def sampling(x: Tensor, ids: Tensor) -> Any:
    return torch.multinomial(x.abs().softmax(-1), 2), torch.bucketize(x, torch.linspace(0, 1, 4)), torch.rand_like(x)


@snippet
def real_buffer_written_by_activations(x: Tensor, ids: Tensor) -> Any:
    buffer = torch.ones(4, 4)
    buffer[1] = x[0, :4]
    buffer.copy_(x[:, :4])
    return buffer * 2, buffer.sum()


@snippet
def repeats_and_splits(x: Tensor, ids: Tensor) -> Any:
    counts = torch.tensor([1, 2, 0, 3])
    return x.repeat_interleave(counts, dim=0), x.repeat_interleave(2, 0), torch.tensor_split(x, torch.tensor([1, 3]))


@snippet
def compiled_function(x: Tensor, ids: Tensor) -> Any:
    return torch.compile(lambda a: a * 2 + 1)(x) if type(x) is not Tensor else x * 2 + 1


@snippet
def inference_mode_inside(x: Tensor, ids: Tensor) -> Any:
    layer = nn.Linear(6, 4)
    with torch.inference_mode():
        inside = layer(x).view(-1)
    with torch.no_grad():
        return inside, layer(x)


@snippet
def quantised_weights(x: Tensor, ids: Tensor) -> Any:
    scale = x.abs().max() / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


@snippet
def python_protocols(x: Tensor, ids: Tensor) -> Any:
    return sum(x), len(x), [row * 2 for row in x], torch.stack(list(x.unbind(1))), torch.as_tensor(x)


@snippet
def weight_norm(x: Tensor, ids: Tensor) -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3))(x[None])


@snippet
def batch_norm_while_training(x: Tensor, ids: Tensor) -> Any:
    return nn.BatchNorm1d(6).train()(x), nn.LayerNorm(6)(x), nn.GroupNorm(2, 6)(x), F.rms_norm(x, (6,))
