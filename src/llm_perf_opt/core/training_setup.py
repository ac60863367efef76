"""What one training step is asked for: the method, the batch, the optimizer and what is recomputed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """What was asked for.

    `method` is `full`, `lora`, or `qlora` with frozen weights in 4 bits as bitsandbytes stores them. Without
    `lora_targets` LoRA adapts what `peft` adapts by default for the architecture, or all linear layers of the decoder
    where `peft` has no default. `optimizer` is `adamw` (over lists of tensors, as torch picks it on a GPU),
    `adamw-fused`, `adamw-loop`, `sgd` or `adafactor`. `recompute` is `none`, `full` (each
    decoder layer is run again in the backward), `full-reentrant` or `selective` (all but matmuls and attention is run
    again). `device` is what the code sees: on `cuda` attention runs as CUDA's kernels do.
    """

    method: str = "full"
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    micro_batch: int = 1
    sequence: int = 1024
    dtype: str = "bfloat16"  # of the weights
    autocast: str | None = None
    optimizer: str = "adamw"
    recompute: str = "none"
    accumulation: int = 1  # micro batches before the optimizer steps
    attention: str = "sdpa"
    device: str = "cuda"

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.micro_batch * self.sequence * self.accumulation
