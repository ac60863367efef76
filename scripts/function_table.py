"""Compare functions of models with fresh traces, and write the table of `docs/evidence/function-exactness.md`.

    python scripts/function_table.py --points 50

One forked child per model under a cap of time and memory. Each record is appended to a file as its model ends, so a
second run continues the first; `--redo` repeats some models. Exit code 1: a proven cell and a trace differ.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Compare what is not compared yet, write the page, say what differs."""
    options = _options()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch
    import transformers

    from benchmarks.function.exactness import SUBJECTS, is_missed, page
    from benchmarks.runner import Caps, run_jobs

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    wanted = options.models or list(SUBJECTS)
    if unknown := sorted(set(wanted) - set(SUBJECTS)):
        raise SystemExit(f"unknown models: {', '.join(unknown)}; there are: {', '.join(SUBJECTS)}")
    setting = {"points": options.points, "seed": options.seed, "layers": options.layers}
    records = {name: record for name, record in _read(options.out).items() if record.get("setting") == setting}
    waiting = [name for name in wanted if name not in records or options.redo]
    job = partial(_compared, **setting)
    caps = Caps(seconds=options.seconds, memory_bytes=options.gib << 30)
    for count, (name, record) in enumerate(run_jobs(waiting, job, caps, options.jobs), 1):
        records[name] = {"setting": setting, **record}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, **records[name]}) + "\n")
        print(f"{count}/{len(waiting)} {name}: {_line(record)}", file=sys.stderr, flush=True)
    if options.write is not None:
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        options.write.write_text(page(versions, setting, records, list(SUBJECTS)), encoding="utf-8")
        print(f"Wrote {options.write}")
    missed = [name for name in wanted if is_missed(records[name])]
    print("\n".join(f"NOT EXACT: {name}: {_line(records[name])}" for name in missed) or "All proven cells are exact.")
    return 1 if missed else 0


def _compared(name: str, *, points: int, seed: int, layers: int | None) -> dict[str, Any]:
    from benchmarks.function.exactness import SUBJECTS, record_of

    return record_of(replace(SUBJECTS[name], layers=layers), points, seed)


def _line(record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['message'][:300]}"
    phases = (_phase_line(phase, record["points"]) for phase in record["phases"])
    return f"{record['cpu_s']} s CPU; " + " | ".join(phases)


def _phase_line(phase: dict[str, Any], points: int) -> str:
    heading = f"{phase['phase']} {phase['exact']} of {points} exact ({phase['outside']} outside)"
    texts = [heading, f"{len(phase['cells'])} cells", f"{phase['traces']} traces"]
    texts += [f"{entry['point']} {entry['what']}: {entry['text']}" for entry in phase["differences"][:2]]
    texts += [f"open {entry['region']}: {entry['why']}" for entry in phase["open"][:2]]
    return "; ".join(texts)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The last record of each model."""
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line.pop("name"): line for line in lines}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", metavar="NAME", help="only these; default: all")
    parser.add_argument("--points", type=int, default=50, help="random points of each model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, help="of each stack at most, to try the script; default: as released")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=1800, help="CPU seconds per model")
    parser.add_argument("--gib", type=int, default=4, help="memory per model")
    parser.add_argument("--redo", action="store_true", help="repeat models that have a record already")
    parser.add_argument("--out", type=Path, default=Path("function-table.jsonl"), help="records, one line each")
    parser.add_argument("--write", type=Path, help="page to write: docs/evidence/function-exactness.md")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
