"""From a name to a model: a folder, a registered name, the local cache, the catalogue, and at last the Hub."""

from __future__ import annotations

import atexit
import difflib
import importlib.util
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.missing_packages import TABLE_PACKAGES, version_of
from llm_perf_opt.core.output_files import scratch_folder, write_whole
from llm_perf_opt.core.plugins import MODEL_ALIASES, MODELS
from llm_perf_opt.core.reading import MODEL_FILE, FileKind, read_bytes, read_foreign_json
from llm_perf_opt.models.huggingface import hub
from llm_perf_opt.models.huggingface.hub import cache_folder, cached_names, is_installed, snapshot

log = logging.getLogger(__name__)

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_PATH = re.compile(r"[/\\~.]|.*[/\\]$|.*[/\\].*[/\\]|.*\\", re.DOTALL)  # how a path begins or ends, or two separators


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """What a name stands for: a registered model, or a folder with a configuration."""

    name: str  # in full, as it is shown
    registered: str | None = None
    folder: Path | None = None
    source: str = ""  # where the configuration came from; of a folder or a registered name nothing has to be said

    def __str__(self) -> str:
        return self.name


def find_model(text: str, trust_remote_code: bool = False) -> NamedModel:
    """What `text` names. Nothing but a name that is known nowhere else is asked of the Hub; torch is not loaded."""
    if text in MODELS.names():
        return NamedModel(name=text, registered=text)
    if _is_folder(text):
        return NamedModel(name=text, folder=Path(text))
    if _PATH.match(text) or (_first_is_folder(text) and text not in catalogue()):
        raise _no_folder(text)
    model = _found_here(text, trust_remote_code)
    if model is not None:
        return model
    meant = short_form(text)
    if len(meant) == 1 and meant[0] != text:
        _say(f"{text} is read as {meant[0]}")
        return find_model(meant[0], trust_remote_code)
    if len(meant) > 1:
        raise UsageError(
            f"{text!r} can mean {len(meant)} models.", why=f"known: {', '.join(meant[:8])}", fix="write one in full"
        )
    return _asked_of_hub(text, trust_remote_code)


def _found_here(text: str, trust_remote_code: bool) -> NamedModel | None:
    """Without a request: a registered model under its published name, a snapshot in the cache, the catalogue."""
    if text in MODEL_ALIASES and not trust_remote_code:
        _say(f"{text} runs as the registered model {MODEL_ALIASES[text]}; --trust-remote-code runs its own code")
        return NamedModel(name=MODEL_ALIASES[text], registered=MODEL_ALIASES[text])
    if not _HUB_NAME.fullmatch(text):
        return None
    cached = snapshot(text)
    if cached is not None and (not trust_remote_code or cached.has_its_code):
        source = f"the local Hugging Face cache, revision {cached.revision[:12]}"
        return NamedModel(name=text, folder=cached.folder, source=source)
    known = catalogue().get(text)
    if known is None or (trust_remote_code and known.needs_code):
        return None
    return NamedModel(name=text, folder=_catalogue_folder(known), source=_catalogue_source(known))


def _catalogue_folder(known: CatalogueModel) -> Path:
    return known.folder if known.wheel_file is None else wheel_folder(known.wheel_file)


def _catalogue_source(known: CatalogueModel) -> str:
    shared = "" if known.shared_with is None else f", the sizes of {known.shared_with}"
    return f"the catalogue of llm-perf-opt{shared} ({known.source})"


def _asked_of_hub(text: str, trust_remote_code: bool) -> NamedModel:
    if not _HUB_NAME.fullmatch(text):
        raise _unknown(text, f"registered: {', '.join(MODELS.names())}; the catalogue has {len(catalogue())} others")
    if not is_installed():
        raise _unknown(
            text,
            "it is in no folder and not in the catalogue, and huggingface_hub is not installed",
            or_else="pip install 'llm-perf-opt[trace]' fetches a model's configuration from the Hub and traces it",
        )
    if hub.is_offline():
        if snapshot(text) is not None or text in catalogue():
            raise UsageError(
                f"The code of {text} is not on this machine.",
                why="only its configuration is, and HF_HUB_OFFLINE forbids fetching the code",
                fix="unset HF_HUB_OFFLINE, or name a folder that holds the code",
            )
        raise _unknown(text, f"it is not in {cache_folder()}, not in the catalogue, and HF_HUB_OFFLINE is set")
    try:
        fetched = hub.fetch(text, with_code=trust_remote_code)
    except hub.NotOnHub as error:
        raise _unknown(text, f"{hub.endpoint()} has no such model, or does not show it without a token") from error
    source = f"{hub.endpoint()}, revision {fetched.revision[:12]}"
    return NamedModel(name=text, folder=fetched.folder, source=source)


def _unknown(text: str, why: str, or_else: str = "or name a folder with a config.json") -> UsageError:
    near = near_names(text)
    question = f"Did you mean {' or '.join(near)}? " if near else ""
    return UsageError(
        f"There is no model named {text[:200]!r}.",
        why=why,
        fix=f"{question}llm-perf-opt models --search WORD lists what is known; {or_else}",
    )


def _no_folder(text: str) -> UsageError:
    return UsageError(
        f"There is no folder {text[:200]!r}.",
        why="it is written as a path, and the path does not exist",
        fix="check the path; a model on the Hub is named ORG/NAME",
    )


def _is_folder(text: str) -> bool:
    """False also for what no file can be called."""
    try:
        return bool(text) and Path(text).is_dir()
    except (OSError, ValueError):
        return False


def _first_is_folder(text: str) -> bool:
    return "/" in text and _is_folder(text.partition("/")[0])


@cache
def _say(text: str) -> None:
    """Once for each name: some verbs look a model up several times."""
    log.info("%s", text)


_NEAR = 0.6
_MOST_NEAR = 3  # names that are proposed


def known_names() -> tuple[str, ...]:
    """Every name that resolves without a network: registered, in the cache, in the catalogue."""
    return tuple(dict.fromkeys((*MODELS.names(), *MODEL_ALIASES, *cached_names(), *catalogue())))


def short_form(text: str) -> tuple[str, ...]:
    """The names that `text` stands for in other capitals or without the owner; one: it is unambiguous."""
    wanted = _plain(text)
    exact = [name for name in known_names() if _plain(name) == wanted]
    if exact or "/" in text:
        return tuple(exact)
    return tuple(name for name in known_names() if _plain(name).rpartition("/")[2] == wanted)


def near_names(text: str) -> tuple[str, ...]:
    """Known names that come nearest to a wrong one, the nearest first."""
    by_plain = {_plain(name): name for name in known_names()}
    by_short = {plain.rpartition("/")[2]: name for plain, name in by_plain.items()}
    wanted = _plain(text)
    names = [by_plain[plain] for plain in _close(wanted, by_plain)]
    names += [by_short[plain] for plain in _close(wanted.rpartition("/")[2], by_short)]
    return tuple(dict.fromkeys(names))[:_MOST_NEAR]


def matching(names: Iterable[str], text: str) -> tuple[str, ...]:
    """The names that hold every word of the text."""
    words = _plain(text).split()
    return tuple(name for name in names if all(word in _plain(name) for word in words))


def _close(wanted: str, names: Collection[str]) -> list[str]:
    return difflib.get_close_matches(wanted, names, n=_MOST_NEAR, cutoff=_NEAR)


def _plain(text: str) -> str:
    return text.lower().replace("_", "-")


# The catalogue of this package: hyper-parameters of released models, each in a folder with a `config.json`.
#
# `scripts/model_catalogue.py` makes it. The wheel of the extra `kernels` holds further ones, which are read where it is
# installed.

CATALOGUE = Path(__file__).parent / "catalogue"
INDEX = CATALOGUE / "index.json"
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
    shared_with: str | None = None  # the name that it shares all hyper-parameters with
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
    """Every model by name, the package's first, then the wheel's."""
    own = {model.name: model for model in _packaged()}
    return {**own, **{model.name: model for model in _in_wheel() if model.name not in own}}


def _packaged() -> Iterator[CatalogueModel]:
    for row in read_foreign_json(INDEX, _INDEX_FILE):
        known = {name: row[name] for name in ("kind", "source", "parameters")}
        yield CatalogueModel(name=row["name"], **known)
        for name in row["shared_by"]:
            yield CatalogueModel(name=name, shared_with=row["name"], **known)


def _in_wheel() -> Iterator[CatalogueModel]:
    for package, distribution in TABLE_PACKAGES.items():
        spec, version = importlib.util.find_spec(package), version_of(distribution)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for file in sorted(Path(place).glob(f"model_configs/*--*{WHEEL_SUFFIX}")):
                if not file.name.endswith(WHEEL_FORMATS):
                    name = file.name.removesuffix(WHEEL_SUFFIX).replace("--", "/", 1)
                    source = f"model_configs/{file.name} in {distribution} {version}"
                    yield CatalogueModel(name=name, kind="", source=source, wheel_file=file)


@cache
def wheel_folder(file: Path) -> Path:
    """A configuration of the wheel as the folder of a model, for as long as this process lives."""
    until_exit = ExitStack()
    folder = until_exit.enter_context(scratch_folder())
    atexit.register(until_exit.close)
    formats = file.with_name(file.name.removesuffix(WHEEL_SUFFIX) + WHEEL_FORMATS)
    for source, name in ((file, "config.json"), (formats, "hf_quant_config.json")):
        if source.is_file():
            write_whole(folder / name, [read_bytes(source, _INSTALLED_FILE)])
    return folder
