"""A workload becomes the prefill and the decode of DeepSeek-OCR, for any tracer or for a real run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import RealRun
from llm_perf_opt.core.target import (
    Chain,
    Choose,
    ExpectedCalls,
    Json,
    PhaseBefore,
    RoutedExperts,
    Stage,
    Target,
    World,
    stated,
)
from llm_perf_opt.core.units import format_number_of
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.default_dtype import default_dtype
from llm_perf_opt.models.deepseek_ocr.attention import PastKeyValues
from llm_perf_opt.models.deepseek_ocr.blueprint import CausalLmOutput, DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.formulas import CLIP, PROJECTOR, SAM
from llm_perf_opt.models.deepseek_ocr.inputs import (
    FIRST_TEXT_ID,
    OcrInputs,
    Prompt,
    PromptIds,
    make_inputs,
    placeholder_ids,
    prompt_ids,
)
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.page_geometry import NO_TILES, count_tiles
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, open_page
from llm_perf_opt.models.deepseek_ocr.parallel import parameter_sizes, spread_model, still_whole
from llm_perf_opt.models.deepseek_ocr.patches import patched
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
    build_whole = build or partial(build_blueprint, config, plan.attention, DTYPES[plan.dtype])
    every = rank is None or rank.holds_all_experts
    first = Target(
        model=name,
        phase="prefill",
        workload=plan.described(),
        build=cache(build_whole if rank is None else partial(rank.build, build_whole)),
        prepare=preprocess,
        invoke=prefill if inputs is None else partial(prefill, inputs=inputs),
        stages=STAGES,
        runtime=_runtime(
            config,
            [plan.grid] * plan.batch,
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

    def build(self, build_whole: Callable[[], Any]) -> Any:
        model = build_whole()
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
    requested = DeepSeekOcrWorkload.of(workload)
    count = DEFAULT_PROMPT_TOKENS if requested.prompt_tokens is None else requested.prompt_tokens
    text = prompt_ids(count if prompt is None else prompt, tokenizer)
    image = requested.image or DEFAULT_IMAGE
    width, height = page_size(image) if page is None else page.size
    wanted = replace(requested, image=f"{width}x{height}", prompt_tokens=text.num_tokens)
    plan = make_plan(config, wanted)

    def preprocess(model: torch.nn.Module) -> OcrInputs:
        views = cut_views(open_page(image) if page is None else page, plan.mode, plan.grid)
        made = make_inputs(config, plan.mode, views, prompt=text, batch=plan.batch, dtype=DTYPES[plan.dtype])
        return made.to(next(model.parameters()).device)

    grid = None if plan.grid == NO_TILES else plan.grid
    decided = replace(wanted, mode=plan.mode_name, crops=requested.crops or grid, attention=plan.attention)
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
    config: DeepSeekOcrConfig, grids: list[tuple[int, int]], decode_steps: int, calls: tuple[ExpectedCalls, ...]
) -> dict[str, Json]:
    """What the loops of one phase do, and the calls that follow; a decode looks at no images."""
    return {
        "images": len(grids),
        "crops_per_image": [count_tiles(grid) for grid in grids],
        "images_spatial_crop": [list(grid) for grid in grids],
        "decoder_depth": config.decoder.num_hidden_layers,
        "decode_steps": decode_steps,
        **stated(calls),
    }


def prefill(model: DeepseekOCRForCausalLM, inputs: OcrInputs) -> CausalLmOutput:
    """One forward over the whole sequence, with an empty cache."""
    with torch.no_grad():
        output: CausalLmOutput = model(
            input_ids=inputs.input_ids,
            images=inputs.images,
            images_seq_mask=inputs.images_seq_mask,
            images_spatial_crop=inputs.images_spatial_crop,
        )
    return output


@dataclass(slots=True, kw_only=True)
class OcrDecodeStart:
    """What a decode begins with. `past` goes to the first step, which lets go of it when it has a longer one."""

    token: Tensor
    positions: list[Tensor]  # one per step
    past: PastKeyValues | None
    choose: Choose
    inputs: OcrInputs | None = None  # the inputs of the prefill before it


def prepare_decode(
    _: DeepseekOCRForCausalLM, inputs: OcrInputs, config: DecoderConfig, steps: int, head_parts: int = 1
) -> OcrDecodeStart:
    """A decode that stands alone: a cache of zeros as long as the sequence of the prefill.

    The token is always the same: which one comes out changes no shape. Of `head_parts` equal shares of the heads the
    cache holds one.
    """
    batch = inputs.input_ids.shape[0]
    token = torch.full((batch, 1), FIRST_TEXT_ID)
    return OcrDecodeStart(
        token=token,
        positions=_positions(token, inputs.num_tokens, steps),
        past=empty_past(config, batch, inputs.num_tokens, inputs.images[0][1].dtype, head_parts),
        choose=lambda _: token,
    )


def follow_prefill(_: DeepseekOCRForCausalLM, before: PhaseBefore, steps: int) -> OcrDecodeStart:
    """A decode that continues a prefill: its cache, the token chosen from its logits, then those that are chosen."""
    inputs: OcrInputs = before.start
    return OcrDecodeStart(
        token=before.token,
        positions=_positions(before.token, inputs.num_tokens, steps),
        past=before.output.past_key_values,
        choose=before.choose,
        inputs=inputs,
    )


def _positions(token: Tensor, context_tokens: int, steps: int) -> list[Tensor]:
    return [torch.full(token.shape, context_tokens + step, device=token.device) for step in range(steps)]


def decode(model: DeepseekOCRForCausalLM, start: OcrDecodeStart, inputs: OcrInputs | None = None) -> PastKeyValues:
    """One forward of one token for every position, until `choose` gives none.

    The inputs of the prefill travel along unread, as in the released generation loop; default: the inputs of `start`.
    """
    page = inputs or start.inputs
    past, start.past = start.past, None
    assert past is not None and page is not None, "a cache is used up by the decode that it was made for"
    token = start.token
    with torch.no_grad():
        for position in start.positions:
            output: CausalLmOutput = model(
                input_ids=token,
                past_key_values=past,
                position_ids=position,
                images=page.images,
                images_seq_mask=page.images_seq_mask,
                images_spatial_crop=page.images_spatial_crop,
            )
            past = output.past_key_values
            token = start.choose(output.logits)
            if token is None:
                break
    return past


def cache_tokens(past: PastKeyValues) -> int:
    """How many tokens a cache holds."""
    return past[0][0].shape[-2]


def empty_past(
    config: DecoderConfig, batch: int, tokens: int, dtype: torch.dtype, head_parts: int = 1
) -> PastKeyValues:
    """Zeros in the shape of a cache that holds `tokens` tokens."""
    shape = (batch, config.num_attention_heads // head_parts, tokens, config.head_dim)
    return tuple(
        (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(config.num_hidden_layers)
    )


# How often each kind of module must run, from the configuration and the page alone: nothing is traced for it.
#
# The encoders take the crops of a page as one batch, then its global view: two calls per page, or one without crops.


def expected_prefill(
    config: DeepSeekOcrConfig, plan: Plan, shares: Shares | None = None, *, holds_all_experts: bool = True
) -> tuple[ExpectedCalls, ...]:
    """The crops of every page, the three parts of the vision encoder, and one forward of the decoder.

    `shares` are the views of one rank, of a model that splits them; crops are not counted there.
    """
    passes = _decoder(config.decoder, tokens=plan.batch * plan.context_tokens, forwards=1, unit="forward")
    decoder = [calls for calls in passes if holds_all_experts or calls.routed is None]
    if shares is not None:
        views = sum((page.tiles > 0) + page.has_global for page in shares)
        return (*_encoders(config, views, f"{format_number_of(views, 'batch')} of views of this rank"), *decoder)
    views = plan.batch * (1 + (plan.tiles > 0))
    crops = ExpectedCalls(
        what="crops", formula=_crops_in_words(plan), calls=plan.batch * plan.tiles, fact="crops_per_image"
    )
    return (crops, *_encoders(config, views, _views_in_words(plan)), *decoder)


def _encoders(config: DeepSeekOcrConfig, views: int, words: str) -> tuple[ExpectedCalls, ...]:
    blocks, layers = config.sam.num_layers, config.clip.num_layers
    return (
        ExpectedCalls(
            what="SAM blocks", formula=f"{blocks} blocks x {words}", calls=blocks * views, paths=f"{SAM}.blocks.*"
        ),
        ExpectedCalls(
            what="CLIP layers",
            formula=f"{layers} layers x {words}",
            calls=layers * views,
            paths=f"{CLIP}.transformer.layers.*",
        ),
        ExpectedCalls(what="projector", formula=f"1 projector x {words}", calls=views, paths=PROJECTOR),
    )


def expected_decode(
    config: DeepSeekOcrConfig, plan: Plan, *, holds_all_experts: bool = True
) -> tuple[ExpectedCalls, ...]:
    """One forward of the decoder per step; the vision encoders do not run again."""
    passes = _decoder(config.decoder, tokens=plan.batch, forwards=plan.decode_steps, unit="step")
    return (
        ExpectedCalls(what="SAM blocks", formula="none: the cache holds the page", calls=0, paths=f"{SAM}.blocks.*"),
        *(calls for calls in passes if holds_all_experts or calls.routed is None),
    )


def _decoder(config: DecoderConfig, *, tokens: int, forwards: int, unit: str) -> Iterator[ExpectedCalls]:
    depth, times = config.num_hidden_layers, format_number_of(forwards, unit)
    yield ExpectedCalls(
        what="decoder layers", formula=f"{depth} layers x {times}", calls=depth * forwards, paths="model.layers.*"
    )
    sparse = depth - config.first_k_dense_replace
    yield ExpectedCalls(
        what="routed experts",
        formula=f"{sparse} layers x {times} x experts touched",
        calls=None,
        paths="model.layers.*.mlp.experts.*",
        routed=RoutedExperts(
            layers=sparse,
            experts=config.n_routed_experts,
            chosen=config.num_experts_per_tok,
            tokens=tokens,
            forwards=forwards,
        ),
    )
    yield ExpectedCalls(what="output head", formula=f"1 head x {times}", calls=forwards, paths="lm_head")


def _views_in_words(plan: Plan) -> str:
    crops = f" + 1 batch of {format_number_of(plan.tiles, 'crop')}" if plan.tiles else ""
    page = f"(1 global view{crops})"
    return page if plan.batch == 1 else f"{plan.batch} pages x {page}"


def _crops_in_words(plan: Plan) -> str:
    pages = format_number_of(plan.batch, "page")
    return f"{pages} x {plan.grid[0]}x{plan.grid[1]} grid" if plan.tiles else f"{pages}, not cut"
