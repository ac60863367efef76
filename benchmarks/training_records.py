"""Fit, step time and FLOP conventions of `train` against published training records, held out by source.

    python -m benchmarks.training_records [--docs] [--judge]

Reads the models without weights and prices 659 published steps through the verb's own function. Without --judge only
the sources that the capability was developed on are opened. With --docs the page and its data are written anew.
"""

from __future__ import annotations

# Chosen before any prediction was made. A source is a repository that published a table of its own runs.
DEVELOPMENT = ("llm_foundry", "qwen_finetune", "xtuner_megatron", "torchtitan")
JUDGING = ("torchtune", "fsdp_qlora", "fms_fsdp", "automodel", "megatron_bridge", "litgpt")
FIRST_RELEASE = "26.06"  # of megatron_bridge; the same configurations in older releases judge nothing
