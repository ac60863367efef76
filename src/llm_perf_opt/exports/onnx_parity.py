"""The same part in eager torch and in onnxruntime, on the same random weights and inputs."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.export_outcome import Check, Outcome, Parity, Verdict
from llm_perf_opt.exports.failure import EXPORT_ERRORS, failed
from llm_perf_opt.exports.onnx_library import missing_packages, onnxruntime_package
from llm_perf_opt.exports.part_under_test import PartUnderTest
from llm_perf_opt.exports.random_part import copied_inputs, with_random_weights
from llm_perf_opt.exports.tensor_signature import TensorsOnly

TOLERANCE = 1e-3  # of the largest value of an output


def compare_runtimes(subject: PartUnderTest) -> tuple[Outcome, Parity | None]:
    """Run both and measure the largest difference; weights lie beside the ONNX file while it runs."""
    if (absent := missing_packages(Check.PARITY)) is not None:
        return absent, None
    runtime_errors = _runtime_errors()
    started = time.perf_counter()
    try:
        call = with_random_weights(subject)
        with torch.no_grad():
            expected = call(*copied_inputs(call))
        parity = _parity(expected, _run_onnxruntime(call))
    except (*EXPORT_ERRORS, *runtime_errors) as error:
        return failed(Check.PARITY, error, instead=subject.part.instead, seconds=time.perf_counter() - started), None
    is_close = parity.max_rel_error <= TOLERANCE
    told = f"largest difference {parity.max_abs_error:.1e} among values up to {parity.largest_value:.3g}"
    return (
        Outcome(
            check=Check.PARITY,
            verdict=Verdict.OK if is_close else Verdict.FAILED,
            told=told,
            reason=None if is_close else f"more than {TOLERANCE:g} of the largest value apart",
            seconds=time.perf_counter() - started,
        ),
        parity,
    )


def _run_onnxruntime(call: TensorsOnly) -> list[torch.Tensor]:
    ort = onnxruntime_package()
    inputs = copied_inputs(call)
    with torch.no_grad():
        program = torch.export.export(call, inputs)
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert converted is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.onnx"
        converted.save(file, external_data=True)
        session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        kept = [place for place, entry in enumerate(converted.model.graph.inputs) if entry.name in names]
        fed = {name: inputs[place].numpy() for name, place in zip(names, kept, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, fed)]


def _parity(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Parity:
    if len(expected) != len(found):
        raise ValueError(f"eager gives {len(expected)} outputs, onnxruntime {len(found)}")
    differences = [_apart(place, *pair) for place, pair in enumerate(zip(expected, found, strict=True))]
    largest = [output.abs().max().item() for output in expected]
    return Parity(
        max_abs_error=max(differences),
        max_rel_error=max(apart / size if size else apart for apart, size in zip(differences, largest, strict=True)),
        largest_value=max(largest),
        outputs=len(expected),
    )


def _apart(place: int, ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference within one output; neither broadcasting nor a value that is no number hides one."""
    if ours.shape != theirs.shape:
        raise ValueError(f"output {place} is {list(ours.shape)} in eager and {list(theirs.shape)} in onnxruntime")
    apart = (ours - theirs).abs().max().item()
    if not math.isfinite(apart):
        raise ValueError(f"output {place} has values that are not finite")
    return apart


def _runtime_errors() -> tuple[Any, ...]:
    """The exceptions of onnxruntime share no base class of their own."""
    state = onnxruntime_package().capi.onnxruntime_pybind11_state
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException")
    return tuple(getattr(state, name) for name in names)
