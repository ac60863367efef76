"""Closed forms of DeepSeek-OCR: FLOPs, weights and memory from the configuration alone, without torch."""

from llm_perf_opt.models.deepseek_ocr.formulas.decoder import Passes, decode_passes, decoder_work, prefill_pass
from llm_perf_opt.models.deepseek_ocr.formulas.memory import (
    CacheFormula,
    active_parameters,
    parameters_by_part,
    parameters_by_stage,
    weight_bytes,
    weight_bytes_read_per_step,
)
from llm_perf_opt.models.deepseek_ocr.formulas.vision import Views, clip_work, projector_work, sam_work, vision_work
from llm_perf_opt.models.deepseek_ocr.formulas.work import (
    MatrixWork,
    active_weights,
    counted_activations,
    module_flops,
    total_flops,
)

__all__ = [
    "MatrixWork",
    "total_flops",
    "module_flops",
    "active_weights",
    "counted_activations",
    "Views",
    "vision_work",
    "sam_work",
    "clip_work",
    "projector_work",
    "Passes",
    "prefill_pass",
    "decode_passes",
    "decoder_work",
    "parameters_by_part",
    "parameters_by_stage",
    "CacheFormula",
    "weight_bytes",
    "active_parameters",
    "weight_bytes_read_per_step",
]
