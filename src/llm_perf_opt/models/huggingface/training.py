"""One training step of a transformers model: in training mode, with LoRA, recomputation and an optimizer if asked for.

The loss is the model's own, on token ids as labels. The optimizer has stepped before, as in every step but the first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.missing_packages import adapters_need_peft
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.harness.training_run import TrainingStart, start_with_states
from llm_perf_opt.models.huggingface.four_bit import with_four_bits

LEARNING_RATE = 1e-3  # changes no shape and no op
RECOMPUTES = ("none", "full", "full-reentrant", "selective")


def training_target(name: str, build: Callable[[], Any], setup: TrainingSetup) -> Target:
    """The step as a target; `build` makes the model in evaluation mode."""
    _refuse_unknown(setup)
    if setup.method != "full":
        _peft()  # before the run, in which torch says that it has CUDA: libraries that peft imports would look for it
    return Target(
        model=name,
        phase="training step",
        workload={
            "batch": setup.micro_batch,
            "prompt_tokens": setup.sequence,
            "dtype": setup.dtype,
            "attention": setup.attention,
            **({"autocast": setup.autocast} if setup.autocast else {}),
        },
        build=cache(lambda: prepared_model(build(), setup)),
        prepare=partial(start_step, setup=setup),
        invoke=partial(run_step, setup=setup),
    )


def prepared_model(model: Any, setup: TrainingSetup) -> Any:
    """The model ready to train: adapters, recomputation, training mode."""
    if setup.method == "qlora":
        model = with_four_bits(model)
    if setup.method != "full":
        model = with_lora(model, setup.lora_rank, setup.lora_targets)
    if setup.recompute != "none":
        if setup.method != "full":
            model.enable_input_require_grads()  # as trainers do: otherwise nothing that is recomputed has a gradient
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_checkpointing(setup.recompute))
    return model.train()


def with_lora(model: Any, rank: int, targets: tuple[str, ...]) -> Any:
    """The model with adapters of this rank.

    Without targets it adapts what `peft` adapts by default for the architecture, or all linear layers but the head
    where `peft` has no default.
    """
    peft = _peft()
    defaults = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    has_default = getattr(model.config, "model_type", None) in defaults
    chosen: Any = list(targets) or (None if has_default else "all-linear")
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=chosen)
    return peft.get_peft_model(model, settings)


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise adapters_need_peft(str(error)) from error


def _checkpointing(recompute: str) -> dict[str, Any]:
    if recompute == "selective":
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        return {
            "use_reentrant": False,
            "context_fn": partial(create_selective_checkpoint_contexts, list(_KEPT_BY_SELECTIVE)),
        }
    return {"use_reentrant": recompute == "full-reentrant"}


# What a selective policy keeps: the results of matmuls and of fused attention. All else is cheap to run again.
_KEPT_BY_SELECTIVE = (
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)


def make_optimizer(model: torch.nn.Module, name: str) -> Any:
    """Torch's own optimizer over what is trained."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    match name:
        case "adamw":
            return torch.optim.AdamW(trained, lr=LEARNING_RATE, foreach=True)
        case "adamw-fused":
            return torch.optim.AdamW(trained, lr=LEARNING_RATE, fused=True)
        case "adamw-loop":
            return torch.optim.AdamW(trained, lr=LEARNING_RATE, foreach=False)
        case "sgd":
            return torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=0.9, foreach=True)
        case "adafactor":
            return torch.optim.Adafactor(trained, lr=LEARNING_RATE)
    raise UsageError(
        f"There is no optimizer {name!r} here.",
        why="what an optimizer keeps and runs is read from its own code",
        fix="give one of: adamw, adamw-fused, adamw-loop, sgd, adafactor",
    )


def start_step(model: Any, setup: TrainingSetup) -> TrainingStart:
    """Token ids that are their own labels, and an optimizer that has stepped before."""
    ids = torch.ones((setup.micro_batch, setup.sequence), dtype=torch.long)
    return start_with_states(model, {"input_ids": ids, "labels": ids}, make_optimizer(model, setup.optimizer))


def run_step(model: Any, start: TrainingStart, setup: TrainingSetup) -> None:
    """Forward, loss and backward of each micro batch, then the optimizer."""
    for _ in range(setup.accumulation):
        loss = model(**start.inputs, use_cache=False).loss
        if setup.accumulation > 1:
            loss = loss / setup.accumulation
        loss.backward()
        del loss
    start.optimizer.step()
    start.optimizer.zero_grad(set_to_none=True)


def _refuse_unknown(setup: TrainingSetup) -> None:
    choices = {"method": (setup.method, ("full", "lora", "qlora")), "recompute": (setup.recompute, RECOMPUTES)}
    for name, (value, known) in choices.items():
        if value not in known:
            raise UsageError(
                f"There is no {name} {value!r} here.",
                why="each is a way of the libraries that this runs",
                fix=f"give one of: {', '.join(known)}",
            )
    if setup.method != "full" and setup.lora_rank < 1:
        raise UsageError(
            "LoRA needs a rank of at least 1.", why=f"it is {setup.lora_rank}", fix="give a rank, such as 16"
        )
