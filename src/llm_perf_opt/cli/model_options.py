"""The options that say which model or trace, which workload and which stored formats; the same in every verb."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from llm_perf_opt.cli.output import model_prints_apart
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import Option, OptionRecord
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import MODELS, workload_options
from llm_perf_opt.core.work_limits import WorkLimits, limits
from llm_perf_opt.core.workload import Deployment, ModelCode

if TYPE_CHECKING:
    from llm_perf_opt.api.trace import Trace

MODEL_HELP = (
    f"A model by name ({', '.join(MODELS.names())}, Qwen/Qwen3-8B, ...: llm-perf-opt models) or a local Hugging Face "
    "folder. No weights are needed."
)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL_OR_DIR", help=MODEL_HELP, show_default=False)]
SourceArgument = Annotated[
    str, typer.Argument(metavar="MODEL_OR_TRACE", help=f"{MODEL_HELP} Or a saved trace.", show_default=False)
]
TraceArgument = Annotated[
    Path, typer.Argument(metavar="RUN_OR_FILE", help="A trace file, or the folder of a run.", show_default=False)
]
RoutingOption = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", help="How tokens go to experts: uniform (default), balanced, one, random:SEED, replay:FILE."
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow the Python code in the model folder to run.")
]


def _option(declared: Option, takers: Sequence[str] = (), word: str | None = None) -> Any:
    """The declaration as typer reads it; who takes the option is named where not every model does."""
    limit = None if declared.text_kind is str else declared.at_least
    takes = f" For {', '.join(takers)}." if takers else ""
    spelled = () if word is None else (word,)
    return typer.Option(*spelled, min=limit, metavar=declared.metavar, help=f"{declared.help}{takes}")


_DEPLOYMENT = Deployment.options()
DeviceOption = Annotated[str | None, _option(_DEPLOYMENT["device"])]
DevicesOption = Annotated[
    Path | None,
    typer.Option(
        "--devices", metavar="FILE", help="TOML file with devices of your own: llm-perf-opt devices template."
    ),
]
TorchDeviceOption = Annotated[
    Literal["cuda", "cpu"] | None,
    typer.Option(help="Device that the code sees. Default: cuda; cpu for a real run or if --device is a CPU."),
]
WeightsOption = Annotated[str | None, _option(_DEPLOYMENT["weights"])]
CacheOption = Annotated[str | None, _option(_DEPLOYMENT["cache"])]
ExecutionOption = Annotated[
    Literal["eager", "fused"],
    typer.Option(help="eager: PyTorch, op by op. fused: an engine's fused kernels in CUDA graphs."),
]
RatesOption = Annotated[
    Literal["tables", "data-sheet"] | None,
    typer.Option(
        help="Source of the times: tables of measured kernels, or the device's data sheet. Default: tables, where they "
        "are installed and cover the device or a similar device."
    ),
]
# As people say it of a server, in verbs about one: the field of the workload -> its option.
SERVER_WORDS: Mapping[str, str] = {"prompt_tokens": "--input", "decode_steps": "--output", "batch": "--users"}


def in_server_words(workload: Mapping[str, object]) -> Mapping[str, object]:
    """The same, by the names that a verb about a server has for its options."""
    return {SERVER_WORDS.get(name, name).removeprefix("--"): value for name, value in workload.items()}


def takes_workload(
    *, without: Collection[str] = (), plans: bool = False, words: Mapping[str, str] | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a verb's parameter `workload` by the options of every model, and pass it the options that are set.

    The limits of work come behind the verb's own options, and hold while it runs.

    With `plans` the sizes of a parallel plan come along, and the choice of the model's code. `defaults` are where the
    verb differs from the others, `without` what it does not take, `words` what it spells in another way.
    """

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def with_workload(**given: Any) -> None:
            values = {name: given.pop(name) for name in declared}
            verb(workload={name: value for name, value in values.items() if value != declared[name].default}, **given)

        declared = {name: option for name, (option, _) in workload_options().items() if name not in without}
        beside = {**ParallelPlan.options(), **ModelCode.options()} if plans else {}
        beside = {name: option for name, option in beside.items() if name not in without}
        declared |= beside
        own = inspect.signature(verb, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            parameters += _parameters(defaults, without, words or {}) if parameter.name == "workload" else [parameter]
        parameters += [parameter_of(name, option, option.default) for name, option in beside.items()]
        declare(with_workload, own, parameters)
        return takes_limits(with_workload)

    return decorated


def takes_limits(verb: Callable[..., None]) -> Callable[..., None]:
    """Put the limits of work behind a verb's own options; they hold while it runs."""

    @functools.wraps(verb)
    def within_limits(**given: Any) -> None:
        allowed = {name: given.pop(name) for name in WorkLimits.options()}
        with limits(**allowed):
            verb(**given)

    own = inspect.signature(verb, eval_str=True)
    added = [parameter_of(name, option, option.default) for name, option in WorkLimits.options().items()]
    declare(within_limits, own, [*own.parameters.values(), *added])
    return within_limits


def declare(verb: Callable[..., None], own: inspect.Signature, parameters: Sequence[inspect.Parameter]) -> None:
    """Let typer see these parameters of a verb in the place of its own."""
    verb.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _parameters(
    defaults: Mapping[str, Any], without: Collection[str], words: Mapping[str, str]
) -> list[inspect.Parameter]:
    return [
        parameter_of(name, declared, defaults.get(name, declared.default), takers, words.get(name))
        for name, (declared, takers) in workload_options().items()
        if name not in without
    ]


def parameter_of(
    name: str, declared: Option, default: Any, takers: Sequence[str] = (), word: str | None = None
) -> inspect.Parameter:
    """The parameter of a verb that takes a declared option; `word`: how the verb spells it."""
    annotation = _annotation(name, declared, takers, word)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _annotation(name: str, declared: Option, takers: Sequence[str], word: str | None) -> Any:
    if declared.text_kind is bool:  # one word turns it on
        return Annotated[bool, typer.Option(f"--{name.replace('_', '-')}", help=declared.help)]
    kind: Any = Literal[declared.choices] if declared.choices else declared.text_kind
    return Annotated[kind if declared.default is not None else kind | None, _option(declared, takers, word)]


def trace_or_load(
    model: str,
    workload: Mapping[str, Any],
    *,
    weights: str | None,
    cache: str | None,
    routing: str | None = None,
    torch_device: str | None = None,
    keep_partial: bool = False,
    copies_key_heads: bool = False,
    trust_remote_code: bool,
) -> Trace:
    """The trace that `model` names, or a new one of the model; a saved trace takes no workload and no routing."""
    from llm_perf_opt.api.tracing import load, trace
    from llm_perf_opt.tracing.trace_files import is_trace, refuse_options

    if is_trace(model):
        refuse_options(workload, routing=routing)
        return load(model, weights=weights, cache=cache)
    with model_prints_apart():
        return trace(
            model,
            weights=weights,
            cache=cache,
            routing=routing,
            torch_device=torch_device,
            keep_partial=keep_partial,
            copies_key_heads=copies_key_heads,
            trust_remote_code=trust_remote_code,
            **workload,
        )


def takes_options(record: type[OptionRecord], name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put the options of a record in the place of a verb's parameter, and give it the record of them."""

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def with_options(**given: Any) -> None:
            verb(**{name: record.make(**{option: given.pop(option) for option in declared})}, **given)

        declared = record.options()
        own = inspect.signature(verb, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            added = [parameter_of(option, declaration, declaration.default) for option, declaration in declared.items()]
            parameters += added if parameter.name == name else [parameter]
        declare(with_options, own, parameters)
        return with_options

    return decorated


def read_prices(text: str) -> dict[str, float]:
    """Device id -> price of an hour."""
    prices = {}
    for entry in text.split(","):
        name, _, price = entry.strip().partition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            prices[name] = -1.0
        if not name or not 0 <= prices[name] < 1e6:
            raise UsageError(
                f"{entry[:60]!r} is not a price.",
                why="a price is a device's id and a number, 0 or more",
                fix="write --price h100-sxm=2.5",
            )
    return prices
