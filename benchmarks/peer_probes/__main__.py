"""Questions to one tool; what it prints is of no interest.

    python -m benchmarks.peer_probes one PEER FILE.json QUESTION/SUBJECT/WEIGHTS
    python -m benchmarks.peer_probes each PEER FILE.json QUESTION/SUBJECT/WEIGHTS ...

`one` answers in this very process, so that its time and memory can be measured from outside; `each` answers in a child
per question, with libraries loaded once. An error is left to travel: it is the answer, and the last thing on stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.peer_probes.probes import PROBES, Probe
from benchmarks.peer_probes.questions import Asked


def main(way: str, peer: str, out: str, *questions: str) -> None:
    probe = PROBES[peer]
    if way == "one":
        answer(probe, questions[0], Path(out))
    else:
        answer_each(probe, questions, out)


def answer_each(probe: Probe, questions: Sequence[str], out: str) -> None:
    probe.prepare(Asked("direct-call", "none"))
    for number, question in enumerate(questions):
        file = Path(f"{out}.{number}")
        child = os.fork()
        if child == 0:
            error = os.open(f"{file}.stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(error, sys.stderr.fileno())
            answer(probe, question, file)
            return
        os.waitpid(child, 0)


def answer(probe: Probe, question: str, out: Path) -> None:
    kind, name, weights = question.split("/")
    asked = Asked(name, weights)
    probe.prepare(asked)
    wall, cpu = time.perf_counter(), time.process_time()
    told = (probe.count if kind == "count" else probe.offers[kind])(asked)
    spent = {"call_wall_s": time.perf_counter() - wall, "call_cpu_s": time.process_time() - cpu}
    out.write_text(json.dumps(asdict(told) | spent))


if __name__ == "__main__":
    main(*sys.argv[1:])
