"""The door to the folder. It loads torch only when a workload comes in, so that models can be listed at once."""

from __future__ import annotations

from llm_perf_opt.core.protocols import Json, Part, Target, Workload
from llm_perf_opt.core.source_figures import Testimony
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.page_geometry import mode_of_sizes, require_sizes_of_model


class DeepSeekOcrAdapter:
    """The released model unless a configuration says otherwise."""

    title = "DeepSeek-OCR: SAM and CLIP vision encoders, mixture-of-experts decoder, 3.3 B parameters"

    def __init__(self, config: DeepSeekOcrConfig | None = None) -> None:
        self.config = config or DeepSeekOcrConfig()

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill and, if any steps are asked for, decode."""
        from llm_perf_opt.models.deepseek_ocr.targets import make_targets

        return make_targets(self.config, workload)

    def describe(self, workload: Workload) -> dict[str, Json]:
        """The workload with every default filled in, and the lengths that follow from it; loads no torch."""
        from llm_perf_opt.models.deepseek_ocr.plan import make_plan

        return make_plan(self.config, workload).described()

    def closed_forms(self, workload: Workload) -> tuple[Testimony, ...]:
        """Every stage by formula; loads no torch, and an imaging library only to read the size of an image file."""
        from llm_perf_opt.models.deepseek_ocr.closed_forms import closed_forms

        return closed_forms(self.config, workload)

    def with_view_sizes(
        self, *, base_size: int, crop_size: int | None, patch_size: int, downsample_ratio: int
    ) -> tuple[DeepSeekOcrAdapter, str]:
        """An adapter that has an image mode of these sizes, and its name; this very one if it has it already.

        `patch_size` and `downsample_ratio` are fixed by the model: anything else is refused.
        """
        require_sizes_of_model(self.config, patch_size=patch_size, downsample_ratio=downsample_ratio)
        config, mode = mode_of_sizes(self.config, base_size, crop_size)
        return (self if config is self.config else DeepSeekOcrAdapter(config)), mode

    def parts(self) -> tuple[Part, ...]:
        """The pieces that an exporter should take, in the order of a matrix of results."""
        from llm_perf_opt.models.deepseek_ocr.parts import make_parts

        return make_parts(global_block=self.config.sam.global_attn_indexes[0])
