"""Run every model class that transformers' own tests build, tiny, for real and weightless, and compare call by call.

    python benchmarks/breadth_tiny.py --transformers-tests CHECKOUT

CHECKOUT is a folder that holds the `tests` (and `utils`) of a transformers source tree; the suite's own requirements
(parameterized, pytest, datasets, ...) must be installed. One forked child per class under a cap of time and memory.
The data file is written as the sweep goes, and a second run continues it: `--redo failed differs` repeats those.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

SAVE_EVERY = 50


def main() -> int:
    """Sweep, write the data, refresh the page."""
    options = _options()
    warnings.filterwarnings("ignore")
    import torch
    import transformers
    from breadth.fork_pool import Caps, Record, run_jobs
    from breadth.marked_section import replace_section
    from breadth.record_file import load_records, save_records
    from breadth.suite_testers import add_suite_to_path, find_classes
    from breadth.tiny_report import section
    from breadth.tiny_run import tiny_record

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    add_suite_to_path(options.transformers_tests)
    found, unreadable = find_classes(options.transformers_tests)
    header = {"transformers": transformers.__version__, "torch": torch.__version__, "unreadable": unreadable}
    records = load_records(options.out)
    wanted = [key for key in found if _is_wanted(key, records, options)]

    def job(key: str) -> Record:
        return tiny_record(found[key].prepare)

    caps = Caps(seconds=options.seconds, memory_bytes=options.gib << 30)
    for count, (key, record) in enumerate(run_jobs(wanted, job, caps, options.workers), 1):
        records[key] = record
        if record["status"] != "equal":
            print(f"{count}/{len(wanted)} {key}: {record['status']} {record.get('message', '')}", file=sys.stderr)
        if count % SAVE_EVERY == 0 or count == len(wanted):
            save_records(options.out, header, records)
    replace_section(options.page, "tiny configurations", section(header, records))
    print(f"Wrote {options.out} and refreshed {options.page}")
    return 0


def _is_wanted(key: str, records: dict[str, dict[str, object]], options: argparse.Namespace) -> bool:
    if options.only:
        return any(part in key for part in options.only)
    return key not in records or (options.redo and records[key]["status"] in options.redo)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers-tests", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--out", type=Path, default=Path("docs/data/breadth_tiny.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/breadth.md"))
    parser.add_argument("--only", nargs="*", metavar="PART", help="only classes whose key contains one of these")
    parser.add_argument("--redo", nargs="*", metavar="STATUS", help="repeat the records of these statuses")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--gib", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
