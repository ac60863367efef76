"""Overrides on the command line become a frozen request, one or many; the only file that sees Hydra and OmegaConf."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from llm_perf_opt import conf
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.measurements.profile.request import ProfileRequest
from llm_perf_opt.measurements.profile.run_folder import failure_kept

CONFIG_MODULE = "llm_perf_opt.conf"
FOLDER_KEY = "run.folder"
_MOMENT = "%Y-%m-%dT%H-%M-%S"
_DATED = f"profiles/${{now:{_MOMENT}}}"  # as Hydra writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredRun:
    """One run, ready to go: what was asked for, where it writes, and the whole configuration as text.

    The folder is no part of the other two, which call it `.`: a run that is moved is still the same run.
    """

    request: ProfileRequest
    folder: Path
    config_text: str


Task = Callable[[ConfiguredRun], object]


def run_configured(overrides: Sequence[str], task: Task) -> None:
    """Hand the one run that the overrides ask for to `task`.

    Without a `run.folder` among the overrides one is made of the date and time.
    """
    failures: list[PerfOptError] = []

    def run(config: Any) -> None:
        try:
            task(_configured(config))
        except PerfOptError as error:  # raised again below: Hydra would print its own view of it first
            failures.append(error)

    _launch(_with_folder(overrides, _folder(overrides)), run)
    if failures:
        raise failures[0]


def sweep_configured(overrides: Sequence[str], task: Task) -> tuple[Path, tuple[Path, ...]]:
    """Hand every run that the overrides ask for to `task`, through Hydra's launcher; their folder, and one for each.

    With a launcher of several processes `task` runs in those, so it must not count on shared memory, and what fails,
    be it only to be configured, is told in the folder of its run.
    """
    folder = _folder(overrides)
    with scratch_folder() as notes:

        def run(config: Any) -> None:
            job = _hydra_job()
            place = Path(job.runtime.output_dir)
            (notes / str(job.job.num)).write_text(str(place), encoding="utf-8")
            with failure_kept(place, job.overrides.task):
                task(_configured(config))

        _launch([*_with_folder(overrides, folder), "--multirun"], run)
        started = sorted(notes.iterdir(), key=lambda note: int(note.name))
        return folder, tuple(Path(note.read_text("utf-8")) for note in started)


def _launch(words: Sequence[str], run: Callable[[Any], None]) -> None:
    hydra, omegaconf = _import_hydra()
    _store_schema(omegaconf)
    words = _with_model(words)
    entry = hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name="profile")(run)
    with _arguments(words), _raised_as_they_are(), _as_usage_errors():
        entry()


def show_config(overrides: Sequence[str]) -> str:
    """The whole configuration that these overrides give, as YAML; a folder that none names has its date and time."""
    hydra, omegaconf = _import_hydra()
    _store_schema(omegaconf)
    with _as_usage_errors(), hydra.initialize_config_module(version_base="1.3", config_module=CONFIG_MODULE):
        words = _with_model(_with_folder(overrides, f"'{_DATED}'"))
        return str(omegaconf.OmegaConf.to_yaml(hydra.compose(config_name="profile", overrides=words)))


def _with_model(words: Sequence[str]) -> list[str]:
    """`model=NAME` of a model without a file of choices, or `model.name=NAME` alone, as the choice `named`.

    A word that is no override is a model: `profile deepseek-ocr-tiny` means `model=deepseek-ocr-tiny`.
    """
    overrides = [word if "=" in word or word.startswith(("~", "-")) else f"model={word}" for word in words]
    chosen = [word.partition("=")[2] for word in overrides if word.startswith("model=")]
    files = {file.stem for file in (Path(conf.__file__).parent / "model").glob("*.yaml")}
    is_named = any(word.startswith("model.name=") for word in overrides)
    if not chosen:
        return ["model=named", *overrides] if is_named else list(overrides)
    if set(chosen[-1].split(",")) <= files:
        return list(overrides)
    others = [word for word in overrides if not word.startswith("model=")]
    return ["model=named", f"model.name={','.join(map(quoted, chosen[-1].split(',')))}", *others]


def quoted(name: str) -> str:
    """A path as Hydra's grammar takes it."""
    return name if re.fullmatch(r"[\w./+@%~-]+", name) else "'" + name.replace("'", "\\'") + "'"


def _import_hydra() -> tuple[Any, Any]:
    try:
        import hydra
        import omegaconf
    except ImportError as error:
        raise PerfOptError(
            "hydra is not installed.",
            why="profile takes its configuration from it",
            fix="pip install 'llm-perf-opt[profile]'",
        ) from error
    return hydra, omegaconf


def _folder(overrides: Sequence[str]) -> Path:
    given = [word.partition("=")[2] for word in overrides if word.startswith(f"{FOLDER_KEY}=")]
    return Path(given[-1] if given else f"profiles/{datetime.now():{_MOMENT}}")


def _with_folder(overrides: Sequence[str], folder: Path | str) -> list[str]:
    is_given = any(word.startswith(f"{FOLDER_KEY}=") for word in overrides)
    return [*overrides, *([] if is_given else [f"{FOLDER_KEY}={folder}"])]


def _store_schema(omegaconf: Any) -> None:
    """The records are the schema and hold the defaults; they are frozen, and a configuration in the making is not."""
    from hydra.core.config_store import ConfigStore

    schema = omegaconf.OmegaConf.structured(ProfileRequest)
    for node in (schema, *(schema[name] for name in schema)):
        omegaconf.OmegaConf.set_readonly(node, False)
    ConfigStore.instance().store(name="schema", node=schema)


def _hydra_job() -> Any:
    """What Hydra knows of the job that runs now."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.get()


def _configured(config: Any) -> ConfiguredRun:
    _, omegaconf = _import_hydra()
    job = _hydra_job()
    config = omegaconf.OmegaConf.merge(config, {"run": {"folder": "."}})
    try:
        request = omegaconf.OmegaConf.to_object(config)
    except omegaconf.errors.MissingMandatoryValue as error:
        raise UsageError(
            "A value is missing in the configuration.",
            why=str(error).partition("\n")[0],
            fix="give it on the command line, like model.folder=DIR",
        ) from error
    return ConfiguredRun(
        request=request,
        folder=Path(job.runtime.output_dir),
        config_text=omegaconf.OmegaConf.to_yaml(config, resolve=True),
    )


@contextmanager
def _arguments(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads the command line itself; it is shown the part that is its own."""
    before = sys.argv
    sys.argv = ["llm-perf-opt profile", *words]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _raised_as_they_are() -> Iterator[None]:
    """Hydra's own switch that lets errors through, instead of printing its view of them and leaving."""
    name, before = "HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR")
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _as_usage_errors() -> Iterator[None]:
    """What Hydra refuses is something that a person wrote."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()][:4]
        cause = str(error.__cause__ or "").partition("\n")[0]
        raise UsageError(
            "The configuration cannot be made.",
            why="; ".join([*lines, *([cause] if cause else [])])[:500],
            fix="llm-perf-opt profile --show-config prints every group and value there is",
        ) from error
