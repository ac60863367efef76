"""The door to the folder. It loads torch and transformers only when a workload comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from llm_perf_opt.core.options import option, read_grid
from llm_perf_opt.core.target import Target
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


class GotOcr2Adapter:
    """The released sizes, which are the defaults of transformers, unless a configuration says otherwise."""

    title = "GOT-OCR 2.0: SAM vision encoder, Qwen2 decoder, 0.56 B parameters; needs transformers"

    workload_type: type[Workload] = GotOcr2Workload

    def __init__(self, config: Any = None) -> None:
        self._config = config  # a transformers GotOcr2Config

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill and, if any steps are asked for, decode."""
        from llm_perf_opt.models.got_ocr2.targets import make_targets

        return make_targets(self._config, workload)
