"""What the tests of the plan's calls begin with: a folder that `from_local` takes, and the calls around the model."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.runners.dsocr_analyzer import AnalysisConfig, DeepseekOCRStaticAnalyzer
from llm_perf_opt.runners.dsocr_session import DeepSeekOCRSession
from tests.end_to_end.released_folders import small_folder
from tests.models.deepseek_ocr.tiny_twin import write_tiny_folder

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
TINY = {"base_size": 64, "image_size": 40, "patch_size": 4}


def core_of(model: Any) -> Any:
    """The model without its language head."""
    return getattr(model, "model", model)


class PlanRun:
    """A session, an analyzer and the arguments of a forward, as the plan makes them."""

    def __init__(self, session: DeepSeekOCRSession, **sizes: Any) -> None:
        self.session = session
        self.config = AnalysisConfig(seq_len=12, **sizes)
        self.analyzer = DeepseekOCRStaticAnalyzer(session)
        self.input_ids, kwargs = self.analyzer.prepare_inputs(self.config)
        self.kwargs = {
            "attention_mask": kwargs["attention_mask"],
            "images": kwargs["images"],
            "images_seq_mask": kwargs["images_seq_mask"],
            "images_spatial_crop": kwargs["images_spatial_crop"],
            "use_cache": True,
            "return_dict": True,
        }

    @property
    def views(self) -> int:
        """How often the encoders run: on the crops together, if there are any, and on the whole page."""
        columns, rows = self.kwargs["images_spatial_crop"][0].tolist()
        return 1 + (columns * rows > 1)

    @property
    def needs_positions(self) -> bool:
        """Whether a decoder layer cannot tell the positions of its tokens, as in the released code."""
        return type(self.core).__module__.startswith("transformers_modules")

    @property
    def core(self) -> Any:
        return core_of(self.session.m_model)

    def forward(self) -> Any:
        """Call 3: under no_grad and autocast."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast(torch.device(DEVICE).type, dtype=self.session.m_dtype))
            return self.session.m_model(input_ids=self.input_ids, **self.kwargs)


@cache
def tiny_run() -> PlanRun:
    """The blueprint in miniature."""
    return PlanRun(DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny(), weights="random", device=DEVICE), **TINY)


@cache
def released_run(*, trusts: bool) -> PlanRun:
    """The released folder with a small decoder, by its own code or by the blueprint; pages of 512 pixels."""
    place = small_folder(Path(tempfile.mkdtemp()) / "model", layers=2)
    session = DeepSeekOCRSession.from_local(str(place), DEVICE, True, trusts, weights="random")
    return PlanRun(session, base_size=512, image_size=512, crop_mode=False)


def stored_folder(place: Path) -> Path:
    """A small folder with weights, which `from_local` takes without any further word."""
    safetensors = pytest.importorskip("safetensors.torch", reason="reading stored weights needs safetensors")
    session = DeepSeekOCRSession.from_local(write_tiny_folder(place), weights="random")
    safetensors.save_file(session.model.state_dict(), place / "model.safetensors")
    return place


def write_events(path: Path, events: list[dict[str, Any]], calls: dict[str, int], edges: dict[str, int]) -> None:
    """The JSON file of call 5."""
    path.write_text(json.dumps({"call_counts": calls, "edges": edges, "events": events}))
