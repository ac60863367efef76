"""DeepSeek-OCR with weights: a page and a prompt go in, tokens come out, and every stage can be watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.measurement import InferenceRequest, SessionRequest
from llm_perf_opt.core.protocols import FOLDERS, Inference, ModelAdapter, StageWatch, Target, Workload
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.stage_ranges import NamedRanges, Unwatched, WatchedByAll, modules_named
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.generation import generate
from llm_perf_opt.models.deepseek_ocr.inputs import OcrInputs, Prompt, make_inputs, prompt_ids
from llm_perf_opt.models.deepseek_ocr.page_geometry import NO_TILES
from llm_perf_opt.models.deepseek_ocr.pages import cut_views, open_page
from llm_perf_opt.models.deepseek_ocr.patches import replaced
from llm_perf_opt.models.deepseek_ocr.plan import make_plan
from llm_perf_opt.models.deepseek_ocr.released_folder import load_tokenizer, read_released_folder
from llm_perf_opt.models.deepseek_ocr.targets import DTYPES

RANGES = ("none", "stages", "modules")


class DeepSeekOCRSession:
    """A model that is built when it first runs, its tokenizer if there is one, and `notes` on what was decided.

    Make one with `from_blueprint` or `from_local`. `adapter` gives the targets of the same model, without weights.
    """

    def __init__(
        self,
        *,
        adapter: ModelAdapter,
        config: DeepSeekOcrConfig,
        weights: str | None,
        device: str,
        workload: Workload,
        tokenizer: Any | None = None,
        eos_token_id: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.adapter = adapter
        self.config = config
        self.device = device
        self.dtype = workload.dtype
        self.attention = workload.attention
        self.tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.notes = notes
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
                why="it comes without files; its weights are random or none",
                fix='use weights="random", or from_local for the released ones',
            )
        config = config or DeepSeekOcrConfig()
        return cls(
            adapter=DeepSeekOcrAdapter(config),
            config=config,
            weights=weights,
            device=device,
            workload=Workload(dtype=dtype, attention=attention),
        )

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
        released = read_released_folder(folder)
        adapter: ModelAdapter = (
            FOLDERS.get("huggingface")(folder, True) if trust_remote_code else DeepSeekOcrAdapter(released.config)
        )
        attention, attention_note = _choose_attention(use_flash_attn, device, own_code=trust_remote_code)
        tokenizer, tokenizer_note = load_tokenizer(folder, trust_remote_code)
        code = "the folder's own code" if trust_remote_code else "the blueprint, with the weights of the folder"
        return cls(
            adapter=adapter,
            config=released.config,
            weights=str(folder) if weights == "stored" else weights,
            device=device,
            workload=Workload(dtype=dtype, attention=attention),
            tokenizer=tokenizer,
            eos_token_id=released.eos_token_id,
            notes=(f"runs {code}", attention_note, tokenizer_note),
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
            with silenced():
                models = RealModels(weights=self._weights, device=self.device)
                self._model = models.model_of(self._any_target())
        return self._model

    def _any_target(self) -> Target:
        return self.adapter.targets(replace(self._workload, image="64x64", mode="tiny", decode_steps=0))[0]

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
        """Preprocess, one prefill with the page, then one forward per further token on the cache without it.

        `image` is a file, a size such as `"1240x1754"` for a synthetic page, or an image. `ranges` puts names into the
        records of profilers: of the "stages", or of all "modules" too.
        """
        if ranges not in RANGES:
            raise UsageError(f"No ranges {ranges!r}.", why=f"known: {', '.join(RANGES)}", fix="pick one of these")
        if max_new_tokens < 1:
            raise UsageError("At least one token must be asked for.", why=f"it was {max_new_tokens}", fix="give 1")
        model = self.model
        told: StageWatch = watch or Unwatched()
        with ExitStack() as stack:
            if ranges != "none":
                told = WatchedByAll(told, NamedRanges())
            if ranges == "modules":
                stack.enter_context(modules_named(model))
            stack.enter_context(silenced())
            stack.enter_context(_cuda_calls_stay(self.device))
            with told.stage("preprocess"):
                inputs, workload = self.prepare(image, prompt, mode, crops)
            eos = self.eos_token_id if stop_at_eos else None
            made = generate(model, inputs, max_new_tokens, watch=told, eos_token_id=eos)
        return Inference(
            token_ids=made.token_ids,
            text=None if self.tokenizer is None else self.tokenizer.decode(list(made.token_ids)),
            context_tokens=inputs.num_tokens,
            decode_steps=made.decode_steps,
            cache_tokens=made.cache_tokens,
            workload=replace(workload, decode_steps=made.decode_steps),
        )

    def infer(self, request: InferenceRequest, watch: StageWatch, ranges: str = "none") -> Inference:
        """`run_inference` of a request."""
        return self.run_inference(
            request.image,
            request.prompt,
            request.max_new_tokens,
            mode=request.mode,
            crops=request.crops,
            stop_at_eos=request.stop_at_eos,
            watch=watch,
            ranges=ranges,
        )

    def prepare(
        self,
        image: str | Path | Image.Image,
        prompt: Prompt,
        mode: str | None = None,
        crops: tuple[int, int] | None = None,
    ) -> tuple[OcrInputs, Workload]:
        """The inputs of a prefill on the device, and the same page as an adapter takes it."""
        page = image.convert("RGB") if isinstance(image, Image.Image) else open_page(str(image))
        text = prompt_ids(prompt, self.tokenizer)
        size = f"{page.width}x{page.height}"
        wanted = replace(self._workload, image=size, mode=mode, crops=crops, prompt_tokens=text.num_tokens)
        plan = make_plan(self.config, wanted)
        views = cut_views(page, plan.mode, plan.grid)
        inputs = make_inputs(self.config, plan.mode, views, prompt=text, batch=1, dtype=DTYPES[plan.dtype])
        grid = None if plan.grid == NO_TILES else plan.grid
        workload = replace(wanted, mode=plan.mode_name, crops=crops or grid)
        return inputs.to(self.device), workload


def open_session(request: SessionRequest) -> DeepSeekOCRSession:
    """The full-size model: of a folder if there is one, otherwise the blueprint."""
    if request.folder is None:
        return _open_blueprint(DeepSeekOcrConfig(), request)
    if request.attention not in (None, "eager", "flash"):
        raise UsageError(
            f"A folder is not run with attention {request.attention!r}.",
            why="the released code has an eager variant and one for flash-attn",
            fix="use eager or flash",
        )
    return DeepSeekOCRSession.from_local(
        request.folder,
        device=request.device,
        use_flash_attn=request.attention == "flash",
        trust_remote_code=request.trust_remote_code,
        dtype=request.dtype,
        weights=request.weights,
    )


def open_tiny_session(request: SessionRequest) -> DeepSeekOCRSession:
    """The twin in miniature, which runs in milliseconds."""
    return _open_blueprint(DeepSeekOcrConfig.tiny(), request)


def _open_blueprint(config: DeepSeekOcrConfig, request: SessionRequest) -> DeepSeekOCRSession:
    return DeepSeekOCRSession.from_blueprint(
        config,
        weights=request.weights,
        device=request.device,
        dtype=request.dtype,
        attention=request.attention or "eager",
    )


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


@contextmanager
def _cuda_calls_stay(device: str) -> Iterator[None]:
    """Released code moves a mask with `.cuda()` wherever it runs; on a CPU that call leaves the tensor where it is."""
    if torch.device(device).type == "cuda":
        yield
        return
    with replaced(torch.Tensor, "cuda", lambda cuda: lambda tensor, *args, **kwargs: tensor):
        yield
