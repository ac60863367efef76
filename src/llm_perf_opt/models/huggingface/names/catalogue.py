"""The catalogue of this package: hyper-parameters of released models, each in a folder with a `config.json`.

`scripts/model_catalogue.py` makes it. The wheel of the extra `kernels` holds further ones, which are read where it is
installed.
"""

from __future__ import annotations

import atexit
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.reading import MODEL_FILE, FileKind, read_bytes, read_foreign_json
from llm_perf_opt.core.scratch import scratch_folder

CATALOGUE = Path(__file__).parents[1] / "catalogue"
INDEX = CATALOGUE / "index.json"
WHEEL = "aiconfigurator_core"
WHEEL_SUFFIX, WHEEL_FORMATS = "_config.json", "_hf_quant_config.json"
_INDEX_FILE = FileKind(name="index of the catalogue", fix="install the package again")
_INSTALLED_FILE = replace(MODEL_FILE, stays_in_folder=False)  # installers may link the files of a package


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """One model of the catalogue, or of the wheel: then its parameters are not known before it is built."""

    name: str
    kind: str
    source: str
    parameters: int | None = None
    shared_with: str | None = None  # the name whose hyper-parameters it has
    wheel_file: Path | None = None

    @property
    def folder(self) -> Path:
        """Where its `config.json` lies; for one of the catalogue only."""
        return CATALOGUE / folder_name(self.shared_with or self.name)

    @property
    def needs_code(self) -> bool:
        """Whether the configuration names code of its own, which no catalogue holds."""
        if self.wheel_file is None:
            return False
        fields = read_foreign_json(self.wheel_file, _INSTALLED_FILE)
        return isinstance(fields, Mapping) and bool(fields.get("auto_map"))


def folder_name(name: str) -> str:
    """`Qwen--Qwen3-8B` of `Qwen/Qwen3-8B`."""
    return name.replace("/", "--")


@cache
def catalogue() -> dict[str, CatalogueModel]:
    """Every model by name, those of the wheel behind those of the package."""
    own = {one.name: one for one in _packaged()}
    return {**own, **{one.name: one for one in _in_wheel() if one.name not in own}}


def _packaged() -> Iterator[CatalogueModel]:
    for row in read_foreign_json(INDEX, _INDEX_FILE):
        known = {name: row[name] for name in ("kind", "source", "parameters")}
        yield CatalogueModel(name=row["name"], **known)
        for name in row["shared_by"]:
            yield CatalogueModel(name=name, shared_with=row["name"], **known)


def _in_wheel() -> Iterator[CatalogueModel]:
    spec = importlib.util.find_spec(WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(place).glob(f"model_configs/*--*{WHEEL_SUFFIX}")):
            if not file.name.endswith(WHEEL_FORMATS):
                name = file.name.removesuffix(WHEEL_SUFFIX).replace("--", "/", 1)
                yield CatalogueModel(
                    name=name, kind="", source=f"model_configs/{file.name} in {_wheel_version()}", wheel_file=file
                )


@cache
def _wheel_version() -> str:
    from importlib import metadata

    return f"aiconfigurator-core {metadata.version('aiconfigurator-core')}"


@cache
def wheel_folder(file: Path) -> Path:
    """A configuration of the wheel as the folder of a model, for as long as this process lives."""
    kept = ExitStack()
    folder = kept.enter_context(scratch_folder())
    atexit.register(kept.close)
    formats = file.with_name(file.name.removesuffix(WHEEL_SUFFIX) + WHEEL_FORMATS)
    for source, name in ((file, "config.json"), (formats, "hf_quant_config.json")):
        if source.is_file():
            write_whole(folder / name, [read_bytes(source, _INSTALLED_FILE)])
    return folder
