"""The options that say which model, which workload and which stored formats; the same in every verb."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from llm_perf_opt.core.callgraph.tensor_formats import CACHE_NAMES, WHAT_IF_NAMES, cache_dtype, stored_dtype
from llm_perf_opt.core.protocols import MODELS, Deployment, Workload

WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help=f"Stored format of the weights: {', '.join(WHAT_IF_NAMES)}, ... Default: as the checkpoint says.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help=f"Type of the cached keys and values: {', '.join(CACHE_NAMES)}. Default: as traced."
    ),
]


def deployment_of(weights: str | None, cache: str | None) -> Deployment:
    """What was asked for; a name that is no format is refused here, before any work."""
    if weights is not None:
        stored_dtype(weights)
    if cache is not None:
        cache_dtype(cache)
    return Deployment(weights=weights, cache=cache)


MODEL_HELP = f"A model ({', '.join(MODELS.names())}) or a local Hugging Face folder; it needs no weights in it."

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL_OR_DIR", help=MODEL_HELP, show_default=False)]
SourceArgument = Annotated[
    str, typer.Argument(metavar="MODEL_OR_TRACE", help=f"{MODEL_HELP} Or a trace made earlier.", show_default=False)
]
RoutingOption = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", help="Which experts get tokens: uniform (default), balanced, one, random:SEED, replay:FILE."
    ),
]
TrustOption = Annotated[bool, typer.Option("--trust-remote-code", help="Run the Python code in the model folder.")]


def _options(
    image: Annotated[
        str | None, typer.Option(help="WIDTHxHEIGHT of a blank page, or an image file. A folder gets none by default.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="The model's image mode: tiny, small, base, large, gundam.")] = None,
    crops: Annotated[str | None, typer.Option(help="COLUMNSxROWS, instead of what the image size gives.")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Text tokens in the prompt; image tokens come on top.")
    ] = None,
    decode_steps: Annotated[int, typer.Option(min=0, help="Tokens to decode after the prefill.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Sequences run together.")] = 1,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Type of weights and activations.")
    ] = "bfloat16",
    attention: Annotated[
        Literal["eager", "sdpa", "flash"] | None,
        typer.Option(help="Attention code; the model's own default if absent."),
    ] = None,
) -> Workload:
    return Workload(
        image=image,
        mode=mode,
        crops=_crop_grid(crops),
        prompt_tokens=prompt_tokens,
        decode_steps=decode_steps,
        batch=batch,
        dtype=dtype,
        attention=attention,
    )


_NAMES = tuple(inspect.signature(_options).parameters)


def takes_workload(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put the options of a workload in the place of a verb's parameter `workload`, and give it the workload.

    `defaults` are those in which the verb differs from the others.
    """

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def told(**given: Any) -> None:
            verb(workload=_options(**{name: given.pop(name) for name in _NAMES}), **given)

        own = inspect.signature(verb, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            parameters += _parameters(defaults) if parameter.name == "workload" else [parameter]
        told.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        told.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return told

    return decorated


def _parameters(defaults: Mapping[str, Any]) -> list[inspect.Parameter]:
    options = inspect.signature(_options, eval_str=True).parameters
    return [option.replace(default=defaults.get(name, option.default)) for name, option in options.items()]


def _crop_grid(text: str | None) -> tuple[int, int] | None:
    """`2x3` as columns and rows."""
    if text is None:
        return None
    if not (match := re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", text)):
        raise typer.BadParameter(f"{text!r} is not COLUMNSxROWS, like 2x3", param_hint="--crops")
    return int(match[1]), int(match[2])
