"""The door to the folder. It loads torch only when a workload comes in, so that models can be listed at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.protocols import RealRun
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.target import Json, Part, Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.page_geometry import mode_of_sizes, require_sizes_of_model

if TYPE_CHECKING:
    from llm_perf_opt.models.deepseek_ocr.checkpoint import DeepSeekOcrCheckpoint


class DeepSeekOcrAdapter:
    """The released model unless a configuration says otherwise."""

    title = "DeepSeek-OCR: SAM and CLIP vision encoders, mixture-of-experts decoder, 3.3 B parameters"

    workload_type: type[Workload] = DeepSeekOcrWorkload

    def __init__(self, config: DeepSeekOcrConfig | None = None, *, name: str = "deepseek-ocr") -> None:
        self.config = config or DeepSeekOcrConfig()
        self.name = name

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill and, if any steps are asked for, decode."""
        from llm_perf_opt.models.deepseek_ocr.targets import make_targets

        return make_targets(self.config, workload, name=self.name)

    def real_run(self, workload: Workload, prompt: str | None) -> RealRun:
        """The same phases with the page read and cut in every pass; words need the tokenizer of a released folder."""
        from llm_perf_opt.models.deepseek_ocr.targets import real_run

        return real_run(self.config, workload, prompt, name=self.name)

    def open_checkpoint(
        self, folder: Path, *, device: str, attention: str | None, trust_remote_code: bool
    ) -> DeepSeekOcrCheckpoint:
        """A released folder, with its sizes, weights and tokenizer."""
        from llm_perf_opt.models.deepseek_ocr.checkpoint import DeepSeekOcrCheckpoint

        return DeepSeekOcrCheckpoint(folder, device=device, attention=attention, trust_remote_code=trust_remote_code)

    def describe(self, workload: Workload) -> dict[str, Json]:
        """The workload with every default filled in, and the lengths that follow from it; loads no torch."""
        from llm_perf_opt.models.deepseek_ocr.plan import make_plan

        return make_plan(self.config, workload).described()

    def closed_forms(self, workload: Workload) -> tuple[SourceFigures, ...]:
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


class DeepSeekOcrTinyAdapter(DeepSeekOcrAdapter):
    """The same code with the smallest sizes, which runs in milliseconds."""

    title = "DeepSeek-OCR in miniature: the same code, 3 decoder layers, runs in milliseconds"

    def __init__(self) -> None:
        super().__init__(DeepSeekOcrConfig.tiny(), name="deepseek-ocr-tiny")
