"""One question to one tool, in this very process, so that its time and memory can be measured from outside.

    python -m benchmarks.peer_probes PEER FILE.json QUESTION/SUBJECT/WEIGHTS

What the tool prints is of no interest. An error is left to travel: it is the answer, and the last thing on stderr.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.peer_probes.probes import PROBES
from benchmarks.peer_probes.questions import Asked


def main(peer: str, out: str, question: str) -> None:
    probe, (kind, name, weights) = PROBES[peer], question.split("/")
    asked = Asked(name, weights)
    probe.prepare(asked)
    wall, cpu = time.perf_counter(), time.process_time()
    told = (probe.count if kind == "count" else probe.offers[kind])(asked)
    spent = {"call_wall_s": time.perf_counter() - wall, "call_cpu_s": time.process_time() - cpu}
    Path(out).write_text(json.dumps(asdict(told) | spent))


if __name__ == "__main__":
    main(*sys.argv[1:])
