"""What a `config.json` says it configures, checked by type before transformers or any code of the folder sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import MODEL_FILE, naming_file

# `module.Class` of the folder, or `org/name--module.Class` of another one; never a path
_CODE = re.compile(r"(?:[\w.-]+/[\w.-]+--)?\w+(?:\.\w+)+", re.ASCII)
_LONGEST_NAME = 200
_DTYPES = ("torch_dtype", "dtype")
DEPTHS = frozenset(
    ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth", "encoder_layers", "decoder_layers")
)


def require_identity(file: Path, fields: Mapping[str, Any]) -> None:
    """Refuse a configuration that does not say plainly what it is: names, code, type of numbers, depth."""
    with naming_file(file):
        _require_sizes(fields)
        _require_model_type(fields.get("model_type"))
        _require_architectures(fields.get("architectures"))
        for entry, name in code_names(fields.get("auto_map")):
            if not _CODE.fullmatch(name):
                raise UsageError(
                    f"The auto_map names {name[:200]!r} as its {entry[:80]}.",
                    why="code is named as module.Class, a module beside config.json",
                    fix="use the config.json that was published with the model",
                )


def code_names(auto_map: object) -> Iterator[tuple[str, str]]:
    """Entry and class of an `auto_map`: a name, or a list of names in which null stands for none."""
    if auto_map is None:
        return
    if not isinstance(auto_map, dict):
        raise MODEL_FILE.malformed("auto_map", "an object of class names", auto_map)
    for entry, value in auto_map.items():
        for name in value if isinstance(value, list) else [value]:
            if name is None and isinstance(value, list):
                continue
            if not isinstance(name, str):
                raise MODEL_FILE.malformed(f"auto_map[{entry[:80]!r}]", "the name of a class, or a list of names", name)
            yield entry, name


def _require_sizes(fields: Mapping[str, Any], where: str = "") -> None:
    """Types of numbers are named, and no stack has fewer layers than none: torch would build an empty one."""
    for name, value in fields.items():
        if name in _DTYPES and not _is_dtype(value):
            raise MODEL_FILE.malformed(f"{where}{name}", "the name of a type, such as bfloat16", value)
        if name in DEPTHS and type(value) is int and value < 0:
            raise MODEL_FILE.malformed(f"{where}{name}", "a number of layers, 0 or more", value)
        if isinstance(value, dict):
            _require_sizes(value, f"{where}{name[:80]}.")


def _is_dtype(value: object) -> bool:
    """A name, none, or a name for each part of the model."""
    names: Iterable[object] = value.values() if isinstance(value, dict) else (value,)
    return all(name is None or _is_name(name) for name in names)


def _require_model_type(found: object) -> None:
    if found is not None and not _is_name(found):
        raise MODEL_FILE.malformed("model_type", "a name, in printable characters", found)


def _require_architectures(found: object) -> None:
    if found is None:
        return
    if not isinstance(found, list):
        raise MODEL_FILE.malformed("architectures", "a list of class names", found)
    for row, name in enumerate(found):
        if not _is_name(name):
            raise MODEL_FILE.malformed(f"architectures[{row}]", "the name of a class", name)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable()
