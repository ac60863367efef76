"""A workload becomes the prefill and the decode of GOT-OCR 2.0; what the model cannot mean is refused."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import cannot_run
from llm_perf_opt.core.target import Chain, Choose, ExpectedCalls, Json, PhaseBefore, Stage, Target, stated
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.got_ocr2.options import GotOcr2Workload

Inputs = dict[str, torch.Tensor]  # arguments of the forward, by name
STAGES = (
    Stage(name="vision", paths=("model.vision_tower",)),
    Stage(name="projector", paths=("model.multi_modal_projector",)),
)

_VISION_BLOCKS = "model.vision_tower.layers.*"
_DECODER_LAYERS = "model.language_model.layers.*"

FIRST_TEXT_ID = 5
TEXT_IDS = 100


def count_views(crops: tuple[int, int] | None) -> int:
    """One view of the whole page; with crops, one per crop before it."""
    return 1 if crops is None or crops == (1, 1) else crops[0] * crops[1] + 1


def tokens_per_view(config: Any) -> int:
    """The encoder leaves one feature per patch, and each of the projector's two convolutions halves both sides."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    quarter = -(-side // 4)
    return int(quarter * quarter)


def prefill_inputs(config: Any, *, views: int, prompt_tokens: int, batch: int, dtype: torch.dtype) -> Inputs:
    """Image tokens, then `prompt_tokens` placeholders for text: without a tokenizer only their number counts."""
    size = config.vision_config.image_size
    text = [FIRST_TEXT_ID + index % TEXT_IDS for index in range(prompt_tokens)]
    ids = [config.image_token_id] * (views * tokens_per_view(config)) + text
    return {
        "input_ids": torch.tensor([ids] * batch),
        "attention_mask": torch.ones((batch, len(ids)), dtype=torch.int64),
        "pixel_values": torch.zeros((batch * views, 3, size, size), dtype=dtype),
    }


def decode_inputs(context_tokens: int, batch: int) -> Inputs:
    """One token on a cache of `context_tokens`; which token it is changes no shape."""
    return {
        "input_ids": torch.full((batch, 1), FIRST_TEXT_ID),
        "attention_mask": torch.ones((batch, context_tokens + 1), dtype=torch.int64),
    }


DEFAULT_PROMPT_TOKENS = 20
NEEDED_TRANSFORMERS = 5  # what the tests run with; the extra also allows 4.46, which has no such model
ATTENTIONS = ("eager", "sdpa")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def make_targets(config: Any, requested: Workload) -> tuple[Target, ...]:
    """Prefill of page and prompt; then, if any steps are asked for, decode on a cache of zeros of that length."""
    workload = GotOcr2Workload.of(requested)
    _refuse_nonsense(workload)
    config = config or _transformers().GotOcr2Config()
    attention = workload.attention or "eager"
    views, batch = count_views(workload.crops), workload.batch
    prompt_tokens = DEFAULT_PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens
    context = views * tokens_per_view(config) + prompt_tokens
    first = Target(
        model="got-ocr2",
        phase="prefill",
        workload=_header(workload, attention, prompt_tokens=prompt_tokens, context=context),
        build=cache(partial(_build, config, attention, DTYPES[workload.dtype])),
        prepare=lambda _: prefill_inputs(
            config, views=views, prompt_tokens=prompt_tokens, batch=batch, dtype=DTYPES[workload.dtype]
        ),
        invoke=_prefill,
        stages=STAGES,
        runtime={
            "images": batch,
            "crops_per_image": [views - 1] * batch,
            "decode_steps": 0,
            **stated(_expected_prefill(config, views=views, batch=batch)),
        },
        chain=Chain(
            logits=lambda output: output.logits,
            cache_tokens=lambda output: int(output.past_key_values.get_seq_length()),
        ),
    )
    steps = workload.decode_steps
    if steps == 0:
        return (first,)
    return first, replace(
        first,
        phase="decode",
        prepare=partial(_prepare_decode, context=context, batch=batch, steps=steps),
        invoke=_decode,
        runtime={"images": 0, "crops_per_image": [], "decode_steps": steps, **stated(_expected_decode(config, steps))},
        chain=Chain(
            follow=partial(_follow_prefill, context=context, batch=batch, steps=steps),
            cache_tokens=lambda past: int(past.get_seq_length()),
            cached_stages=tuple(stage.name for stage in STAGES),
        ),
    )


def _header(workload: GotOcr2Workload, attention: str, *, prompt_tokens: int, context: int) -> dict[str, Json]:
    return workload.header(
        {
            "crops": list(workload.crops or (1, 1)),
            "prompt_tokens": prompt_tokens,
            "image_tokens": context - prompt_tokens,
            "context_tokens": context,
            "decode_steps": workload.decode_steps,
            "batch": workload.batch,
            "dtype": workload.dtype,
            "attention": attention,
            "logits": "last position",
        }
    )


def _expected_prefill(config: Any, *, views: int, batch: int) -> tuple[ExpectedCalls, ...]:
    """All views of all pages are one batch of the encoder."""
    blocks, layers = config.vision_config.num_hidden_layers, config.text_config.num_hidden_layers
    seen = f"1 batch of {batch * views} view{'' if batch * views == 1 else 's'}"
    return (
        ExpectedCalls(what="vision blocks", formula=f"{blocks} blocks x {seen}", calls=blocks, paths=_VISION_BLOCKS),
        ExpectedCalls(what="projector", formula=f"1 projector x {seen}", calls=1, paths="model.multi_modal_projector"),
        ExpectedCalls(
            what="decoder layers", formula=f"{layers} layers x 1 forward", calls=layers, paths=_DECODER_LAYERS
        ),
    )


def _expected_decode(config: Any, steps: int) -> tuple[ExpectedCalls, ...]:
    layers = config.text_config.num_hidden_layers
    times = f"{steps:,} step{'' if steps == 1 else 's'}"
    return (
        ExpectedCalls(what="vision blocks", formula="none: the cache holds the page", calls=0, paths=_VISION_BLOCKS),
        ExpectedCalls(
            what="decoder layers", formula=f"{layers} layers x {times}", calls=layers * steps, paths=_DECODER_LAYERS
        ),
    )


def _build(config: Any, attention: str, dtype: torch.dtype) -> Any:
    model_class = _transformers().GotOcr2ForConditionalGeneration
    try:
        return model_class._from_config(copy.deepcopy(config), attn_implementation=attention, dtype=dtype).eval()
    except ValueError as error:
        if attention == "eager":
            raise
        raise UsageError(
            f"This transformers cannot build GOT-OCR 2.0 with {attention} attention.",
            why=str(error).partition(". ")[0],
            fix="use --attention eager",
        ) from error


def _prefill(model: Any, inputs: Inputs) -> Any:
    """As `generate` calls it: of the logits only the last position is wanted."""
    with torch.no_grad():
        return model(**inputs, use_cache=True, logits_to_keep=1)


@dataclass(slots=True, kw_only=True)
class PreparedSteps:
    """What a decode begins with; the cache is handed to the first step and not kept here."""

    past: Any
    steps: list[Inputs]
    choose: Choose | None = None


def _prepare_decode(model: Any, *, context: int, batch: int, steps: int) -> PreparedSteps:
    """A cache of zeros, so that the phase stands alone, and what each step is given; the token is always the same."""
    text = model.config.text_config
    shape = (batch, text.num_key_value_heads, context, text.hidden_size // text.num_attention_heads)
    past = _transformers().DynamicCache(config=text)
    for layer in range(text.num_hidden_layers):
        past.update(torch.zeros(shape, dtype=model.dtype), torch.zeros(shape, dtype=model.dtype), layer)
    return PreparedSteps(past=past, steps=[decode_inputs(context + step, batch) for step in range(steps)])


def _follow_prefill(_: Any, before: PhaseBefore, *, context: int, batch: int, steps: int) -> PreparedSteps:
    """The cache of the prefill, and the token chosen from it in the place of the first."""
    given = [decode_inputs(context + step, batch) for step in range(steps)]
    given[0]["input_ids"] = before.token
    return PreparedSteps(past=before.output.past_key_values, steps=given, choose=before.choose)


def _decode(model: Any, start: PreparedSteps) -> Any:
    """One forward of one token for every step that was prepared, until there is no further token."""
    # The cache grows by a copy of each step, so nothing else may hold the older one.
    (past, start.past), choose, token = (start.past, None), start.choose, None
    with torch.no_grad():
        for inputs in start.steps:
            given = inputs if token is None else {**inputs, "input_ids": token}
            output = model(**given, past_key_values=past, use_cache=True)
            past = output.past_key_values
            if choose is not None and (token := choose(output.logits)) is None:
                break
            del output  # its logits, before the next step
    return past


def _transformers() -> Any:
    try:
        library = importlib.import_module("transformers")
    except ImportError as error:
        raise cannot_run("transformers") from error
    if int(library.__version__.partition(".")[0]) < NEEDED_TRANSFORMERS:
        raise PerfOptError(
            f"GOT-OCR 2.0 needs transformers {NEEDED_TRANSFORMERS} or newer.",
            why=f"{library.__version__} is installed",
            fix=f"pip install 'transformers>={NEEDED_TRANSFORMERS}'",
        )
    return library


def _refuse_nonsense(workload: Workload) -> None:
    if workload.new_tokens > 1:
        raise UsageError(
            f"GOT-OCR 2.0 is not traced with {workload.new_tokens:,} new tokens after its cache.",
            why="its decode is prepared for one token at a time",
            fix="leave --new-tokens out",
        )
    if workload.attention not in (None, *ATTENTIONS):
        raise UsageError(
            f"GOT-OCR 2.0 has no attention named {workload.attention!r}.",
            why=f"known: {', '.join(ATTENTIONS)}",
            fix="pick one",
        )
