"""Runs in vLLM's Python: requests with images for its real engine, through vLLM's own processor of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from vllm import SamplingParams
from vllm.renderers import renderer_from_config
from vllm.v1.engine.input_processor import InputProcessor

from llm_perf_opt.core.serving.requests import ImageSpan, Request, Traffic

SIZES = ((500, 400), (1240, 1754), (1000, 700), (640, 1500))
_GLOBAL_TOKENS = 273
_CROP_SIDE = 10


def encode_nothing(model: Any) -> None:
    """The encoder takes half a minute for an image here, and its values decide nothing: zeros of the right number."""

    def zeros(image: Any) -> list[torch.Tensor]:
        return [torch.zeros(_tokens(*crop), 128, dtype=torch.bfloat16) for crop in image.images_spatial_crop.tolist()]

    model._process_image_input = zeros


def _tokens(across: int, down: int) -> int:
    crops = (across * _CROP_SIDE + 1) * (down * _CROP_SIDE) if across * down > 1 else 0
    return _GLOBAL_TOKENS + crops


def with_images(config: Any, traffic: Traffic) -> tuple[Traffic, Callable[[Request, float], Any]]:
    """The same arrivals and answers with an image in front; every third image is one that came before."""
    processor = InputProcessor(config, renderer_from_config(config))
    made = {request.id: _made(processor, request, number) for number, request in enumerate(traffic.requests)}
    shown = tuple(_described(request, made) for request in traffic.requests)

    def make_request(request: Request, arrival_s: float) -> Any:
        found = made[request.id]
        found.arrival_time = arrival_s
        return found

    return Traffic(requests=shown, concurrency=traffic.concurrency, origin=traffic.origin), make_request


def _made(processor: Any, request: Request, number: int) -> Any:
    image = number - 3 if number % 3 == 2 and number >= 3 else number
    picture = Image.new("RGB", SIZES[image % len(SIZES)], (image % 256, image // 256, 30))
    made = processor.process_inputs(
        request.id,
        {"prompt": f"<image>\n{number} {'x' * (request.prompt_tokens % 40)}", "multi_modal_data": {"image": picture}},
        SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, temperature=0.0, detokenize=False),
        supported_tasks=("generate",),
    )
    made.request_id = request.id
    return made


def _described(request: Request, made: dict[str, Any]) -> Request:
    """What a replay is told: the image, and how far the prompt is that of another request with the same image."""
    found = made[request.id]
    (image,) = found.mm_features
    span = ImageSpan(offset=image.mm_position.offset, tokens=image.mm_position.length, name=image.identifier)
    others = [other for other in made.values() if other.mm_features[0].identifier == span.name]
    shared = min(_common(found.prompt_token_ids, other.prompt_token_ids) for other in others)
    return Request(
        id=request.id,
        arrival_s=request.arrival_s,
        prompt_tokens=len(found.prompt_token_ids),
        output_tokens=request.output_tokens,
        prefix=span.name if len(others) > 1 else None,
        prefix_tokens=shared if len(others) > 1 else 0,
        images=(span,),
    )


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), len(one))
