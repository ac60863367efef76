"""Files that hold the weights of a part and run by themselves: written, loaded again, and compared with the module."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch.export import ExportedProgram

from llm_perf_opt.core.export_outcome import Check, CheckOutcome, FileCheck, Verdict
from llm_perf_opt.core.interrupts import InterruptsWait
from llm_perf_opt.core.output_files import cannot_write, move_whole
from llm_perf_opt.core.scratch import scratch_folder
from llm_perf_opt.core.units import format_count
from llm_perf_opt.labs.export.failure import EXPORT_ERRORS, failed
from llm_perf_opt.labs.export.onnx_trial import (
    TOLERANCE,
    missing_packages,
    parity_of,
    run_file,
    runtime_errors,
    save_with_weights,
)
from llm_perf_opt.labs.export.part_under_test import PartUnderTest, TensorsOnly, copied_inputs

ONE_FILE_BYTES = 1 << 30  # a protobuf message ends at 2 GiB; above this the weights of an .onnx lie in a file beside it


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
    found = torch.export.load(file).module()(*copied_inputs(call))
    yield FileCheck(
        file=file.name,
        runtime="torch.export",
        file_bytes=file.stat().st_size,
        parity=parity_of(expected, found, "torch.export"),
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
    subject: PartUnderTest,
    call: TensorsOnly,
    program: ExportedProgram,
    expected: tuple[torch.Tensor, ...],
    file: Path,
) -> FileCheck:
    is_large = subject.weight_bytes > ONE_FILE_BYTES
    names = save_with_weights(program, file, external_data=is_large, input_names=subject.names)
    found = run_file(file, names, copied_inputs(call))
    return FileCheck(
        file=file.name,
        runtime="onnxruntime",
        file_bytes=sum(one.stat().st_size for one in file.parent.glob(f"{file.name}*")),
        parity=parity_of(expected, found),
    )


def _outcome(subject: PartUnderTest, checks: list[FileCheck], seconds: float) -> CheckOutcome:
    far = [check for check in checks if check.parity.max_rel_error > TOLERANCE]
    told = ", ".join(f"{check.file} in {check.runtime} {check.parity.max_abs_error:.1e} apart" for check in checks)
    return CheckOutcome(
        check=Check.WEIGHTS,
        verdict=Verdict.FAILED if far else Verdict.OK,
        detail=f"{format_count(subject.parameters)} weights inside; {told}",
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
