"""Run every model type of the installed transformers, at its default full size, without weights.

    python benchmarks/breadth_full_size.py

One forked child per model type under a cap of time and memory. The data file is written as the sweep goes, and a second
run continues it: `--redo failed` repeats what failed, `--only NAME` runs some model types and prints their records.
With `--control N` every model of at most N parameters also runs for real, with random weights and the same inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

SAVE_EVERY = 20
OPTIONAL_PACKAGES = ("detectron2", "natten", "scipy", "timm", "torchaudio", "torchvision")


def main() -> int:
    """Sweep, write the data, refresh the page."""
    options = _options()
    warnings.filterwarnings("ignore")
    import torch
    import transformers
    from breadth.fork_pool import Caps, run_jobs
    from breadth.full_size_report import section
    from breadth.full_size_run import run_control, run_model_type
    from breadth.marked_section import replace_section
    from breadth.record_file import load_records, save_records

    from llm_perf_opt.models.huggingface.folder import model_types

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    header = {"transformers": transformers.__version__, "torch": torch.__version__, "optional": _optional_packages()}
    records = load_records(options.out)
    wanted = [name for name in model_types() if _is_wanted(name, records, options)]
    run_model_type("llama")  # what every child would otherwise import for itself
    caps = Caps(seconds=options.seconds, memory_bytes=options.gib << 30)
    for count, (name, record) in enumerate(run_jobs(wanted, run_model_type, caps, options.workers), 1):
        records[name] = {key: value for key, value in record.items() if key != "traceback"}  # paths of one machine
        print(f"{count}/{len(wanted)} {name}: {record['status']} {record.get('message', '')}", file=sys.stderr)
        if options.only:
            print(json.dumps(record, indent=1))
        if count % SAVE_EVERY == 0 or count == len(wanted):
            save_records(options.out, header, records)
    for count, (name, record) in enumerate(
        run_jobs(_small(records, options.control), run_control, caps, options.workers), 1
    ):
        records[name]["control"] = record
        print(f"control {count} {name}: {record}", file=sys.stderr)
        if count % SAVE_EVERY == 0:
            save_records(options.out, header, records)
    save_records(options.out, header, records)
    replace_section(options.page, "full-size configurations", section(header, records))
    print(f"Wrote {options.out} and refreshed {options.page}")
    return 0


def _small(records: dict[str, dict[str, Any]], most_parameters: int) -> list[str]:
    """Model types that ran, have no control yet, and are small enough for one; the smallest first."""
    open_ones = [name for name, record in records.items() if record["status"] == "ok" and "control" not in record]
    small = [name for name in open_ones if records[name]["parameters"] <= most_parameters]
    return sorted(small, key=lambda name: int(records[name]["parameters"]))


def _optional_packages() -> dict[str, str]:
    """What is there of the packages that some model types import."""
    found = {}
    for name in OPTIONAL_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _is_wanted(name: str, records: dict[str, dict[str, object]], options: argparse.Namespace) -> bool:
    if options.only:
        return name in options.only
    return (
        name not in records or options.redo == "all" or (options.redo == "failed" and records[name]["status"] != "ok")
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/data/breadth_full_size.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/breadth.md"))
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these model types")
    parser.add_argument("--redo", choices=("failed", "all"), help="repeat records that are there already")
    parser.add_argument(
        "--control", type=int, default=0, metavar="N", help="also run models of at most N parameters for real"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="CPU seconds per model type")
    parser.add_argument("--gib", type=int, default=6, help="memory per model type")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
