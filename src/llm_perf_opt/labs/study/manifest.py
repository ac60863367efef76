"""What a study is made of: the parts of its present declaration, each with its digest, its rows and its columns.

The name of a part holds the digest of its bytes, so that parts of a run that was killed can be told from damaged ones
without a manifest: `part-<task>-<inputs>-<run>-<digest>[-failures].parquet`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from llm_perf_opt.core.reading import FileKind, decode_json
from llm_perf_opt.core.sealing import check_seal, sealed_lines

MANIFEST = "_study.json"
MANIFEST_VERSION = 2
FAILURES = "-failures"  # in the name of a file some of whose points failed
SUFFIX = ".parquet"
RUN_AGAIN = "run the same study again: parts that are whole are kept, the others are computed again"
MANIFEST_FILE = FileKind(
    name="manifest of a study",
    fix=RUN_AGAIN,
    schema_version=MANIFEST_VERSION,
    is_sealed=True,
    has_every_key=True,
    max_bytes=2**28,
)
_DIGITS = 32  # of the SHA-256 in a name
_NAME = re.compile(
    r"(?P<stem>part-[0-9a-z]+-[0-9a-z]+)-(?P<run>[0-9a-f]{8})-(?P<digest>[0-9a-f]{32})(-failures)?\.parquet"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPart:
    """One finished file, as it was written."""

    file: str  # below the folder of the study
    sha256: str
    rows: int
    columns: str  # digest of the names and types of its columns

    @property
    def has_failures(self) -> bool:
        """Whether some of its points failed."""
        return self.file.endswith(f"{FAILURES}{SUFFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyManifest:
    """The study as it was declared last; a stem without a part is not finished."""

    schema_version: int = MANIFEST_VERSION
    study: str
    run: str  # that wrote this
    tool_version: str
    points: int
    stems: list[str]
    parts: dict[str, StudyPart]

    def text(self) -> bytes:
        """As it is kept."""
        return b"".join(sealed_lines(asdict(self)))


def read_manifest(raw: bytes) -> StudyManifest:
    """The manifest in a file; one byte that differs is refused."""
    found = decode_json(raw, StudyManifest, MANIFEST_FILE)
    check_seal(raw, MANIFEST_FILE)
    for stem, part in found.parts.items():
        if stem not in found.stems or "/../" in f"/{part.file}" or part_stem(part.file) != stem:
            raise MANIFEST_FILE.malformed(f"parts.{stem}", "a part of this study", part.file)
    return found


def part_name(stem: str, run: str, sha256: str, *, failed: bool) -> str:
    """The name of a finished file."""
    return f"{stem}-{run}-{sha256[:_DIGITS]}{FAILURES if failed else ''}{SUFFIX}"


def part_stem(path: str) -> str | None:
    """The task and the inputs of a part; None: it is not named like one."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else found["stem"]


def part_digest(path: str) -> str:
    """The beginning of the SHA-256 that a part must have, by its name."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return "" if found is None else found["digest"]


def columns_digest(schema: Iterable[Any]) -> str:
    """Of the names and types of an Arrow schema, in their order."""
    return hashlib.sha256("\n".join(f"{field.name}:{field.type}" for field in schema).encode()).hexdigest()[:16]
