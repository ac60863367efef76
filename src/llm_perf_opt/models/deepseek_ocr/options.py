"""What DeepSeek-OCR takes besides the common fields of a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llm_perf_opt.core.options import option, read_grid
from llm_perf_opt.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekOcrWorkload(Workload):
    """One page and how it is shown to the model."""

    taken_by: ClassVar[str] = "DeepSeek-OCR"

    image: str | None = option(None, help="WIDTHxHEIGHT of a blank page, or an image file.")
    mode: str | None = option(None, help="Image mode: tiny, small, base, large, gundam.")
    crops: tuple[int, int] | None = option(
        None,
        at_least=1,
        read=read_grid,
        header_none=([1, 1],),  # a page that was not cut
        metavar="COLUMNSxROWS",
        help="Grid of tiles. Default: derived from the image size.",
    )


WORKLOAD = DeepSeekOcrWorkload
