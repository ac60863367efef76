"""A workload with every option checked and default filled in, in plain numbers: what targets and formulas share."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig, ImageMode
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.page_geometry import count_image_tokens, count_tiles, view_grid, written_size

DEFAULT_IMAGE = "1240x1754"  # A4 at 150 dots per inch
DEFAULT_MODE = "gundam"  # the default of the released inference
DEFAULT_PROMPT_TOKENS = 20
DEFAULT_ATTENTION = "eager"
BYTES_PER_VALUE = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one workload means for one configuration. `grid` is (columns, rows) of the tiles."""

    requested: DeepSeekOcrWorkload
    image: str
    mode_name: str
    mode: ImageMode
    grid: tuple[int, int]
    image_tokens: int
    prompt_tokens: int
    decode_steps: int
    batch: int
    dtype: str
    attention: str

    @property
    def tiles(self) -> int:
        """How many the page is cut into; 0 when it is not cut."""
        return count_tiles(self.grid)

    @property
    def context_tokens(self) -> int:
        """Length of the sequence of the prefill: BOS, image, prompt."""
        return 1 + self.image_tokens + self.prompt_tokens

    def described(self) -> dict[str, Json]:
        """The workload as a trace keeps it."""
        return self.requested.header(
            {
                "image": self.image,
                "mode": self.mode_name,
                "crops": list(self.grid),
                "prompt_tokens": self.prompt_tokens,
                "image_tokens": self.image_tokens,
                "context_tokens": self.context_tokens,
                "decode_steps": self.decode_steps,
                "batch": self.batch,
                "dtype": self.dtype,
                "attention": self.attention,
            }
        )


def make_plan(config: DeepSeekOcrConfig, requested: Workload) -> Plan:
    """Check and resolve a workload; of an image file only the size is read."""
    workload = DeepSeekOcrWorkload.of(requested)
    _refuse_nonsense(workload, config)
    image = workload.image or DEFAULT_IMAGE
    mode_name = workload.mode or DEFAULT_MODE
    mode = config.modes[mode_name]
    grid = view_grid(*page_size(image), mode, workload.crops)
    return Plan(
        requested=workload,
        image=image,
        mode_name=mode_name,
        mode=mode,
        grid=grid,
        image_tokens=count_image_tokens(config, mode, grid),
        prompt_tokens=DEFAULT_PROMPT_TOKENS if workload.prompt_tokens is None else workload.prompt_tokens,
        decode_steps=workload.decode_steps,
        batch=workload.batch,
        dtype=workload.dtype,
        attention=workload.attention or DEFAULT_ATTENTION,
    )


def page_size(image: str) -> tuple[int, int]:
    """(width, height) of an upright page, written as `"1240x1754"` or read from the head of that file."""
    if (size := written_size(image)) is not None:
        return size
    from llm_perf_opt.models.deepseek_ocr.pages import stored_size

    return stored_size(image)


def _refuse_nonsense(workload: DeepSeekOcrWorkload, config: DeepSeekOcrConfig) -> None:
    """What depends on the configuration: its image modes, and which of them cut a page."""
    if workload.new_tokens > 1:
        raise UsageError(
            f"DeepSeek-OCR does not run {workload.new_tokens:,} new tokens after its cache.",
            why="its forward takes more than one token as a new page, and encodes the page again",
            fix="leave --new-tokens out",
        )
    mode = workload.mode or DEFAULT_MODE
    if mode not in config.modes:
        raise UsageError(
            f"DeepSeek-OCR has no mode named {mode!r}.",
            why=f"known: {', '.join(config.modes)}",
            fix="pick one of these",
        )
    if workload.crops is not None and config.modes[mode].crop_size is None:
        raise UsageError(
            f"Mode {mode!r} has no crops.",
            why="it shows the model one view of the whole page",
            fix=f"leave out the crops, or use mode {DEFAULT_MODE!r}",
        )
