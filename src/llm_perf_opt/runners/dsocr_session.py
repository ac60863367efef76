"""`DeepSeekOCRSession` lives in `llm_perf_opt`."""

from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession, Inference

__all__ = ["DeepSeekOCRSession", "Inference"]
