"""The door to the folder. It loads torch only when a workload comes in, so that models can be listed at once."""

from __future__ import annotations

from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.plugins import Target, Workload


class DeepSeekOcrAdapter:
    """The released model unless a configuration says otherwise."""

    title = "DeepSeek-OCR: SAM and CLIP vision encoders, mixture-of-experts decoder, 3.3 B parameters"

    def __init__(self, config: DeepSeekOcrConfig | None = None) -> None:
        self.config = config or DeepSeekOcrConfig()

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill and, if any steps are asked for, decode."""
        from llm_perf_opt.models.deepseek_ocr.targets import make_targets

        return make_targets(self.config, workload)
