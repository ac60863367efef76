"""What one decoder layer of a model's own eager code saves for its backward, counted in a weightless training step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import adapters_need_peft
from llm_perf_opt.core.recorded_step import StepStoppedError
from llm_perf_opt.core.store import stored_record
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.stored_traces import trace_ingredients
from llm_perf_opt.training.step_record import TrainingSetup
from llm_perf_opt.training.training_run import FULL, TracedSizes, TrainingMethod

log = logging.getLogger(__name__)

_TOKENS = 1024  # of the traced step, at most: what a layer saves is proportional to its tokens
_FEW_TOKENS = 64  # that any model takes


def traced_layer(
    source: str | Path,
    method: TrainingMethod,
    targets: tuple[str, ...],
    *,
    sequence: int,
    trust_remote_code: bool = False,
) -> TracedSizes | None:
    """From a trace of the step, or from a stored one; None: no step of this model can be traced, and the log says why.

    4-bit weights are traced as 16-bit ones: what is saved for the backward is the same. A sequence that is longer than
    the model takes raises.
    """
    origin = find_origin(source, trust_remote_code=trust_remote_code)

    def sizes(tokens: int) -> TracedSizes:
        return _sizes(origin, source, method, targets, tokens, trust_remote_code)

    try:
        return sizes(min(_TOKENS, sequence))
    except StepStoppedError as error:
        if sequence > _FEW_TOKENS and _runs(lambda: sizes(_FEW_TOKENS)):
            raise UsageError(
                f"{origin.name} does not train on {sequence:,} tokens.",
                why=error.why,
                fix=f"give a shorter --seq; {_FEW_TOKENS} tokens run",
            ) from error
        log.warning("Activations come from rules, not from a trace: %s", error)
    except PerfOptError as error:
        log.warning("Activations come from rules, not from a trace: %s", error)
    return None


def _runs(step: Callable[[], object]) -> bool:
    try:
        step()
    except StepStoppedError:
        return False
    return True


def _sizes(
    origin: Origin,
    source: str | Path,
    method: TrainingMethod,
    targets: tuple[str, ...],
    tokens: int,
    trust_remote_code: bool,
) -> TracedSizes:
    """Bytes for each token of a step with this number of tokens."""
    ingredients = trace_ingredients(origin)
    asked = {"method": str(method), "targets": list(targets), "tokens": tokens}
    question = None if ingredients is None else {"of": ingredients, **asked}
    setup = TrainingSetup(
        method="full" if method.kind == FULL else "lora",
        lora_rank=method.rank,
        lora_targets=targets if method.has_adapters else (),
        sequence=tokens,
    )

    def traced() -> TracedSizes:
        from llm_perf_opt.training.training_step import trace_training_step

        if method.has_adapters and find_spec("peft") is None:
            raise adapters_need_peft("it is not installed")
        step = trace_training_step(source, setup, trust_remote_code=trust_remote_code)
        return TracedSizes(saved=step.layer_saved_bytes / tokens, kept=step.layer_input_bytes / tokens)

    return stored_record("training layers", question, f"{origin.name}, {method}", TracedSizes, traced)
