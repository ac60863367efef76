"""How often each kind of module must run, from the configuration and the page alone: nothing is traced for it.

The encoders take the crops of a page as one batch, then its global view: two calls per page, or one without crops.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.core.expected_calls import ExpectedCalls, RoutedExperts
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.formulas.vision import CLIP, PROJECTOR, SAM
from llm_perf_opt.models.deepseek_ocr.plan import Plan
from llm_perf_opt.models.deepseek_ocr.ranks import Shares


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
        return (*_encoders(config, views, f"{_counted(views, 'batch')} of views of this rank"), *decoder)
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
    depth, times = config.num_hidden_layers, _counted(forwards, unit)
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
    crops = f" + 1 batch of {_counted(plan.tiles, 'crop')}" if plan.tiles else ""
    page = f"(1 global view{crops})"
    return page if plan.batch == 1 else f"{plan.batch} pages x {page}"


def _crops_in_words(plan: Plan) -> str:
    pages = _counted(plan.batch, "page")
    return f"{pages} x {plan.grid[0]}x{plan.grid[1]} grid" if plan.tiles else f"{pages}, not cut"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
