"""An ONNX file without weights: they are inputs of the graph, with their names, shapes and dtypes."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram

from llm_perf_opt.export_outcome import Check, Outcome, Verdict
from llm_perf_opt.exports.failure import EXPORT_ERRORS, failed
from llm_perf_opt.exports.onnx_library import missing_packages, onnx_package
from llm_perf_opt.exports.part_under_test import PartUnderTest


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFile:
    """The outcome, and the bytes of the file if there is one."""

    outcome: Outcome
    content: bytes | None = None


def write_onnx(subject: PartUnderTest, program: ExportedProgram) -> OnnxFile:
    """Convert the exported graph, check it, and let ONNX infer every shape.

    The optimiser of the converter is off: it folds constants and would need the values of weights.
    """
    if (absent := missing_packages(Check.ONNX)) is not None:
        return OnnxFile(outcome=absent)
    onnx = onnx_package()
    started = time.perf_counter()
    try:
        with torch.no_grad():
            converted = torch.onnx.export(
                program, dynamo=True, optimize=False, verbose=False, input_names=list(subject.names)
            )
        assert converted is not None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "part.onnx"
            converted.save(file, include_initializers=False, keep_initializers_as_inputs=True)
            content = file.read_bytes()
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except (*EXPORT_ERRORS, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        seconds = time.perf_counter() - started
        return OnnxFile(outcome=failed(Check.ONNX, error, instead=subject.part.instead, seconds=seconds))
    graph = model.graph
    weights = len(graph.input) - len(subject.names)
    told = (
        f"{len(graph.node)} nodes, opset {_opset(model)}, {len(inferred.graph.value_info)} shapes inferred, "
        f"{weights} weights as inputs"
    )
    return OnnxFile(
        outcome=Outcome(check=Check.ONNX, verdict=Verdict.OK, told=told, seconds=time.perf_counter() - started),
        content=content,
    )


def _opset(model: object) -> int:
    """The version of ONNX's own operators."""
    imports = model.opset_import  # type: ignore[attr-defined]  # onnx has no annotations
    return int(next(entry.version for entry in imports if entry.domain in ("", "ai.onnx")))
