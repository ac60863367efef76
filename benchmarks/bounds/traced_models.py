"""What each model needs, read from one weightless decode step of its own code, with weights stored as a run says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from llm_perf_opt.analyses.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.analyses.stored_formats import store_cache, store_weights
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, weight_matrices
from llm_perf_opt.core.plugins import FOLDERS, MODELS, TRACERS
from llm_perf_opt.core.tensor_formats import FP8
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrWorkload

CONFIGS = Path(__file__).parents[2] / "tests" / "facts" / "serving" / "configs"
DEEPSEEK_OCR = "deepseek-ocr"
TRACED_PROMPT = 64  # any will do: the needs are a function of batch and context

_ALL = (Role.LINEAR, Role.EXPERTS, Role.HEAD)
STORED = {
    "bf16": {},
    "fp8": dict.fromkeys(_ALL, "fp8"),
    "fp4": dict.fromkeys(_ALL, "nvfp4"),
    "int4": {Role.EXPERTS: "int4-g32-sym"},  # weights alone; attention and shared expert stay in 16 bits
}
MXFP4_EXPERTS = {Role.EXPERTS: "mxfp4"}  # gpt-oss is published so, whatever a record calls its precision


def smallest_stored_form(model: str, precision: str) -> dict[Role, str]:
    """Quantised runs store every matrix but the router's as small as any checkpoint of the label, the cache in fp8."""
    return MXFP4_EXPERTS if model.startswith("gpt-oss") else STORED[precision]


@cache
def traced_needs(model: str, precision: str = "bf16", *, is_smallest: bool = True) -> DecoderNeeds:
    """The needs of a model of `CONFIGS` as its code tells them.

    Without `is_smallest` the head and the cache stay in 16 bits, as in most checkpoints.
    """
    graph = decode_graph(model)
    if precision != "bf16":
        formats = smallest_stored_form(model, precision)
        kept = {role: form for role, form in formats.items() if is_smallest or role is not Role.HEAD}
        roles = weight_matrices(graph)
        graph = store_weights(graph, {name: kept[role] for name, role in roles.items() if role in kept})
        graph = store_cache((graph,), FP8)[0] if is_smallest else graph
    return decoder_needs(graph)


@cache
def decode_graph(model: str) -> CallGraph:
    workload = Workload(prompt_tokens=TRACED_PROMPT)
    if model == DEEPSEEK_OCR:
        targets = MODELS.get(DEEPSEEK_OCR)().targets(DeepSeekOcrWorkload(mode="tiny", prompt_tokens=TRACED_PROMPT))
    else:
        targets = FOLDERS.get("huggingface")(CONFIGS / model, False).targets(workload)
    return TRACERS.get("weightless")().trace(next(target for target in targets if target.phase == "decode"))
