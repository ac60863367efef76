"""ONNX: a file with the weights as inputs, and the same part in eager torch and in onnxruntime.

The packages are optional; a missing one is an outcome that says what to install.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

import torch
from torch.export import ExportedProgram

from llm_perf_opt.core.export_outcome import Check, CheckOutcome, FileCheck, Parity, Verdict
from llm_perf_opt.core.interrupts import InterruptsWait
from llm_perf_opt.core.output_files import cannot_write, move_whole, scratch_folder
from llm_perf_opt.core.units import format_count
from llm_perf_opt.exports.failure import EXPORT_ERRORS, failed
from llm_perf_opt.exports.part_under_test import PartUnderTest, TensorsOnly, copied_inputs, runnable

_NEEDED = {Check.ONNX: ("onnx", "onnxscript"), Check.PARITY: ("onnx", "onnxscript", "onnxruntime")}


def missing_packages(check: Check) -> CheckOutcome | None:
    """The outcome of a check that lacks a package; None if all are installed."""
    for name in _NEEDED[check]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return CheckOutcome(
                check=check,
                verdict=Verdict.SKIPPED,
                detail=f"{name} is not installed",
                error=type(error).__name__,
                remedy="pip install 'llm-perf-opt[onnx]'",
            )
    return None


def onnx_package() -> ModuleType:
    """The `onnx` package; call `missing_packages` first."""
    return importlib.import_module("onnx")


def onnxruntime_package() -> ModuleType:
    """The `onnxruntime` package; call `missing_packages` first."""
    return importlib.import_module("onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFile:
    """The outcome, and the bytes of the file if there is one."""

    outcome: CheckOutcome
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
        with scratch_folder() as folder:
            file = folder / "part.onnx"
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
    detail = (
        f"{len(graph.node)} nodes, opset {_opset(model)}, {len(inferred.graph.value_info)} shapes inferred, "
        f"{weights} weights as inputs"
    )
    return OnnxFile(
        outcome=CheckOutcome(
            check=Check.ONNX, verdict=Verdict.OK, detail=detail, seconds=time.perf_counter() - started
        ),
        content=content,
    )


def _opset(model: object) -> int:
    """The version of ONNX's own operators."""
    imports = model.opset_import  # type: ignore[attr-defined]  # onnx has no annotations
    return int(next(entry.version for entry in imports if entry.domain in ("", "ai.onnx")))


TOLERANCE = 1e-3  # of the largest value of an output


def compare_runtimes(subject: PartUnderTest) -> tuple[CheckOutcome, Parity | None]:
    """Run both and measure the largest difference; weights are next to the ONNX file while it runs."""
    if (absent := missing_packages(Check.PARITY)) is not None:
        return absent, None
    raised = runtime_errors()
    started = time.perf_counter()
    try:
        call = runnable(subject)
        with torch.no_grad():
            expected = call(*copied_inputs(call))
        parity = parity_of(expected, _run_onnxruntime(call))
    except (*EXPORT_ERRORS, *raised) as error:
        return failed(Check.PARITY, error, instead=subject.part.instead, seconds=time.perf_counter() - started), None
    is_close = parity.max_rel_error <= TOLERANCE
    detail = f"largest difference {parity.max_abs_error:.1e} among values up to {parity.largest_value:.3g}"
    return (
        CheckOutcome(
            check=Check.PARITY,
            verdict=Verdict.OK if is_close else Verdict.FAILED,
            detail=detail,
            reason=None if is_close else f"more than {TOLERANCE:g} of the largest value apart",
            seconds=time.perf_counter() - started,
        ),
        parity,
    )


def _run_onnxruntime(call: TensorsOnly) -> list[torch.Tensor]:
    inputs = copied_inputs(call)
    with torch.no_grad(), scratch_folder() as folder:
        file = folder / "part.onnx"
        names = save_with_weights(torch.export.export(call, inputs), file, external_data=True)
        return run_file(file, names, inputs)


def save_with_weights(
    program: ExportedProgram, file: Path, *, external_data: bool, input_names: Sequence[str] | None = None
) -> list[str]:
    """Write the program with its weights inside, or with `external_data` next to it; the names of its inputs."""
    names = None if input_names is None else list(input_names)
    converted = torch.onnx.export(program, dynamo=True, verbose=False, input_names=names)
    assert converted is not None
    converted.save(file, external_data=external_data)
    return [str(entry.name) for entry in converted.model.graph.inputs]


def run_file(file: Path, names: Sequence[str], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a file that is complete; an input that the graph does not use is not fed."""
    session = onnxruntime_package().InferenceSession(str(file), providers=["CPUExecutionProvider"])
    used = {entry.name for entry in session.get_inputs()}
    fed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True) if name in used}
    return [torch.from_numpy(array) for array in session.run(None, fed)]


def parity_of(expected: Sequence[torch.Tensor], given: Sequence[torch.Tensor], runtime: str = "onnxruntime") -> Parity:
    """How far the outputs of another runtime are from the module's."""
    if len(expected) != len(given):
        raise ValueError(f"eager gives {len(expected)} outputs, {runtime} {len(given)}")
    differences = [_apart(place, *pair, runtime) for place, pair in enumerate(zip(expected, given, strict=True))]
    largest = [output.abs().max().item() for output in expected]
    return Parity(
        max_abs_error=max(differences),
        max_rel_error=max(apart / size if size else apart for apart, size in zip(differences, largest, strict=True)),
        largest_value=max(largest),
        outputs=len(expected),
    )


def _apart(place: int, ours: torch.Tensor, theirs: torch.Tensor, runtime: str) -> float:
    """The largest difference within one output; neither broadcasting nor a value that is no number hides one."""
    if ours.shape != theirs.shape:
        raise ValueError(f"output {place} is {list(ours.shape)} in eager and {list(theirs.shape)} in {runtime}")
    apart = (ours - theirs).abs().max().item()
    if not math.isfinite(apart):
        raise ValueError(f"output {place} has values that are not finite")
    return apart


def runtime_errors() -> tuple[Any, ...]:
    """The exceptions of onnxruntime share no base class of their own."""
    state = onnxruntime_package().capi.onnxruntime_pybind11_state
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException")
    return tuple(getattr(state, name) for name in names)


ONE_FILE_BYTES = 1 << 30  # a protobuf message ends at 2 GiB; above this the weights are in a file next to the .onnx


def write_weighted(
    subject: PartUnderTest, folder: Path | None, *, with_onnx: bool
) -> tuple[CheckOutcome, tuple[FileCheck, ...], tuple[Path, ...]]:
    """The .pt2, and the .onnx where ONNX takes the part; the outcome, a check of each, and the files that are kept.

    Without a folder the files are checked and dropped.
    """
    assert subject.real is not None, "a part without weights has no file to hold them"
    started = time.perf_counter()
    checks: list[FileCheck] = []
    raised = () if missing_packages(Check.PARITY) is not None else runtime_errors()
    with scratch_folder(folder) as place:
        try:
            with torch.no_grad():
                checks.extend(_checked(subject, subject.real, place, with_onnx=with_onnx))
        except OSError as error:
            raise cannot_write((folder or place) / subject.part.name, error) from error
        except (*EXPORT_ERRORS, *raised) as error:
            outcome = failed(Check.WEIGHTS, error, instead=subject.part.instead, seconds=time.perf_counter() - started)
        else:
            outcome = _outcome(subject, checks, time.perf_counter() - started)
        return outcome, tuple(checks), tuple(_moved(place, folder, checks))


def _checked(subject: PartUnderTest, call: TensorsOnly, place: Path, *, with_onnx: bool) -> Iterator[FileCheck]:
    expected = call(*copied_inputs(call))
    program = torch.export.export(call, copied_inputs(call))
    file = place / f"{subject.part.name}.pt2"
    _save(program, file)
    outputs = torch.export.load(file).module()(*copied_inputs(call))
    yield FileCheck(
        file=file.name,
        runtime="torch.export",
        file_bytes=file.stat().st_size,
        parity=parity_of(expected, outputs, "torch.export"),
    )
    if with_onnx and missing_packages(Check.PARITY) is None:
        yield _checked_onnx(subject, call, program, expected, place / f"{subject.part.name}.onnx")


def _save(program: ExportedProgram, file: Path) -> None:
    """The .pt2. Where a write raises, torch ends the whole process: what the disk says is raised afterwards."""
    with InterruptsWait(), file.open("wb") as opened:
        archive = _Archive(opened)
        torch.export.save(program, cast("BinaryIO", archive))
        if archive.error is not None:
            raise archive.error


class _Archive(io.RawIOBase):
    """A file that takes every byte, and keeps the first error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True  # torch asks, and goes to the beginning when it is done

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return offset

    def write(self, content: Any) -> int:
        if self.error is None:
            try:
                self._file.write(content)
            except OSError as error:
                self.error = error
        return memoryview(content).nbytes


def _checked_onnx(
    subject: PartUnderTest, call: TensorsOnly, program: ExportedProgram, expected: tuple[torch.Tensor, ...], file: Path
) -> FileCheck:
    is_large = subject.weight_bytes > ONE_FILE_BYTES
    names = save_with_weights(program, file, external_data=is_large, input_names=subject.names)
    outputs = run_file(file, names, copied_inputs(call))
    return FileCheck(
        file=file.name,
        runtime="onnxruntime",
        file_bytes=sum(part_file.stat().st_size for part_file in file.parent.glob(f"{file.name}*")),
        parity=parity_of(expected, outputs),
    )


def _outcome(subject: PartUnderTest, checks: list[FileCheck], seconds: float) -> CheckOutcome:
    far = [check for check in checks if check.parity.max_rel_error > TOLERANCE]
    errors = ", ".join(f"{check.file} in {check.runtime} {check.parity.max_abs_error:.1e} apart" for check in checks)
    return CheckOutcome(
        check=Check.WEIGHTS,
        verdict=Verdict.FAILED if far else Verdict.OK,
        detail=f"{format_count(subject.parameters)} weights inside; {errors}",
        reason=f"{far[0].file} is more than {TOLERANCE:g} of the largest value apart" if far else None,
        seconds=seconds,
    )


def _moved(place: Path, folder: Path | None, checks: Sequence[FileCheck]) -> Iterator[Path]:
    """Each file that was loaded again, in its place; external data before the .onnx that needs it."""
    if folder is None:
        return
    for check in checks:
        files = sorted(place.glob(f"{check.file}*"), reverse=True)
        if len(files) > 1:
            (folder / check.file).unlink(missing_ok=True)  # an old graph must never read new data
        for file in files:
            move_whole(file, folder / file.name)
            yield folder / file.name
