"""Count full-size models of transformers without weights, and compare the count with torch's counter and fvcore.

    python benchmarks/thirty_models.py

One forked child per model type under a cap of time and memory. `--only NAME` runs some model types and keeps the
records of the others; without it all are run again. The page is made from the data file.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Sweep, write the data, refresh the page."""
    options = _options()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import fvcore
    import torch
    import transformers

    from benchmarks.agreement.agreement_page import SECTION, section
    from benchmarks.agreement.comparison import compare
    from benchmarks.agreement.subjects import KIND_OF
    from benchmarks.breadth.fork_pool import Caps, run_jobs
    from benchmarks.breadth.marked_section import replace_section
    from benchmarks.breadth.record_file import load_records, save_records

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    header = {"transformers": transformers.__version__, "torch": torch.__version__, "fvcore": fvcore.__version__}
    records = load_records(options.out)
    wanted = options.only or list(KIND_OF)
    compare("bert")  # what every child would otherwise import for itself
    caps = Caps(seconds=options.seconds, memory_bytes=options.gib << 30)
    for count, (name, record) in enumerate(run_jobs(wanted, compare, caps, options.workers), 1):
        records[name] = record
        print(f"{count}/{len(wanted)} {name}: {record['status']} {record.get('message', '')}", file=sys.stderr)
        save_records(options.out, header, records)
    replace_section(options.page, SECTION, section(header, records))
    print(f"Wrote {options.out} and refreshed {options.page}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/data/source_agreement.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/source-agreement.md")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these model types")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240, help="CPU seconds per model type")
    parser.add_argument("--gib", type=int, default=4, help="memory per model type")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
