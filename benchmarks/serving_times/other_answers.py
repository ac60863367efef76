"""What another tool answers for the same records."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.plans.measured_pairs import RECORDS

ANSWERS = RECORDS.parent / "aiconfigurator_answers.csv"


def read_answers(file: Path = ANSWERS) -> dict[str, tuple[float, float]]:
    """What aiconfigurator 0.12.0 answers: name of the run -> TTFT and TPOT in seconds."""
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["id"]: (float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3) for row in csv.DictReader(lines)}
