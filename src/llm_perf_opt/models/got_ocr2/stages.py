"""Which module paths make up which stage; everything else belongs to the phase, prefill or decode."""

from __future__ import annotations

from llm_perf_opt.plugins import Stage

STAGES = (
    Stage(name="vision", paths=("model.vision_tower",)),
    Stage(name="projector", paths=("model.multi_modal_projector",)),
)
