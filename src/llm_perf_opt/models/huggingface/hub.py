"""A model that is only known on the Hub: its configuration is fetched through huggingface_hub, never its weights.

The files go into the cache of huggingface_hub, `config.json` last: without it a snapshot counts as not there, so what
an interrupted run leaves is not used. HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean there.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.models.huggingface.folder import code_names

# Models in the cache of huggingface_hub on this machine: found by their folders, without a request.
#
# The layout is the documented one: `models--ORG--NAME/refs/main` holds a revision, `snapshots/REVISION` its files.

CONFIG = "config.json"
_PREFIX = "models--"
REVISION = re.compile(r"[0-9a-f]{7,64}")
_LONGEST_REF = 100  # bytes: a revision has 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of one revision of a model."""

    folder: Path
    revision: str

    @property
    def has_its_code(self) -> bool:
        """Whether every Python file that the configuration names is in its folder; true where it names none."""
        return all((self.folder / f"{module}.py").is_file() for module in _own_modules(self.folder / CONFIG))


def is_installed() -> bool:
    """Whether huggingface_hub, which comes with the extra `trace`, is there."""
    return importlib.util.find_spec("huggingface_hub") is not None


def cache_folder() -> Path | None:
    """Where huggingface_hub keeps its files, as HF_HOME and HF_HUB_CACHE say; None where it is not installed."""
    if not is_installed():
        return None
    from huggingface_hub import constants  # quick: neither requests nor torch are loaded

    return Path(constants.HF_HUB_CACHE)


def snapshot(name: str) -> Snapshot | None:
    """What the cache holds of a model: the revision of its main branch, with a configuration."""
    root = cache_folder()
    if root is None:
        return None
    place = root / f"{_PREFIX}{name.replace('/', '--')}"
    try:
        with (place / "refs" / "main").open("rb") as file:
            revision = file.read(_LONGEST_REF).decode("ascii", "replace").strip()
    except OSError:
        return None
    folder = place / "snapshots" / revision
    if not REVISION.fullmatch(revision) or not (folder / CONFIG).is_file():
        return None
    return Snapshot(folder=folder, revision=revision)


def cached_names() -> tuple[str, ...]:
    """Every model of which the cache holds a configuration."""
    root = cache_folder()
    places = sorted(root.glob(f"{_PREFIX}*--*")) if root is not None and root.is_dir() else []
    names = (place.name.removeprefix(_PREFIX).replace("--", "/", 1) for place in places)
    return tuple(name for name in names if snapshot(name) is not None)


def _own_modules(config: Path) -> set[str]:
    """Python modules that the configuration's `auto_map` names; whoever reads a bad file later reports it."""
    try:
        fields = read_foreign_json(config, MODEL_FILE)
        names = list(code_names(fields.get("auto_map") if isinstance(fields, Mapping) else None))
    except PerfOptError:
        return set()
    return {name.split(".")[0] for _, name in names if "--" not in name}


log = logging.getLogger(__name__)

_CODE = re.compile(r"\w[\w-]*\.py", re.ASCII)  # in the folder of the configuration, and nothing that is a path
_NAMED_LAST = ("configuration", "modeling")  # what an auto_map names comes behind what it imports: see `has_its_code`
CONFIGURATION = (  # what transformers, vLLM and this package read, apart from weights and vocabularies
    CONFIG,
    "generation_config.json",
    "hf_quant_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
)


class NotOnHub(Exception):
    """The Hub has no such model, or does not show it to this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The files of a model on the Hub that are wanted, `config.json` last."""

    revision: str
    files: tuple[str, ...]
    size_bytes: int | None  # None: the Hub does not say


def is_offline() -> bool:
    """Whether the user told huggingface_hub to ask nobody."""
    return bool(_constants().HF_HUB_OFFLINE)


def endpoint() -> str:
    """Where the Hub is, as HF_ENDPOINT says."""
    return str(_constants().ENDPOINT)


def fetch(name: str, *, with_code: bool) -> Snapshot:
    """Fetch the configuration of a model, with its Python files only if asked for; says what and from where first."""
    with _failures_of(name):
        listing = _listing(name, with_code=with_code)
    size = "" if listing.size_bytes is None else f" ({format_bytes(listing.size_bytes)})"
    log.info(
        "Fetching from %s: %s of %s, revision %s%s; no weights",
        endpoint(),
        ", ".join(listing.files),
        name,
        listing.revision[:12],
        size,
    )
    with _failures_of(name), _without_bars():
        *others, last = listing.files
        for file in others:
            _download(name, file, listing.revision)
        folder = Path(_download(name, last, "main")).parent  # by its branch, which puts the revision into the cache
    if folder.name != listing.revision:
        raise PerfOptError(
            f"{name} changed on the Hub while it was fetched.",
            why=f"it began as {listing.revision[:12]} and ended as {folder.name[:12]}",
            fix="run the command again",
        )
    _require_json(name, folder / CONFIG)
    return Snapshot(folder=folder, revision=listing.revision)


def _require_json(name: str, config: Path) -> None:
    """What is no JSON is taken out of the snapshot again, which then counts as not there."""
    try:
        read_foreign_json(config, MODEL_FILE)
    except PerfOptError as error:
        config.unlink(missing_ok=True)
        raise PerfOptError(
            f"The {CONFIG} of {name} on {endpoint()} cannot be read.",
            why=f"{error.what} {error.why}",
            fix="check HF_ENDPOINT and the proxy, which may have answered in place of the Hub",
        ) from error


def _listing(name: str, *, with_code: bool) -> _Listing:
    info = importlib.import_module("huggingface_hub").HfApi().model_info(name, revision="main", files_metadata=True)
    size_of_file = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
    if not isinstance(info.sha, str) or CONFIG not in size_of_file:
        raise UsageError(
            f"{name} on {endpoint()} has no {CONFIG}.",
            why="a model is recognised by it; this may be an adapter, a dataset of weights, or another library's model",
            fix="name the model that it was made from",
        )
    if not REVISION.fullmatch(info.sha):
        raise ValueError(f"the revision is {info.sha[:80]!r}")
    code = [file for file in size_of_file if with_code and _CODE.fullmatch(file)]
    code.sort(key=lambda file: (file.startswith(_NAMED_LAST), file))
    wanted = (*code, *(file for file in CONFIGURATION if file in size_of_file and file != CONFIG), CONFIG)
    sizes = [size_of_file[file] for file in wanted]
    _refuse_large(name, wanted, sizes)
    return _Listing(revision=info.sha, files=wanted, size_bytes=None if None in sizes else sum(sizes))


def _refuse_large(name: str, files: Sequence[str], sizes: Sequence[int | None]) -> None:
    for file, size in zip(files, sizes, strict=True):
        if size is not None and size > MODEL_FILE.max_bytes:
            raise PerfOptError(
                f"{file} of {name} is not fetched.",
                why=f"it has {format_bytes(size)}, and no configuration needs more than {MODEL_FILE.max_bytes:,} bytes",
                fix="name the model that it was made from",
            )


def _download(name: str, file: str, revision: str) -> str:
    return str(importlib.import_module("huggingface_hub").hf_hub_download(name, file, revision=revision))


@contextmanager
def _failures_of(name: str) -> Iterator[None]:
    """What huggingface_hub raises, as an error that says what to do."""
    errors = importlib.import_module("huggingface_hub.errors")
    transport = getattr(errors, "HTTPError", OSError)  # of the library below, which older versions do not name
    page = f"{endpoint()}/{name}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise PerfOptError(
            f"{name} is gated on {endpoint()}.",
            why="its owner asks you to accept terms before any file can be fetched, even the configuration",
            fix=f"accept the terms on {page}, then log in: hf auth login, or set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotOnHub(name) from error
    except (OSError, transport, ValueError, KeyError, TypeError) as error:
        raise PerfOptError(
            f"The configuration of {name} could not be fetched from {endpoint()}.",
            why=f"{type(error).__name__}: {error_text(error)[:300]}",
            fix="check the network, HF_ENDPOINT and the proxy, and run the command again; or name a local folder",
        ) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """The files are small: their bars would be longer than what they tell."""
    bars = importlib.import_module("huggingface_hub.utils")
    if bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()


def _constants() -> Any:
    return importlib.import_module("huggingface_hub.constants")
