"""Plant faults in the source, one at a time, and see which part of a gate finds each.

    python -m scripts.plant_faults --check                         each can be planted
    python -m scripts.plant_faults --gate run --record run.json    what `.ci/run` finds, each fault being the change
    python -m scripts.plant_faults --gate all --found run.json     all tests and parts, for what that record lacks

The faults are data, in `scripts/planted/faults.toml`. Tests run nearest first by imports and stop at the first that
fails; the other parts of the gate are asked where no test fails. A finder counts if it passes without the fault.
A gate that runs more finds whatever one that runs less does, so `--found` takes over what a record has.
Nothing is changed here: each fault is planted in a copy of the tree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from scripts.planted.finders import Outcome, Search
from scripts.planted.scratch import ROOT, Fault, Scratch, read_faults

GATES = ("run", "quick", "all")


def problems(tree: Path = ROOT) -> list[str]:
    """What keeps a fault from being planted."""
    faults = read_faults()
    twice = {fault.before for fault in faults if sum(other.before == fault.before for other in faults) > 1}
    same = [f"fault {fault.number} changes nothing" for fault in faults if fault.before == fault.after]
    return [*filter(None, (fault.problem(tree) for fault in faults)), *same, *(f"{text!r} twice" for text in twice)]


def search_all(faults: Sequence[Fault], options: argparse.Namespace, before: Sequence[Outcome]) -> list[Outcome]:
    """One outcome for each fault; the record is written after each."""
    from scripts.planted.chosen import PRELOADED, warm_python  # loads the gate, which --check does without

    outcomes = [outcome for outcome in before if outcome.found_by is not None]
    waiting = [fault for fault in faults if fault.number not in {outcome.number for outcome in outcomes}]

    def work(mine: Sequence[Fault], place: Path, python: str) -> None:
        search = Search(Scratch(place), python, options.gate, options.limit, options.nearest)
        search.plan(mine)
        for fault in mine:
            outcomes.append(search.find(fault))
            print(row(fault, outcomes[-1]), flush=True)
            if options.record:
                kept = [asdict(outcome) for outcome in sorted(outcomes, key=lambda outcome: outcome.number)]
                options.record.write_text(json.dumps(kept, indent=1), "utf-8")

    with (
        tempfile.TemporaryDirectory() as folder,
        warm_python(sys.executable, (*PRELOADED, "pytest", "hypothesis")) as warm,
        ThreadPoolExecutor(max_workers=options.jobs) as pool,
    ):
        python = str(warm / "python")
        started = [
            pool.submit(work, waiting[job :: options.jobs], Path(folder) / str(job), python)
            for job in range(options.jobs)
        ]
        for search in started:
            search.result()
    return sorted(outcomes, key=lambda outcome: outcome.number)


def row(fault: Fault, outcome: Outcome) -> str:
    undecided = f"not within the time ({'; '.join(outcome.undecided)})"
    finder = outcome.found_by or (undecided if outcome.undecided else "NOBODY")
    return f"{fault.number:3}  {fault.room:28}  {outcome.seconds:6.0f} s  {outcome.gate:5}  {finder}  <- {fault.breaks}"


def read_record(file: Path | None) -> list[Outcome]:
    if file is None:
        return []
    return [Outcome(**{**kept, "undecided": tuple(kept["undecided"])}) for kept in json.loads(file.read_text("utf-8"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only see that every fault can be planted")
    parser.add_argument("--gate", choices=GATES, default="run")
    parser.add_argument("--only", metavar="N,...", help="faults by number")
    parser.add_argument("--jobs", type=int, default=1, help="faults at once, each in a copy of its own")
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="of the tests and of each part")
    parser.add_argument("--nearest", type=int, metavar="FILES", help="only this many test files, and no other part")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the outcomes as JSON")
    parser.add_argument("--found", type=Path, metavar="FILE", help="a record of a gate that runs less")
    options = parser.parse_args()
    if wrong := problems():
        sys.exit("\n".join(wrong))
    faults = read_faults()
    if options.check:
        print(f"{len(faults)} faults in {len({fault.room for fault in faults})} rooms can be planted")
        return
    wanted = set(map(int, options.only.split(","))) if options.only else {fault.number for fault in faults}
    chosen = [fault for fault in faults if fault.number in wanted]
    outcomes = search_all(
        chosen, options, [outcome for outcome in read_record(options.found) if outcome.number in wanted]
    )
    print(f"\n{'':3}  {'room':28}  {'':8}  gate   found by")
    by_number = {fault.number: fault for fault in faults}
    print("\n".join(row(by_number[outcome.number], outcome) for outcome in outcomes))
    for gate in dict.fromkeys(outcome.gate for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.gate == gate]
        print(f"{gate}: {sum(outcome.found_by is not None for outcome in mine)} of {len(mine)} asked")
    print(f"together: {sum(outcome.found_by is not None for outcome in outcomes)} of {len(outcomes)} found")


if __name__ == "__main__":
    main()
