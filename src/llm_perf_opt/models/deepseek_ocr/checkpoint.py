"""A released folder that runs: the blueprint with its weights, or its own code if that is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import FOLDERS
from llm_perf_opt.core.protocols import ModelAdapter, RealRun
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import Prompt
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.released_folder import load_tokenizer, read_released_folder
from llm_perf_opt.models.deepseek_ocr.targets import real_run


class DeepSeekOcrCheckpoint:
    """Configuration, tokenizer if present, and the code that runs; `notes` say what was decided.

    The folder's own code runs only under `trust_remote_code`; otherwise its weights go into the blueprint, which has
    the same names. `blueprint` makes its adapter, and `adapter` gives the targets of the same model, without weights.
    """

    workload_type: type[Workload] = DeepSeekOcrWorkload

    def __init__(
        self,
        folder: Path,
        blueprint: Callable[[DeepSeekOcrConfig], ModelAdapter],
        *,
        device: str = "cpu",
        attention: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if attention not in (None, "eager", "flash"):
            raise UsageError(
                f"A released folder does not run with attention {attention!r}.",
                why="the released code has an eager variant and one for flash-attn",
                fix="use eager or flash",
            )
        released = read_released_folder(folder)
        self.config, self.eos_token_id = released.config, released.eos_token_id
        self.adapter: ModelAdapter = (
            FOLDERS.get("huggingface")(folder, True) if trust_remote_code else blueprint(released.config)
        )
        self.attention, attention_note = _choose_attention(attention == "flash", device, own_code=trust_remote_code)
        self.tokenizer, tokenizer_note = load_tokenizer(folder, trust_remote_code)
        self._runs_own_code = trust_remote_code
        code = "the folder's own code" if trust_remote_code else "the blueprint, with the weights of the folder"
        self.notes = (f"runs {code}", attention_note, tokenizer_note)

    def real_run(self, workload: Workload, prompt: Prompt | None, page: Image.Image | None = None) -> RealRun:
        """The phases of one page; the attention is the one that was decided."""
        decided = replace(workload, attention=self.attention)
        build = None
        if self._runs_own_code:
            any_page = DeepSeekOcrWorkload(
                image="64x64", mode="tiny", decode_steps=0, dtype=workload.dtype, attention=self.attention
            )
            build = self.adapter.targets(any_page)[0].build
        return real_run(self.config, decided, prompt, tokenizer=self.tokenizer, build=build, page=page)

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """The words of the tokens; None without a tokenizer."""
        return None if self.tokenizer is None else str(self.tokenizer.decode(list(token_ids)))


def _choose_attention(use_flash_attn: bool, device: str, *, own_code: bool) -> tuple[str, str]:
    """The variant that runs, and the sentence that says so."""
    if not use_flash_attn:
        return "eager", "attention is eager: scores are written to memory"
    if not own_code:
        return "flash", "attention is torch's fused causal kernel; the blueprint does not call the flash-attn package"
    if find_spec("flash_attn") is not None and torch.device(device).type == "cuda":
        return "flash", "attention is the flash-attn package"
    missing = "flash-attn is not installed" if find_spec("flash_attn") is None else "flash-attn needs a CUDA device"
    return "eager", f"{missing}, so attention is eager, the only other variant of the folder's code"
