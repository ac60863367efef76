"""A workload becomes the prefill and the decode of DeepSeek-OCR, for any tracer or for a real run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from PIL import Image

from llm_perf_opt.core.expected_calls import ExpectedCalls, stated
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import RealRun
from llm_perf_opt.core.target import Chain, Json, Stage, Target, World
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.default_dtype import default_dtype
from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.expected_calls import expected_decode, expected_prefill
from llm_perf_opt.models.deepseek_ocr.inputs import (
    OcrInputs,
    Prompt,
    PromptIds,
    make_inputs,
    placeholder_ids,
    prompt_ids,
)
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.page_geometry import NO_TILES
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, open_page
from llm_perf_opt.models.deepseek_ocr.parallel import parameter_sizes, spread_model, still_whole
from llm_perf_opt.models.deepseek_ocr.patches import patched
from llm_perf_opt.models.deepseek_ocr.phases import (
    cache_tokens,
    decode,
    follow_prefill,
    prefill,
    prepare_decode,
)
from llm_perf_opt.models.deepseek_ocr.plan import (
    BYTES_PER_VALUE,
    DEFAULT_IMAGE,
    DEFAULT_PROMPT_TOKENS,
    Plan,
    make_plan,
    page_size,
)
from llm_perf_opt.models.deepseek_ocr.ranks import Shares, notes_of, require_plan, shares_of, splits_heads

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in BYTES_PER_VALUE}
STAGES = (
    Stage(name="sam", paths=("model.sam_model",)),
    Stage(name="clip", paths=("model.vision_model",)),
    Stage(name="projector", paths=("model.projector",)),
)  # everything else belongs to the phase, prefill or decode


def make_targets(
    config: DeepSeekOcrConfig,
    workload: Workload,
    *,
    name: str = "deepseek-ocr",
    build: Callable[[], Any] | None = None,
    preprocess: Callable[[Any], OcrInputs] | None = None,
    world: World | None = None,
) -> tuple[Target, ...]:
    """Prefill of page and prompt; then, if any steps are asked for, decode on a cache of that length.

    Both share one build: default, the blueprint's; another must take the same arguments in its forward. A real run
    gives `preprocess`, which makes the inputs anew in every pass; default: placeholders for text, made once. With a
    `world` they are the phases of one of its ranks.
    """
    plan = make_plan(config, workload)
    inputs = None if preprocess is not None else _inputs(plan, config)
    rank = None if world is None else _OnRank.of(world, config, plan)
    whole = build or partial(build_blueprint, config, plan.attention, DTYPES[plan.dtype])
    every = rank is None or rank.holds_all_experts
    first = Target(
        model=name,
        phase="prefill",
        workload=plan.described(),
        build=cache(whole if rank is None else partial(rank.build, whole)),
        prepare=preprocess,
        invoke=prefill if inputs is None else partial(prefill, inputs=inputs),
        stages=STAGES,
        runtime=_runtime(
            config,
            [plan.tiles] * plan.batch,
            0,
            expected_prefill(config, plan, None if rank is None else rank.views, holds_all_experts=every),
        ),
        observe=patched if rank is None or rank.views is None else partial(patched, sees_views=False),
        notes=() if rank is None else rank.notes,
        world=world,
        chain=Chain(
            logits=lambda output: output.logits, cache_tokens=lambda output: cache_tokens(output.past_key_values)
        ),
    )
    steps, head_parts = plan.decode_steps, 1 if rank is None else rank.head_parts
    if steps == 0:
        return (first,)
    second = replace(
        first,
        phase="decode",
        prepare=None
        if inputs is None
        else partial(prepare_decode, inputs=inputs, config=config.decoder, steps=steps, head_parts=head_parts),
        invoke=decode if inputs is None else partial(decode, inputs=inputs),
        runtime=_runtime(config, [], steps, expected_decode(config, plan, holds_all_experts=every)),
        chain=Chain(
            follow=partial(follow_prefill, steps=steps),
            cache_tokens=cache_tokens,
            cached_stages=tuple(stage.name for stage in STAGES),
        ),
    )
    return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnRank:
    """What differs on one rank of a world. `views` are those that it encodes; None: all of them."""

    config: DeepSeekOcrConfig
    world: World
    views: Shares | None

    @classmethod
    def of(cls, world: World, config: DeepSeekOcrConfig, page: Plan) -> _OnRank:
        plan = world.plan
        require_plan(config.decoder, plan)
        shares = shares_of(plan, page)
        rank = (plan.rank or 0) % plan.replica_ranks
        return cls(config=config, world=world, views=None if shares is None else shares[rank])

    @property
    def plan(self) -> ParallelPlan:
        return self.world.plan

    def build(self, whole: Callable[[], Any]) -> Any:
        model = whole()
        sizes = parameter_sizes(model)
        spread = spread_model(model, self.plan, self.config, are_views_split=self.views is not None)
        self.world.replicated = still_whole(sizes, spread)
        return spread

    @property
    def holds_all_experts(self) -> bool:
        return self.plan.ep == 1

    @property
    def head_parts(self) -> int:
        return self.plan.tp if splits_heads(self.config.decoder, self.plan) else 1

    @property
    def notes(self) -> tuple[str, ...]:
        return notes_of(self.config.decoder, self.plan)


def released_targets(
    name: str, build: Callable[[], Any], workload: Workload, world: World | None = None
) -> tuple[Target, ...]:
    """Prefill and decode of the released code, which `build` makes; its forward takes the same arguments."""
    return make_targets(DeepSeekOcrConfig(), workload, name=name, build=build, world=world)


def real_run(
    config: DeepSeekOcrConfig,
    workload: Workload,
    prompt: Prompt | None,
    *,
    tokenizer: Any | None = None,
    name: str = "deepseek-ocr",
    build: Callable[[], Any] | None = None,
    page: Image.Image | None = None,
) -> RealRun:
    """The same phases for a real page and prompt, which every pass preprocesses anew; `page` replaces a file.

    The workload of the run has the size of the page, the number of its text tokens, and its tiles.
    """
    asked = DeepSeekOcrWorkload.of(workload)
    count = DEFAULT_PROMPT_TOKENS if asked.prompt_tokens is None else asked.prompt_tokens
    text = prompt_ids(count if prompt is None else prompt, tokenizer)
    image = asked.image or DEFAULT_IMAGE
    width, height = page_size(image) if page is None else page.size
    wanted = replace(asked, image=f"{width}x{height}", prompt_tokens=text.num_tokens)
    plan = make_plan(config, wanted)

    def preprocess(model: torch.nn.Module) -> OcrInputs:
        views = cut_views(open_page(image) if page is None else page, plan.mode, plan.grid)
        made = make_inputs(config, plan.mode, views, prompt=text, batch=plan.batch, dtype=DTYPES[plan.dtype])
        return made.to(next(model.parameters()).device)

    grid = None if plan.grid == NO_TILES else plan.grid
    decided = replace(wanted, mode=plan.mode_name, crops=asked.crops or grid, attention=plan.attention)
    targets = make_targets(config, wanted, name=name, build=build, preprocess=preprocess)
    return RealRun(targets=targets, workload=decided)


def build_blueprint(config: DeepSeekOcrConfig, attention: str, dtype: torch.dtype) -> DeepseekOCRForCausalLM:
    """The model in evaluation mode, its weights created in `dtype`; rotary frequencies stay in float32."""
    with default_dtype(dtype):
        return DeepseekOCRForCausalLM(config, attention).eval()


def _inputs(plan: Plan, config: DeepSeekOcrConfig) -> OcrInputs:
    views = cut_views(open_page(plan.image), plan.mode, plan.grid)
    prompt = PromptIds(after=placeholder_ids(plan.prompt_tokens))
    return make_inputs(config, plan.mode, views, prompt=prompt, batch=plan.batch, dtype=DTYPES[plan.dtype])


def _runtime(
    config: DeepSeekOcrConfig, crops_per_image: list[int], decode_steps: int, calls: tuple[ExpectedCalls, ...]
) -> dict[str, Json]:
    """What the loops of one phase do, and the calls that follow; a decode looks at no images."""
    return {
        "images": len(crops_per_image),
        "crops_per_image": crops_per_image,
        "decoder_depth": config.decoder.num_hidden_layers,
        "decode_steps": decode_steps,
        **stated(calls),
    }
