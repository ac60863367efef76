"""A configuration becomes an adapter and a workload; the session's own adapter stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from llm_perf_opt import AnalysisConfig, DeepSeekOCRSession, DeepseekOCRStaticAnalyzer, StaticAnalyzer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import RELEASED_MODES, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload


@dataclass(frozen=True)
class Session:
    adapter: ModelAdapter


RELEASED = Session(DeepSeekOcrAdapter())
ANALYZER = DeepseekOCRStaticAnalyzer(RELEASED)


def test_the_defaults_are_a_page_with_tiles_and_512_tokens_of_text() -> None:
    inputs = ANALYZER.prepare_inputs(AnalysisConfig(image_height=1754, image_width=1240))
    told = inputs.targets[0].workload
    assert inputs.adapter is RELEASED.adapter
    assert (told["mode"], told["crops"], told["image"]) == ("gundam", [2, 3], "1240x1754")
    assert (told["image_tokens"], told["prompt_tokens"], told["context_tokens"]) == (903, 512, 1416)
    assert [target.phase for target in inputs.targets] == ["prefill", "decode"]


def test_height_comes_first_as_in_the_signature() -> None:
    assert AnalysisConfig(1754, 1240).page == "1240x1754"


@pytest.mark.parametrize("mode", RELEASED_MODES)
def test_every_released_mode_is_found_by_its_sizes(mode: str) -> None:
    sizes = RELEASED_MODES[mode]
    config = AnalysisConfig(
        1754,
        1240,
        base_size=sizes.global_size,
        image_size=sizes.crop_size or 640,
        crop_mode=sizes.crop_size is not None,
    )
    inputs = ANALYZER.prepare_inputs(config)
    assert (inputs.workload.mode, inputs.adapter) == (mode, RELEASED.adapter)


def test_other_sizes_make_a_mode_of_their_own_and_leave_the_session_alone() -> None:
    inputs = ANALYZER.prepare_inputs(AnalysisConfig(1754, 1240, base_size=768, image_size=512))
    assert inputs.targets[0].workload["image_tokens"] == 12 * 13 + 1 + (2 * 8 + 1) * 3 * 8
    assert isinstance(inputs.adapter, DeepSeekOcrAdapter)
    assert inputs.adapter.config.sam == DeepSeekOcrConfig().sam
    assert isinstance(RELEASED.adapter, DeepSeekOcrAdapter)
    assert RELEASED.adapter.config == DeepSeekOcrConfig()


@pytest.mark.parametrize(("base_size", "is_stretched"), [(576, True), (704, False)])
def test_a_small_view_of_its_own_is_stretched_and_a_large_one_padded(base_size: int, is_stretched: bool) -> None:
    inputs = ANALYZER.prepare_inputs(AnalysisConfig(1754, 1240, base_size=base_size, crop_mode=False))
    assert isinstance(inputs.adapter, DeepSeekOcrAdapter)
    assert inputs.workload.mode is not None
    assert inputs.adapter.config.modes[inputs.workload.mode].is_stretched is is_stretched


def test_an_image_gives_its_own_size(tmp_path: Path) -> None:
    page = Image.new("RGB", (900, 1400), "red")
    page.save(tmp_path / "page.png")
    for image in (page, tmp_path / "page.png", str(tmp_path / "page.png"), "900x1400"):
        assert ANALYZER.prepare_inputs(AnalysisConfig(image=image)).targets[0].workload["crops"] == [2, 3]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AnalysisConfig(1754, 1240, patch_size=14), "patch_size cannot be 14"),
        (AnalysisConfig(1754, 1240, downsample_ratio=2), "downsample_ratio cannot be 2"),
        (AnalysisConfig(1754, 1240, base_size=8), "8 pixels a side is too small"),
        (AnalysisConfig(1754), "Half a page size"),
        (AnalysisConfig(100, 100, image=Image.new("RGB", (20, 30))), "20x30 pixels, not 100x100"),
        (AnalysisConfig(1754, 1240, seq_len=-1), "prompt_tokens cannot be -1"),
        (AnalysisConfig(1754, 1240, dtype="int3"), "dtype cannot be 'int3'"),
    ],
)
def test_what_cannot_be_meant_is_refused(config: AnalysisConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ANALYZER.prepare_inputs(config)


def test_what_the_session_runs_is_what_is_analysed_unless_told() -> None:
    session = DeepSeekOCRSession.from_blueprint(dtype="float32", attention="flash")
    told = DeepseekOCRStaticAnalyzer(session).prepare_inputs(AnalysisConfig(1754, 1240)).workload
    assert (told.dtype, told.attention) == ("float32", "flash")
    config = AnalysisConfig(1754, 1240, dtype="bfloat16", attention="eager")
    told = DeepseekOCRStaticAnalyzer(session).prepare_inputs(config).workload
    assert (told.dtype, told.attention) == ("bfloat16", "eager")


class TextModel:
    """An adapter that knows nothing of pages."""

    title = "a text model"

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        return (
            Target(
                model="text",
                phase="prefill",
                workload=workload.changed(),
                build=lambda: None,
                invoke=lambda model: None,
            ),
        )


def test_a_model_without_images_takes_the_text_alone() -> None:
    inputs = StaticAnalyzer(Session(TextModel())).prepare_inputs(AnalysisConfig(seq_len=99))
    assert inputs.targets[0].workload == {"prompt_tokens": 99}
    with pytest.raises(UsageError, match="no use for base_size"):
        StaticAnalyzer(Session(TextModel())).prepare_inputs(AnalysisConfig(base_size=512))


class FolderModel(TextModel):
    """As the adapter of a released folder: it takes the model's options, and modes by name alone."""

    workload_type = DeepSeekOcrWorkload


def test_a_folder_with_its_own_code_has_the_released_modes_alone() -> None:
    analyzer = DeepseekOCRStaticAnalyzer(Session(FolderModel()))
    assert analyzer.prepare_inputs(AnalysisConfig(1754, 1240, crop_mode=False)).workload.mode == "base"
    with pytest.raises(UsageError, match="no image mode of these sizes"):
        analyzer.prepare_inputs(AnalysisConfig(1754, 1240, base_size=768))


def test_nothing_is_analysed_before_something_is_prepared() -> None:
    with pytest.raises(UsageError, match="Nothing is prepared"):
        DeepseekOCRStaticAnalyzer(RELEASED).analyze_full_model()
