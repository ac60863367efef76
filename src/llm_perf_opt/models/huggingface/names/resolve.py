"""From a name to a model: a folder, a registered name, the local cache, the catalogue, and at last the Hub."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import MODEL_ALIASES, MODELS
from llm_perf_opt.models.huggingface.names import hub
from llm_perf_opt.models.huggingface.names.catalogue import CatalogueModel, catalogue, wheel_folder
from llm_perf_opt.models.huggingface.names.hub_cache import cache_folder, is_installed, snapshot
from llm_perf_opt.models.huggingface.names.search import near_names, short_form

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
    found = _found_here(text, trust_remote_code)
    if found is not None:
        return found
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
        raise _unknown(text, "it is in no folder and not in the catalogue, and huggingface_hub is not installed")
    if hub.is_offline():
        if snapshot(text) is not None or text in catalogue():
            raise UsageError(
                f"The code of {text} is not here.",
                why="its configuration is, its code is not, and HF_HUB_OFFLINE is set",
                fix="unset HF_HUB_OFFLINE, so that the code is fetched; or name a folder that holds it",
            )
        raise _unknown(text, f"it is not in {cache_folder()}, not in the catalogue, and HF_HUB_OFFLINE is set")
    try:
        fetched = hub.fetch(text, with_code=trust_remote_code)
    except hub.NotOnHub as error:
        raise _unknown(text, f"{hub.endpoint()} has no such model, or does not show it without a token") from error
    source = f"{hub.endpoint()}, revision {fetched.revision[:12]}"
    return NamedModel(name=text, folder=fetched.folder, source=source)


def _unknown(text: str, why: str) -> UsageError:
    near = near_names(text)
    asked = f"Did you mean {' or '.join(near)}? " if near else ""
    return UsageError(
        f"No model named {text[:200]!r}.",
        why=why,
        fix=f"{asked}llm-perf-opt models --search WORD lists what is known; or name a folder with a config.json",
    )


def _no_folder(text: str) -> UsageError:
    return UsageError(
        f"There is no folder {text[:200]!r}.",
        why="it is written as a path, and nothing lies there",
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
