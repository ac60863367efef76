"""Probes in processes of their own: the answer or the reason why there is none, time, and peak memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

TIME_LIMIT_S = 240
REASON_LENGTH = 200
_ERROR = re.compile(
    r"^([\w.]*(?:Error|Exception|Interrupt|Failure))\b:? ?(.*(?:\n(?!Traceback|The above|During|\s*$).+)?)$",
    re.MULTILINE,
)
Row = dict[str, Any]


def measured(python: Path, peer: str, question: str, environment: Mapping[str, str]) -> Row:
    """One question in one process; seconds and bytes are those of the whole process, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        out, stderr = Path(folder) / "answer.json", Path(folder) / "stderr"
        started = time.perf_counter()
        with stderr.open("wb") as errors:
            child = _started(python, ("one", peer, str(out), question), environment, errors)
            watch = threading.Timer(TIME_LIMIT_S, child.kill)
            watch.start()
            _, status, used = os.wait4(child.pid, 0)
            watch.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        spent = {
            "wall_s": round(time.perf_counter() - started, 2),
            "cpu_s": round(used.ru_utime + used.ru_stime, 2),
            "peak_bytes": used.ru_maxrss * 1024,
        }
        return told(question, out, stderr.read_text(errors="replace"), child.returncode) | spent


def batched(python: Path, peer: str, questions: Sequence[str], environment: Mapping[str, str]) -> list[Row]:
    """Small questions, of which only the answers matter."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        child = _started(python, ("each", peer, str(out), *questions), environment, subprocess.PIPE)
        _, errors = child.communicate(timeout=TIME_LIMIT_S)
        rows = []
        for number, question in enumerate(questions):
            file, stderr = Path(f"{out}.{number}"), Path(f"{out}.{number}.stderr")
            text = stderr.read_text(errors="replace") if stderr.exists() else errors.decode(errors="replace")
            rows.append(told(question, file, text, child.returncode))
        return rows


def _started(
    python: Path, words: Sequence[str], environment: Mapping[str, str], errors: Any
) -> subprocess.Popen[bytes]:
    command = [str(python), "-m", "benchmarks.peer_probes", *words]
    return subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=errors)


def told(question: str, out: Path, stderr: str, code: int) -> Row:
    kind, subject, weights = question.split("/")
    row: Row = {"question": kind, "subject": subject, "weights": weights}
    if out.exists():
        return row | {"status": "ok"} | json.loads(out.read_text())
    if code == -9:
        return row | {"status": "failed", "reason": f"took longer than {TIME_LIMIT_S} s, or more memory than there is"}
    return row | {"status": "failed", "reason": reason(stderr)}


def reason(stderr: str) -> str:
    """The error that began it, in one line without places on the disk; errors that wrap another come after it."""
    found = _ERROR.findall(stderr)
    if not found:
        return (stderr.strip().splitlines() or ["no reason given"])[-1][:REASON_LENGTH]
    kind, message = found[0]
    text = re.sub(r"(?<![\w.])/[\w.+@-]+(?:/[\w.+@-]+)+", lambda path: Path(path[0]).name, message)
    return shorten(f"{kind.rpartition('.')[2]}: {text}".strip(": "), REASON_LENGTH, placeholder=" ...")
