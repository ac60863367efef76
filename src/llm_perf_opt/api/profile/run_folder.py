"""The folder of one run: one writer at a time, files whole or not at all, finished pages, and which run it is.

A run is known by its request, which `request.json` keeps. Two requests that differ only in what the timed passes do not
depend on (see `NOT_MEASURED`) are the same run: the pages stay, and what is made of them is made afresh.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.api.profile.request import NOT_MEASURED, ProfileRequest, read_request
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import PageMeasurement
from llm_perf_opt.core.output_files import SUFFIX, make_folder, remove_left_behind, sealed_text, write_whole
from llm_perf_opt.core.reading import FileKind, read_bytes, read_json
from llm_perf_opt.core.run_lock import LOCK_FILE, locked_folder

log = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"  # the request as a person writes it
REQUEST_FILE = "request.json"  # which run this is
FAILURE_FILE = "failure.txt"  # why a run of a sweep ended early
DIGEST_SUFFIX = ".sha256"
ENVIRONMENT_FILE = "env.json"
METRICS_FILE = "metrics.json"  # the last to be written: a run that has it is finished
PAGES = "pages"
JOINED = (METRICS_FILE, "report.md", "report.html", "static_compute.json", "static_compute.md")  # made afresh
MEASURED = (
    ENVIRONMENT_FILE,
    FAILURE_FILE,
    "operators.csv",
    "operators.csv.sha256",
    "chrome-trace.json",
    "kernels.json",
    "nsys.nsys-rep",
    "nsys.sqlite",  # which `nsys stats` leaves beside its report
    "ncu.csv",
)


_PAGE = FileKind(name="measurement of a page", fix="delete it, and its page is measured again", is_sealed=True)
_ENVIRONMENT = FileKind(
    name="environment of a run", fix="choose another run.folder, or add --force", max_bytes=2**20, is_sealed=True
)
RUN_TEXT = FileKind(name="file of a run", fix="delete it, and it is made again")


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class RunFolder:
    """A folder that this process alone writes to, until `open_run_folder` ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_text(self, name: str, text: str) -> Path:
        """One file, whole."""
        write_whole(self.path / name, [text.encode()])
        return self.path / name

    def write_json(self, name: str, document: Any) -> Path:
        """One JSON file, whole, an object with a seal; what is no finite number is refused."""
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        return self.write_text(name, sealed_text(text) if isinstance(document, dict) else text + "\n")

    def write_with_digest(self, name: str, text: str) -> Path:
        """A file that has no place for a seal, and beside it its digest as `sha256sum --check` takes it."""
        self.write_text(name + DIGEST_SUFFIX, f"{_digest(text.encode())}  {name}\n")
        return self.write_text(name, text)

    def text_with_digest(self, name: str) -> str | None:
        """The text as `write_with_digest` left it; None where it is not there, or not as it was left."""
        file, digest = self.path / name, self.path / (name + DIGEST_SUFFIX)
        if not file.is_file() or not digest.is_file():
            return None
        raw = read_bytes(file, RUN_TEXT)
        if read_bytes(digest, RUN_TEXT) == f"{_digest(raw)}  {name}\n".encode():
            try:
                return raw.decode()
            except UnicodeDecodeError as error:
                raise RUN_TEXT.error(f"{file} is no text.", why=str(error), fix=RUN_TEXT.fix) from None
        log.warning("%s was changed after it was written: it is made again", file)
        return None

    def keep_environment(self, environment: Any) -> None:
        """`env.json`; pages that were measured elsewhere, or with other settings, are no part of this run."""
        file = self.path / ENVIRONMENT_FILE
        if file.is_file() and any(self._pages()) and read_json(file, Any, _ENVIRONMENT) != environment:
            raise PerfOptError(
                f"{self.path} holds pages that were measured in another environment.",
                why=f"{file} differs from this machine, its libraries or its settings",
                fix="choose another run.folder, or add --force to measure all pages here",
            )
        self.write_json(ENVIRONMENT_FILE, environment)

    def _pages(self) -> Iterator[Path]:
        return (file for file in (self.path / PAGES).glob("*.json") if file.stem.isdigit())

    def clear(self) -> None:
        """Delete what a run writes and nothing else; `request.json` stays: it says that the folder is a run's."""
        for name in (*JOINED, *MEASURED):  # the metrics first: without its pages a run is not finished
            (self.path / name).unlink(missing_ok=True)
        for page in list(self._pages()):
            page.unlink()
        if (self.path / PAGES).is_dir() and not any((self.path / PAGES).iterdir()):
            (self.path / PAGES).rmdir()

    def keep_page(self, index: int, page: PageMeasurement) -> None:
        """A finished page, which a resumed run does not measure again."""
        make_folder(self.path / PAGES)
        self.write_json(f"{PAGES}/{index:05d}.json", page.to_json())

    def finished_page(self, index: int, image: str | None) -> PageMeasurement | None:
        """The page as it was measured before, or None; another image in its place is another page."""
        file = self.path / PAGES / f"{index:05d}.json"
        if not file.is_file():
            return None
        page = read_json(file, PageMeasurement, _PAGE)
        return page if page.image == image else None


@contextmanager
def open_run_folder(path: Path, request: ProfileRequest, config_text: str, *, force: bool) -> Iterator[RunFolder]:
    """Take the folder for one run with this request; what an earlier one measured with the same is kept.

    The lock is the operating system's, so it ends with the process however that ends. A folder of another run is
    refused, unless `force` clears it; a folder of anything else is refused always.
    """
    make_folder(path)
    _require_ours(path)
    with locked_folder(path, fix="wait for it, or choose another run.folder"):
        remove_left_behind(path / PAGES)  # what a run wrote when it was killed
        folder = RunFolder(path)
        if force:
            folder.clear()
        else:
            _require_same_run(path, request)
        folder.write_json(REQUEST_FILE, asdict(request))  # the first: a folder that has it is a run's
        folder.write_text(CONFIG_FILE, config_text)
        yield folder


def _require_ours(path: Path) -> None:
    """Before anything is written to it: a folder with a run, or with nothing but what a run leaves that never began."""
    if (path / REQUEST_FILE).is_file():
        read_request(path / REQUEST_FILE)
    elif any(file.name not in (LOCK_FILE, FAILURE_FILE) for file in path.iterdir() if file.suffix != SUFFIX):
        raise PerfOptError(
            f"{path} is not empty and holds no run.",
            why=f"there is no {REQUEST_FILE} of a profile run in it, so its files are not ours",
            fix="choose another run.folder",
        )


def _require_same_run(path: Path, request: ProfileRequest) -> None:
    """Pages of two runs must not mix; what was only made of them goes with the request that it was made by."""
    if not (path / REQUEST_FILE).is_file():
        return
    stored = read_request(path / REQUEST_FILE)
    if measured_part(stored) != measured_part(request):
        raise PerfOptError(
            f"{path} holds a run with another configuration.",
            why=f"{path / REQUEST_FILE} differs from what was asked for, and results of two runs must not mix",
            fix="choose another run.folder, or add --force to clear this one",
        )
    if stored != request:
        for name in JOINED:
            (path / name).unlink(missing_ok=True)


def measured_part(record: Any) -> Any:
    """The values of a request that the timed passes depend on."""
    if not is_dataclass(record):
        return record
    return {
        one.name: measured_part(getattr(record, one.name))
        for one in fields(record)
        if not one.metadata.items() >= NOT_MEASURED.items()
    }
