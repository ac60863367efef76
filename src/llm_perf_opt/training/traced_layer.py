"""What one decoder layer of a model's own eager code saves for its backward, counted in a weightless training step."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.missing_packages import adapters_need_peft
from llm_perf_opt.core.store import stored_record
from llm_perf_opt.tracing.origin import find_origin
from llm_perf_opt.tracing.stored_traces import trace_ingredients
from llm_perf_opt.training.step_record import TrainingSetup
from llm_perf_opt.training.training_run import FULL, TracedSizes, TrainingMethod

log = logging.getLogger(__name__)

_TOKENS = 1024  # of the traced step: what a layer saves is proportional to its tokens


def traced_layer(
    source: str | Path, method: TrainingMethod, targets: tuple[str, ...], *, trust_remote_code: bool = False
) -> TracedSizes | None:
    """From a trace of the step, or from a stored one; None: no step of this model can be traced, and the log says why.

    4-bit weights are traced as 16-bit ones: what is saved for the backward is the same.
    """
    origin = find_origin(source, trust_remote_code=trust_remote_code)
    ingredients = trace_ingredients(origin)
    question = None if ingredients is None else {"of": ingredients, "method": str(method), "targets": list(targets)}
    setup = TrainingSetup(
        method="full" if method.kind == FULL else "lora",
        lora_rank=method.rank,
        lora_targets=targets if method.has_adapters else (),
        sequence=_TOKENS,
    )

    def traced() -> TracedSizes:
        from llm_perf_opt.training.training_step import trace_training_step

        if method.has_adapters and find_spec("peft") is None:
            raise adapters_need_peft("it is not installed")
        step = trace_training_step(source, setup, trust_remote_code=trust_remote_code)
        return TracedSizes(saved=step.layer_saved_bytes / _TOKENS, kept=step.layer_input_bytes / _TOKENS)

    try:
        return stored_record("training layers", question, f"{origin.name}, {method}", TracedSizes, traced)
    except PerfOptError as error:
        log.warning("Activations come from rules, not from a trace: %s", error)
        return None
