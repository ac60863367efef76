"""The files of one part: the exported program, the ONNX graph and a listing to read, each whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch.export import ExportedProgram

from llm_perf_opt.whole_files import write_whole


class PartFiles:
    """Writes into a folder, or nowhere without one; weights are never in any of the files."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._name = name
        self._folder = folder
        self._written: list[Path] = []

    @property
    def written(self) -> tuple[Path, ...]:
        """What is there now, in the order of writing."""
        return tuple(self._written)

    def save_program(self, program: ExportedProgram) -> None:
        """The program for `torch.export.load`, its weights on the meta device, and the graph as text."""
        if self._folder is None:
            return
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        self._write(".pt2", buffer.getvalue())
        self._write(".fx.txt", program.graph_module.print_readable(print_output=False).encode())

    def save_onnx(self, content: bytes | None) -> None:
        """The ONNX graph, if there is one."""
        if content is not None:
            self._write(".onnx", content)

    def _write(self, suffix: str, content: bytes) -> None:
        if self._folder is not None:
            file = self._folder / f"{self._name}{suffix}"
            write_whole(file, [content])
            self._written.append(file)
