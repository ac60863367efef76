"""What others recorded on a GPU, read back: torch.profiler's Chrome traces and the exports of Nsight Systems.

A recording from any file that holds one: the first bytes say which program wrote it. Every file is bounded.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.reading import FileKind, naming_file, read_bytes
from llm_perf_opt.core.recordings.recording import Recording

RECORDING_FILE = FileKind(
    name="GPU recording",
    fix="give a Chrome trace of torch.profiler (.json or .json.gz), or of Nsight Systems an export to SQLite or the "
    "table of `nsys stats --report cuda_gpu_trace --format csv`",
    max_bytes=2**30,
    max_elements=2**27,
    error=UsageError,
)
_GZIP, _SQLITE = b"\x1f\x8b", b"SQLite format 3\x00"
_PIECE = 2**22


def read_recording(path: Path, *, of_host: bool = False) -> Recording:
    """What a GPU ran, from a file of torch.profiler or Nsight Systems; `of_host`: what its processor did."""
    raw = read_bytes(path, RECORDING_FILE)
    with naming_file(path):
        if raw.startswith(_GZIP):
            raw = _unpacked(raw)
        if raw.startswith(_SQLITE):
            from llm_perf_opt.core.recordings.nsight_export import read_database_recording

            return read_database_recording(path, RECORDING_FILE)
        return _from_text(raw, of_host=of_host)


def _from_text(raw: bytes, *, of_host: bool) -> Recording:
    first = raw[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    is_event_list = first == b"[" and b'"ph"' in raw[:_PIECE]  # the events alone, as Chrome takes them too
    if first == b"{" or is_event_list:
        from llm_perf_opt.core.recordings.chrome_trace import read_chrome_recording

        text = b'{"traceEvents":%b}' % raw if is_event_list else raw
        return read_chrome_recording(text, RECORDING_FILE, of_host=of_host)
    from llm_perf_opt.core.recordings.nsight_export import read_csv_recording, read_table_recording

    if first == b"[":
        return read_table_recording(raw, RECORDING_FILE)
    return read_csv_recording(raw, RECORDING_FILE)


def _unpacked(packed: bytes) -> bytes:
    """The content of a gzip file, refused as soon as it grows beyond the bound."""
    pieces: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                if size > RECORDING_FILE.max_bytes:
                    raise RECORDING_FILE.refusal(
                        "is too large",
                        f"it unpacks to more than {RECORDING_FILE.max_bytes:,} bytes, which could exhaust the memory",
                    )
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise RECORDING_FILE.refusal("is no whole gzip file", str(error)[:300]) from None
    return b"".join(pieces)
