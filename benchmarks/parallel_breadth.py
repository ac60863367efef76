"""Every model type that carries a parallel plan, at its default sizes: what transformers accepts, and what we trace.

    python benchmarks/parallel_breadth.py

Two jobs for each model type, each in a forked child under a cap of time and memory: transformers' own distribution on
meta tensors, then weightless traces of the same plans. The data file is written as the sweep goes, and a second run
continues it: `--redo weightless` repeats one side, `--only NAME` runs some model types and prints their records.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

SAVE_EVERY = 5
SIDES = ("real", "weightless")


def main() -> int:
    """Sweep, write the data, refresh the page."""
    options = _options()
    warnings.filterwarnings("ignore")
    import torch
    import transformers
    from breadth.fork_pool import Caps, run_jobs, write_atomically
    from breadth.parallel_page import page
    from breadth.parallel_real import run_real
    from breadth.parallel_run import run_weightless
    from breadth.record_file import load_records, save_records

    from llm_perf_opt.models.huggingface.folder import model_types

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    header = {"transformers": transformers.__version__, "torch": torch.__version__, "model_types": len(model_types())}
    records = load_records(options.out)
    caps = Caps(seconds=options.seconds, memory_bytes=options.gib << 30)
    run_real("llama")  # what every child would otherwise import for itself

    def sweep(side: str, job: Callable[[str], dict[str, object]], names: list[str]) -> None:
        wanted = [name for name in names if _is_wanted(f"{name} {side}", records, side, options)]
        for count, (name, record) in enumerate(run_jobs(wanted, job, caps, options.workers), 1):
            records[f"{name} {side}"] = {key: value for key, value in record.items() if key != "traceback"}
            print(f"{side} {count}/{len(wanted)} {name}: {_in_short(record)}", file=sys.stderr, flush=True)
            if options.only:
                print(json.dumps(record, indent=1))
            if count % SAVE_EVERY == 0 or count == len(wanted):
                save_records(options.out, header, records)

    if "real" in options.sides:
        sweep("real", run_real, sorted(options.only or model_types(), key=lambda name: (not _names_a_plan(name), name)))
    if "weightless" in options.sides:
        rules = {name.removesuffix(" real"): record["rules"] for name, record in records.items() if "rules" in record}
        mine = {name: found for name, found in rules.items() if not name.endswith(" weightless")}
        sweep("weightless", partial(_weightless, run_weightless, mine), sorted(set(mine) & set(options.only or mine)))
    write_atomically(options.page, page(header, records))
    print(f"Wrote {options.out} and {options.page}")
    return 0


def _weightless(run: Callable[..., dict[str, object]], rules: dict[str, Any], name: str) -> dict[str, object]:
    return run(name, rules[name])


def _names_a_plan(model_type: str) -> bool:
    """Whether the configuration class itself has a plan: those come first, since others mostly have none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return False
    config = CONFIG_MAPPING[model_type]
    return any(getattr(config, f"base_model_{axis}_plan", None) for axis in ("tp", "ep", "pp"))


def _is_wanted(key: str, records: dict[str, Any], side: str, options: argparse.Namespace) -> bool:
    if options.only:
        return True
    return key not in records or side == options.redo or (options.redo == "failed" and records[key]["status"] != "ok")


def _in_short(record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status']} {str(record.get('message'))[:200]}"
    plans = record.get("plans", {})
    return ", ".join(f"{name} {outcome['status']}" for name, outcome in plans.items()) or "no plan"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/data/parallel_breadth.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/parallel-models.md"))
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these model types")
    parser.add_argument("--redo", choices=(*SIDES, "failed"), help="repeat records that are there already")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="CPU seconds per model type and side")
    parser.add_argument("--gib", type=int, default=6, help="memory per model type")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
