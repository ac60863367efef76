"""SQL of whoever asks, in a process of its own: its memory, its time and its answer have bounds that hold.

DuckDB's own limit leaves out what single functions allocate, and its interrupt is not seen inside them. So the system
holds the bounds: a limit on the memory of the process, and its end when the time is over. The answer is streamed to a
file of Arrow batches.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.sweeps.studies.parquet_store import StudyStore
from llm_perf_opt.sweeps.studies.sql import SqlResult, batches, checked_files, opened_files, require_select

MAX_SECONDS = 60.0
START_S = 120.0  # until the process is ready for the query, on a machine that is very busy
MEMORY_BYTES = 2**30  # above what the process holds before it is asked
ANSWER_BYTES = 2**28
_ROWS = 4096
_ANSWER, _REFUSAL = "answer.arrow", "refusal.json"
_SHARE = 2  # DuckDB may plan with one in this many of the bytes: the rest is for what it does not count


def bounded_answer(
    store: StudyStore,
    studies: Sequence[str],
    sql: str,
    *,
    max_seconds: float = MAX_SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> SqlResult:
    """The answer to any one select on the points of studies."""
    require_select(sql)
    with scratch_folder() as scratch:
        request: dict[str, object] = {"files": checked_files(store, studies, scratch), "sql": sql}
        request |= {"memory_bytes": memory_bytes, "max_seconds": max_seconds}
        place = Path(__file__).parents[3]
        paths = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))
        settings = {"PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-m", __name__, str(scratch)],
                input=json.dumps(request).encode(),
                env={**os.environ, **settings},
                capture_output=True,
                check=False,
                timeout=max_seconds + START_S,
            )
            code = ended.returncode
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        if code == -signal.SIGALRM:
            raise _too_much(f"{max_seconds:g} s are over", "add a filter or a limit, or raise --max-seconds")
        return _result(scratch, code, memory_bytes)


def _result(scratch: Path, code: int, memory_bytes: int) -> SqlResult:
    import pyarrow

    refusal = scratch / _REFUSAL
    if refusal.exists():
        raise UsageError(**json.loads(refusal.read_text("utf-8")))
    if code != 0:
        raise _too_much(f"it needs more memory than {format_bytes(memory_bytes)}", "add a filter or a limit")
    with pyarrow.OSFile(str(scratch / _ANSWER)) as file:
        table = pyarrow.ipc.open_stream(file).read_all()
    return SqlResult(columns=tuple(table.column_names), table=table)


def _too_much(why: str, fix: str) -> PerfOptError:
    return PerfOptError("The query was stopped.", why=why, fix=fix)


def main(scratch: Path, request: Mapping[str, Any]) -> None:
    """Write the answer, or why there is none. This runs in a process of its own."""
    memory_bytes = int(request["memory_bytes"])
    try:
        with opened_files(request["files"], scratch, memory_bytes // _SHARE) as opened:
            _limit_memory(memory_bytes)
            signal.setitimer(signal.ITIMER_REAL, float(request["max_seconds"]))  # which ends the process
            _write(scratch / _ANSWER, batches(opened, str(request["sql"]), _ROWS))
    except UsageError as error:
        words = {"what": error.what, "why": error.why, "fix": error.fix}
        (scratch / _REFUSAL).write_text(json.dumps(words), "utf-8")


def _write(path: Path, batches_of_rows: Iterator[Any]) -> None:
    import pyarrow

    with path.open("wb") as file, pyarrow.ipc.new_stream(file, next(batches_of_rows)) as writer:
        for batch in batches_of_rows:
            writer.write_batch(batch)
            if file.tell() > ANSWER_BYTES:
                raise UsageError(
                    "The answer is too large.",
                    why=f"it has more than {format_bytes(ANSWER_BYTES)}",
                    fix="add a filter or a limit, or read the Parquet files with a tool of your own",
                )


def _limit_memory(memory_bytes: int) -> None:
    """What the process may hold from now on; a system without such limits leaves it to DuckDB's own."""
    with suppress(ImportError, OSError, ValueError, StopIteration):
        import resource

        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        used_bytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (used_bytes + memory_bytes, used_bytes + memory_bytes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
