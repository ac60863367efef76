"""The door to the folder. It loads torch and transformers only when a workload comes in."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.got_ocr2.options import GotOcr2Workload


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
