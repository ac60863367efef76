"""What `export` is asked for, checked before any work: parts, checks, modes, weights, and files in the way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.export_outcome import CHECKS_BY_NAME, COMPILE_MODES, Check
from llm_perf_opt.core.output_files import make_folder, require_free
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.protocols import KnowsParts
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.traced_phases import make_tracer, trace_phase

MATRIX = "matrix"
MATRIX_FORMATS = ("json", "markdown", "html")
_PART_SUFFIXES = (".pt2", ".fx.txt", ".onnx", ".onnx.data")
_NO_WEIGHTS = "none"
_NAMED = 8  # modules in a message


def check_names(names: Sequence[str] | None) -> frozenset[Check]:
    """Those asked for; the graph itself is always made, since all others start from it."""
    for name in names or ():
        if name not in CHECKS_BY_NAME:
            raise UsageError(
                f"There is no check {name!r}.", why=f"there are: {', '.join(CHECKS_BY_NAME)}", fix="choose one"
            )
    return frozenset(CHECKS_BY_NAME[name] for name in names or CHECKS_BY_NAME) | {Check.EXPORT}


def compile_mode_names(names: Sequence[str]) -> tuple[str, ...]:
    """The modes of torch.compile, each once."""
    for name in names:
        if name not in COMPILE_MODES:
            raise UsageError(
                f"torch.compile has no mode {name!r}.",
                why=f"there are: {', '.join(COMPILE_MODES)}",
                fix=_near_miss(name, COMPILE_MODES) or "choose one",
            )
    return tuple(dict.fromkeys(names))


def weight_values(chosen: str | Path | None) -> str | None:
    """The values that go into the files: "random" or a folder that is there; None for none."""
    name = None if chosen is None else str(chosen)
    if name is None or name == _NO_WEIGHTS:
        return None
    if name == "random" or Path(name).is_dir():
        return name
    raise UsageError(
        f"There is no folder of weights {name!r}.",
        why="it is neither the word random nor a folder of safetensors files",
        fix="point --load-weights at the folder, or use --load-weights random",
    )


def chosen_parts(origin: Origin, names: Sequence[str], phase: str) -> tuple[Part, ...]:
    """The parts of these names; a name that the model does not declare is the path of a module."""
    adapter = origin.adapter
    known = {part.name: part for part in adapter.parts()} if isinstance(adapter, KnowsParts) else {}
    if not names and not known:
        raise UsageError(
            f"No parts are known for {origin.name}.",
            why="only a model folder of this package can name the pieces that are worth a graph",
            fix="add --part with the path of a module, such as --part model.layers.0",
        )
    return tuple(known.get(name) or _part_at(name, phase) for name in names or known)


def _part_at(path: str, phase: str) -> Part:
    """The module at a path, under a name that is safe as the name of a file."""
    return Part(name=re.sub(r"[^\w.-]", "_", path) or "model", path=path, phase=phase)


def require_chosen(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a part to compile that is not exported."""
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name!r} is not among the parts to export.",
                why=f"chosen: {', '.join(known)}",
                fix=_near_miss(name, known) or "name one of these after --compile, or add --part",
            )


def require_called(origin: Origin, chosen: Sequence[Part], names: Sequence[str]) -> None:
    """Refuse a path of a module that its phase does not call, by a trace of that phase."""
    known = [part.name for part in origin.adapter.parts()] if isinstance(origin.adapter, KnowsParts) else []
    paths = [part for part, name in zip(chosen, names, strict=False) if name not in known]
    targets = {target.phase: target for target in origin.targets()} if paths else {}
    graphs = {part.phase: trace_phase(make_tracer(torch_device="cpu"), targets[part.phase]) for part in paths}
    for part in paths:
        called = [path for path, count in graphs[part.phase].call_counts.items() if count]
        if part.path not in called:
            exists = part.path in graphs[part.phase].module_types
            missing = "the model has it, and this phase does not run it" if exists else "the model has no such module"
            raise UsageError(
                f"The {part.phase} of {origin.name} does not call a module {part.path!r}.",
                why=f"{missing}; {_parts_there_are(known, called)}",
                fix=_near_miss(part.path, (*known, *called))
                or "name one of these or the path of another module that runs; or ask for another --phase",
            )


def _parts_there_are(known: Sequence[str], called: Sequence[str]) -> str:
    """The parts that the model declares; of one that declares none, the outermost modules that run."""
    if known:
        return f"its parts are: {', '.join(known)}"
    outer = sorted((path for path in called if path), key=lambda path: path.count("."))[:_NAMED]
    return f"modules that run are: {', '.join(outer)}, ..."


def target_of(targets: Mapping[str, Target], part: Part) -> Target:
    """The phase that the part belongs to."""
    if part.phase not in targets:
        raise UsageError(
            f"The run has no phase {part.phase!r}, which the part {part.name!r} needs.",
            why=f"its phases are: {', '.join(targets)}",
            fix="ask for at least one decode step, or choose other parts with --part",
        )
    return targets[part.phase]


def reserve_part_files(folder: Path | None, parts: Sequence[Part], *, force: bool) -> None:
    """Refuse, before the work begins, to overwrite anything; make the folder."""
    if folder is None:
        return
    names = [f"{part.name}{suffix}" for part in parts for suffix in _PART_SUFFIXES]
    names += [f"{MATRIX}{REPORTERS.get(name).suffix}" for name in MATRIX_FORMATS]
    require_free((folder / name for name in names), force=force)
    make_folder(folder)


def _near_miss(name: str, known: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else None
