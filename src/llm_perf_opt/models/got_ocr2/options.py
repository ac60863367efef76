"""What GOT-OCR 2.0 takes besides the common fields of a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llm_perf_opt.core.options import option, read_grid
from llm_perf_opt.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GotOcr2Workload(Workload):
    """Every page is stretched to 1024 x 1024 pixels, so that only the number of crops changes the work."""

    taken_by: ClassVar[str] = "GOT-OCR 2.0"

    crops: tuple[int, int] | None = option(
        None,
        at_least=1,
        read=read_grid,
        header_none=([1, 1],),
        metavar="COLUMNSxROWS",
        help="Grid of tiles besides the whole page.",
    )


WORKLOAD = GotOcr2Workload
