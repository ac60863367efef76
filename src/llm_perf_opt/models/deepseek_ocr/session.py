"""DeepSeek-OCR for scripts: a page and a prompt go in, tokens come out, and every stage can be watched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.protocols import ModelAdapter, RealRun, StageWatch
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.workload import Workload, steps_after_prompt
from llm_perf_opt.harness.phase_runs import run_phases
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.stage_ranges import Unwatched
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.checkpoint import DeepSeekOcrCheckpoint
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs, Prompt
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.targets import DTYPES, real_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What a page and a prompt became. `workload` is the same run for an adapter, with everything decided."""

    token_ids: tuple[int, ...]
    text: str | None  # None: no tokenizer
    context_tokens: int
    decode_steps: int
    cache_tokens: int | None
    workload: Workload


class DeepSeekOCRSession:
    """A model that is built when it first runs, its tokenizer if there is one, and `notes` on what was decided.

    Make one with `from_blueprint` or `from_local`. `adapter` gives the targets of the same model, without weights.
    """

    def __init__(
        self,
        *,
        config: DeepSeekOcrConfig,
        weights: str | None,
        device: str,
        workload: DeepSeekOcrWorkload,
        checkpoint: DeepSeekOcrCheckpoint | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = workload.dtype
        self.attention = workload.attention
        self.adapter: ModelAdapter = DeepSeekOcrAdapter(config) if checkpoint is None else checkpoint.adapter
        self.tokenizer: Any | None = None if checkpoint is None else checkpoint.tokenizer
        self.eos_token_id = None if checkpoint is None else checkpoint.eos_token_id
        self.notes = () if checkpoint is None else checkpoint.notes
        self._checkpoint = checkpoint
        self._weights = weights
        self._workload = workload  # dtype and attention; the rest comes with each run
        self._model: torch.nn.Module | None = None

    @classmethod
    def from_blueprint(
        cls,
        config: DeepSeekOcrConfig | None = None,
        *,
        weights: str | None = None,
        device: str = "cpu",
        dtype: str = "bfloat16",
        attention: str = "eager",
    ) -> DeepSeekOCRSession:
        """Our own code of the model, without any file. Without weights it can be analysed but not run."""
        if weights not in (None, "random"):
            raise UsageError(
                f"The blueprint has no weights {weights!r}.",
                why="it has no files of weights: they can be random, or absent",
                fix='use weights="random", or from_local for the released ones',
            )
        workload = DeepSeekOcrWorkload(dtype=dtype, attention=attention)
        return cls(config=config or DeepSeekOcrConfig(), weights=weights, device=device, workload=workload)

    @classmethod
    def from_local(
        cls,
        model_path: Path | str,
        device: str = "cpu",
        use_flash_attn: bool = False,
        trust_remote_code: bool = False,
        *,
        dtype: str = "bfloat16",
        weights: str | None = "stored",
    ) -> DeepSeekOCRSession:
        """A released folder: configuration, tokenizer if present, safetensors.

        The folder's own code runs only under `trust_remote_code`; otherwise its weights go into the blueprint, which
        has the same names. `weights` may be "random" for a folder that holds none.
        """
        folder = Path(model_path)
        checkpoint = DeepSeekOcrCheckpoint(
            folder,
            DeepSeekOcrAdapter,
            device=device,
            attention="flash" if use_flash_attn else None,
            trust_remote_code=trust_remote_code,
        )
        return cls(
            config=checkpoint.config,
            weights=str(folder) if weights == "stored" else weights,
            device=device,
            workload=DeepSeekOcrWorkload(dtype=dtype, attention=checkpoint.attention),
            checkpoint=checkpoint,
        )

    @property
    def model(self) -> torch.nn.Module:
        """The module on its device, built and given its weights at the first use."""
        if self._model is None:
            if self._weights is None:
                raise PerfOptError(
                    "This session has no weights.",
                    why="it was made for weightless analysis",
                    fix='make it with weights="random", or from a folder that holds the released ones',
                )
            with OneRun(), silenced():
                if self._model is None:  # no other thread has built it meanwhile
                    models = RealModels(weights=self._weights, device=self.device)
                    any_page = replace(self._workload, image="64x64", mode="tiny", decode_steps=0)
                    self._model = models.model_of(self.adapter.targets(any_page)[0])
        return self._model

    @property
    def m_model(self) -> torch.nn.Module:
        """The same as `model`."""
        return self.model

    @property
    def m_dtype(self) -> torch.dtype:
        """`dtype` as torch has it."""
        return DTYPES[self.dtype]

    @property
    def m_device(self) -> torch.device:
        """`device` as torch has it."""
        return torch.device(self.device)

    def run_inference(
        self,
        image: str | Path | Image.Image,
        prompt: Prompt,
        max_new_tokens: int,
        *,
        mode: str | None = None,
        crops: tuple[int, int] | None = None,
        stop_at_eos: bool = True,
        watch: StageWatch | None = None,
        ranges: str = "none",
    ) -> Inference:
        """Preprocess, one prefill with the page, then one forward per further token on the cache.

        `image` is a file, a size such as `"1240x1754"` for a synthetic page, or an image. `ranges` puts names into the
        records of profilers: of the "stages", or of all "modules" too.
        """
        if max_new_tokens < 1:
            raise UsageError("At least one token must be asked for.", why=f"it was {max_new_tokens}", fix="give 1")
        model = self.model
        run = self._run(image, prompt, mode, crops, decode_steps=steps_after_prompt(max_new_tokens))
        done = run_phases(
            model,
            run.targets,
            watch or Unwatched(),
            device=self.device,
            eos_token_id=self.eos_token_id if stop_at_eos else None,
            ranges=ranges,
        )
        return Inference(
            token_ids=done.token_ids,
            text=None if self.tokenizer is None else self.tokenizer.decode(list(done.token_ids)),
            context_tokens=run.targets[0].workload["context_tokens"],
            decode_steps=done.decode_steps,
            cache_tokens=done.cache_tokens,
            workload=replace(run.workload, decode_steps=done.decode_steps),
        )

    def prepare(
        self,
        image: str | Path | Image.Image,
        prompt: Prompt,
        mode: str | None = None,
        crops: tuple[int, int] | None = None,
    ) -> tuple[OcrInputs, Workload]:
        """The inputs of a prefill on the device, and the same page as an adapter takes it."""
        run = self._run(image, prompt, mode, crops, decode_steps=self._workload.decode_steps)
        inputs = run.targets[0].start(self.model)
        assert isinstance(inputs, OcrInputs)
        return inputs, run.workload

    def _run(
        self,
        image: str | Path | Image.Image,
        prompt: Prompt,
        mode: str | None,
        crops: tuple[int, int] | None,
        *,
        decode_steps: int,
    ) -> RealRun:
        page = image.convert("RGB") if isinstance(image, Image.Image) else None
        wanted = replace(self._workload, mode=mode, crops=crops, decode_steps=decode_steps)
        if page is None:
            wanted = replace(wanted, image=str(image))
        if self._checkpoint is None:
            return real_run(self.config, wanted, prompt, tokenizer=self.tokenizer, page=page)
        return self._checkpoint.real_run(wanted, prompt, page)
