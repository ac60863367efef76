"""`llm-perf-opt train`: does a fine-tune or a pre-training fit, how fast is it, what does it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from llm_perf_opt.cli.model_options import DevicesOption, ModelArgument, TrustOption, read_prices, takes_options
from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    reserve_page,
    show,
)
from llm_perf_opt.cli.progress import few_lines_per_trace, say
from llm_perf_opt.core.errors import BrokenBudgetError, UsageError
from llm_perf_opt.core.options import OptionRecord, option

GpusOption = Annotated[
    str, typer.Option(metavar="GPUS", help="GPUs to train on: rtx-4090, 8x a100-sxm-80g, 8x8 h100-sxm.")
]
WriteOption = Annotated[
    Path | None, typer.Option("--write", metavar="FOLDER", help="Write the trainer's command and configuration.")
]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="File for the report.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(OptionRecord):
    """What is trained, and how."""

    taken_by: ClassVar[str] = "A training run"

    method: str = option(
        "full", metavar="METHOD", help="full, or lora:RANK, qlora:RANK: adapters on all linear layers."
    )
    seq: int = option(4096, at_least=1, metavar="TOKENS", help="Tokens of a sequence.")
    micro_batch: int | None = option(
        None, at_least=1, help="Sequences of a GPU's forward. Default: the fastest that fits."
    )
    plan: str | None = option(
        None, metavar="PLAN", help="fsdp8, ddp, zero1, tp2,pp4,ep8. Default: the fastest plan that fits."
    )
    recompute: str | None = option(
        None, metavar="KIND", help="none, selective or full. Default: the fastest that fits."
    )
    optimizer: str = option("adamw", help="adamw, adamw8bit, paged-adamw8bit, adafactor, lion, sgd, sgd-momentum.")
    tokens: float | None = option(None, metavar="TOKENS", help="Tokens of the whole training: 1e9.")
    price: str | None = option(None, metavar="GPU=PRICE,...", help="Price of a GPU hour: h100-sxm=2.5. Default: list.")
    global_batch: int | None = option(None, at_least=1, help="Sequences of an optimizer step. Default: 8 for each GPU.")
    states: str | None = option(
        None,
        metavar="KIND",
        help="mixed: weights in fp32, computing in bf16. bf16: all in bf16. master: bf16 with an fp32 copy.",
    )
    precision: str = option("bf16", metavar="FORMAT", help="Format of the matmuls: bf16, fp8, mxfp8, nvfp4.")
    loss: str = option("whole", metavar="KIND", help="whole logits, chunked, or fused with the head (Liger).")
    compiled: bool = option(False, help="torch.compile, or fused norms and activation functions.")
    train_towers: bool = option(False, help="Train the encoder of images or sound too. Default: it is frozen.")
    offload: bool = option(False, help="Keep weights and states in the host's memory; with a plan fsdpN.")
    measured: float | None = option(
        None, metavar="TOKENS/S", help="What your own run reaches on all GPUs: says why its MFU is what it is."
    )
    trainer: str = option("trl", metavar="NAME", help="With --write: trl, axolotl, llamafactory or torchtitan.")

    def arguments(self) -> Mapping[str, Any]:
        """The arguments of `lpo.train`."""
        renamed = {"measured": "measured_tokens_per_s"}
        given = {
            renamed.get(name, name): value for name, value in self.changed().items() if name not in ("price", "trainer")
        }
        return given if self.price is None else {**given, "prices": read_prices(self.price)}


@takes_options(TrainingOptions, "training")
def train(
    model: ModelArgument,
    gpus: GpusOption,
    training: TrainingOptions,
    out: OutOption = None,
    write: WriteOption = None,
    devices_file: DevicesOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Say whether training MODEL_OR_DIR fits, how many tokens per second it reaches, and what it costs.

    Adapters: --method lora:16 or qlora:16. Pre-training: --states master --compiled. Without --plan, --micro-batch
    and --recompute the fastest combination that fits is searched. The exit code is 3 if the run does not fit.
    """
    from llm_perf_opt.api.train import train as train_answer

    reporter = choose_reporter(format_name, json_wanted, out)
    reserve_page(out, force=force)
    with model_prints_apart(), few_lines_per_trace():
        answer = train_answer(
            model, gpus, devices_file=devices_file, trust_remote_code=trust_remote_code, **training.arguments()
        )
    if write is not None:
        if not answer.fits:
            raise UsageError(
                "There is nothing to start.",
                why="the run does not fit",
                fix=f"add {' '.join(answer.changes) or 'GPUs'}",
            )
        for path in answer.save_trainer(write, training.trainer, force=force):
            say(f"Wrote {path}")
    if out is not None:
        say(f"Wrote {answer.save(out, force=force)}")
    else:
        show(answer.report(), reporter, verbose=verbose)
        if answer.fits and write is None:
            say("Next: add --write run/ for the trainer's command and configuration.")
    if not answer.fits:
        raise BrokenBudgetError(
            f"{model} does not fit on {gpus}.",
            why="the memory table says what takes it",
            fix=f"add {' '.join(answer.changes)}" if answer.changes else "take more GPUs, or larger ones",
        )
