"""Which module paths make up which stage; everything else belongs to the phase, prefill or decode."""

from __future__ import annotations

from llm_perf_opt.core.protocols import Stage

STAGES = (
    Stage(name="sam", paths=("model.sam_model",)),
    Stage(name="clip", paths=("model.vision_model",)),
    Stage(name="projector", paths=("model.projector",)),
)
