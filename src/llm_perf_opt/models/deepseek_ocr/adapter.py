"""The door to the folder. It loads torch only when a workload comes in, so that models can be listed at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import RealRun
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.target import Json, Part, Target, World
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
        self._world: World | None = None  # the ranks that the model is spread over, of which this is one

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill and, if any steps are asked for, decode."""
        from llm_perf_opt.models.deepseek_ocr.targets import make_targets

        return make_targets(self.config, workload, name=self.name, world=self._world)

    def on_rank(self, plan: ParallelPlan) -> DeepSeekOcrAdapter:
        """The same model as one rank of a plan holds and runs it."""
        from llm_perf_opt.harness.fake_world import FakeWorld
        from llm_perf_opt.models.deepseek_ocr.ranks import require_plan

        require_plan(self.config.decoder, plan)
        adapter = copy.copy(self)
        adapter._world = FakeWorld(plan) if plan.is_spread else None
        return adapter

    def kinds_of_rank(self, plan: ParallelPlan, workload: Workload) -> tuple[int, ...]:
        """One rank of each kind: they differ in the views that they encode."""
        from llm_perf_opt.models.deepseek_ocr.ranks import kinds_of_rank

        return kinds_of_rank(plan, workload, self.config)

    def real_run(self, workload: Workload, prompt: str | None) -> RealRun:
        """The same phases with the page read and cut in every pass; words need the tokenizer of a released folder."""
        from llm_perf_opt.models.deepseek_ocr.targets import real_run

        return real_run(self.config, workload, prompt, name=self.name)

    def open_checkpoint(
        self, folder: Path, *, device: str, attention: str | None, trust_remote_code: bool
    ) -> DeepSeekOcrCheckpoint:
        """A released folder, with its sizes, weights and tokenizer."""
        from llm_perf_opt.models.deepseek_ocr.checkpoint import DeepSeekOcrCheckpoint

        return DeepSeekOcrCheckpoint(
            folder, DeepSeekOcrAdapter, device=device, attention=attention, trust_remote_code=trust_remote_code
        )

    def write_engine_folder(self, folder: Path) -> None:
        """The configuration for a serving engine, which takes a folder and not a name."""
        from llm_perf_opt.models.deepseek_ocr.released_folder import write_engine_folder

        write_engine_folder(self.config, folder)

    def describe(self, workload: Workload) -> dict[str, Json]:
        """The workload with every default filled in, and the lengths that follow from it; loads no torch."""
        from llm_perf_opt.models.deepseek_ocr.plan import make_plan

        return make_plan(self.config, workload).described()

    def closed_forms(self, workload: Workload) -> tuple[SourceFigures, ...]:
        """Every stage by formula; loads no torch, and an imaging library only to read the size of an image file.

        They are for the whole model: there are none for one rank of a plan.
        """
        if self._world is not None:
            return ()
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
