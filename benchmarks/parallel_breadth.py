"""Every model type that carries a parallel plan, at its default sizes: what transformers accepts, and what we trace.

    python -m benchmarks.parallel_breadth

Two jobs for each model type, each in a forked child under a cap of time and memory: transformers' own distribution on
meta tensors, then weightless traces of the same plans. The data file is written as the sweep goes, and a second run
continues it: `--redo weightless` repeats one side, `--only NAME` runs some model types and prints their records.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.pages import table, write_atomically
from benchmarks.runner import Record, Sweep, load_records, quieten, sweeper

PLANS = ("tp2", "tp8", "tp8 ep8", "fsdp8 ep8", "pp2 first", "pp2 last")  # which `breadth.parallel` makes
SIDES = ("real", "weightless")
Records = Mapping[str, Mapping[str, Any]]

ACCEPTED = ("runs", "sharded")
INTRODUCTION = """
# Model types under a parallel plan

Which models of transformers can be spread over ranks, by the plan that each of them carries, and what of that runs here
without weights, without a GPU and without the other ranks. `benchmarks/parallel_breadth.py` takes every model type that
the installed transformers has a model class for, at its default sizes, and asks twice:

- **transformers itself**: its own distribution code on meta tensors in torch's fake process group, then one forward on
  meta tensors. *Runs*: sharded, and the forward ran. *Shards*: sharded, and the forward stops where it needs values,
  which meta tensors do not have: row counts of experts, the shape of logits that a later stage sends, parameters that
  fully sharded modules gather. *Refuses*: one of the two raised, and the cause is below.
- **a weightless trace** of the same plan, one rank, prefill and one decode step.

Rank 0 is traced; of two pipeline stages both are.

```sh
python -m benchmarks.parallel_breadth
```
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One plan of one model type, from both sides; `ours` is None where it was not tried yet."""

    model_type: str
    plan: str
    real: Mapping[str, Any]
    ours: Mapping[str, Any] | None

    @property
    def accepted(self) -> bool:
        """Whether transformers takes the plan."""
        return self.real["status"] in ACCEPTED

    @property
    def we_run(self) -> bool:
        """Whether the weightless trace ran."""
        return self.ours is not None and self.ours["status"] == "runs"


def page(header: Mapping[str, Any], records: Records) -> str:
    """The whole page as Markdown."""
    pairs = list(_pairs(records))
    parts = (
        INTRODUCTION.strip(),
        _verdict(header, records, pairs),
        _by_plan(pairs),
        _refusals(pairs),
        _missing(pairs),
        _beyond(pairs),
        _unequal(pairs),
        _failed(records),
        _every_type(records, pairs),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _pairs(records: Records) -> Iterator[Pair]:
    for key, record in sorted(records.items()):
        model_type, _, side = key.rpartition(" ")
        if side != "real":
            continue
        ours = records.get(f"{model_type} weightless", {})
        for plan, real in record.get("plans", {}).items():
            mine = ours.get("plans", {}).get(plan)
            if mine is None and "status" in ours:
                mine = {"status": ours["status"], "message": ours.get("message", ""), "cause": ours.get("message", "")}
            yield Pair(model_type=model_type, plan=plan, real=real, ours=mine)


def _verdict(header: Mapping[str, Any], records: Records, pairs: Sequence[Pair]) -> str:
    types = {pair.model_type for pair in pairs}
    rules = [record["rules"] for key, record in records.items() if key.endswith(" real") and "rules" in record]
    having = {axis: sum(bool(found[axis]) for found in rules) for axis in ("tp", "ep", "pp")}
    accepted = [pair for pair in pairs if pair.accepted]
    traced = [pair for pair in accepted if pair.ours is not None]
    run = sum(pair.we_run for pair in traced)
    share = f"{run / len(traced):.1%}" if traced else "none"
    untried = "" if len(traced) == len(accepted) else f" The other {len(accepted) - len(traced)} were not traced yet."
    return (
        f"With transformers {header['transformers']} and torch {header['torch']}, {len(rules)} of "
        f"{header['model_types']} model types examined: {len(types)} carry a plan, their own or that of a part "
        f"({having['tp']} for tensor, {having['ep']} for expert, {having['pp']} for pipeline parallelism). "
        f"transformers accepts {len(accepted)} of {len(pairs)} plans; "
        f"of these {len(traced)} were traced and **{run} run here, {share}**.{untried}"
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]], heading: str = "") -> str:
    """Under a heading where there is one, and then only where there are rows."""
    lines = [[str(one).replace("|", "\\|") for one in row] for row in rows]
    return heading + table(titles, lines, "l", wide=True) if lines or not heading else ""


def _by_plan(pairs: Sequence[Pair]) -> str:
    rows = []
    for plan in PLANS:
        tried = [pair for pair in pairs if pair.plan == plan]
        status = Counter(pair.real["status"] for pair in tried)
        accepted = [pair for pair in tried if pair.accepted and pair.ours is not None]
        both = [pair for pair in accepted if pair.we_run]
        counted = [pair for pair in both if "collectives" in pair.real]
        weights, collectives = sum(map(_same_weights, both)), sum(map(_same_collectives, counted))
        shares = ((len(both), accepted), (weights, both), (collectives, counted))
        said = (status[word] for word in ("runs", "sharded", "refused"))
        rows.append((plan, len(tried), *said, *(f"{some} of {len(of)}" for some, of in shares)))
    titles = ("plan", "types", "runs", "shards", "refuses", "we run", "same weight bytes", "same collectives")
    return _table(titles, rows)


def _same_weights(pair: Pair) -> bool:
    return pair.ours is not None and pair.real["weight_bytes"] == pair.ours["weight_bytes"]


def _same_collectives(pair: Pair) -> bool:
    return pair.ours is not None and pair.real["collectives"] == pair.ours["collectives"]


def _refusals(pairs: Sequence[Pair]) -> str:
    causes: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.real["status"] == "refused":
            causes.setdefault(_code(pair.real["cause"]), []).append(f"{pair.model_type} ({pair.plan})")
    rows = [(len(who), cause, ", ".join(who)) for cause, who in sorted(causes.items(), key=lambda item: -len(item[1]))]
    return _table(("plans", "cause", "model types"), rows, "## What transformers refuses\n\n")


def _code(message: str) -> str:
    """A message of a library as code, a cause in words as it is."""
    return f"`{message[:160]}`" if "Error" in message else message


def _missing(pairs: Sequence[Pair]) -> str:
    rows = [
        (pair.model_type, pair.plan, pair.real["status"], _code(pair.ours.get("cause") or pair.ours["message"]))
        for pair in pairs
        if pair.accepted and not pair.we_run and pair.ours is not None
    ]
    titles = ("model type", "plan", "transformers", "why not here")
    return _table(titles, rows, "## Accepted by transformers, not run here\n\n")


def _beyond(pairs: Sequence[Pair]) -> str:
    rows = [
        (pair.model_type, pair.plan, _code(pair.real["cause"])) for pair in pairs if not pair.accepted and pair.we_run
    ]
    return _table(("model type", "plan", "what transformers says"), rows, "## Refused on meta tensors, run here\n\n")


def _unequal(pairs: Sequence[Pair]) -> str:
    rows = [
        (pair.model_type, pair.plan, *_difference(pair))
        for pair in pairs
        if pair.accepted
        and pair.we_run
        and not (_same_weights(pair) and ("collectives" not in pair.real or _same_collectives(pair)))
    ]
    titles = ("model type", "plan", "weight bytes, ours / theirs", "collectives only in ours", "only in theirs")
    return _table(titles, rows, "## Different figures\n\n")


def _difference(pair: Pair) -> tuple[str, str, str]:
    assert pair.ours is not None
    mine, its = Counter(pair.ours["collectives"]), Counter(pair.real.get("collectives", pair.ours["collectives"]))
    weights = "same" if _same_weights(pair) else f"{pair.ours['weight_bytes']:,} / {pair.real['weight_bytes']:,}"
    return weights, _counted(mine - its), _counted(its - mine)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} x {name} B" for name, count in counts.items())


def _failed(records: Records) -> str:
    failed = [(key, record) for key, record in sorted(records.items()) if record["status"] != "ok"]
    rows = [(*key.rsplit(" ", 1), _code(record.get("message", ""))) for key, record in failed]
    return _table(("model type", "side", "why"), rows, "## Not examined\n\n")


def _every_type(records: Records, pairs: Sequence[Pair]) -> str:
    by_type: dict[str, dict[str, Pair]] = {}
    for pair in pairs:
        by_type.setdefault(pair.model_type, {})[pair.plan] = pair
    rows = [
        (name, records[f"{name} real"]["class"], *(_mark(found.get(plan)) for plan in PLANS))
        for name, found in sorted(by_type.items())
    ]
    text = "## Every model type\n\ntransformers / here; an empty cell: the model has no rules for it.\n\n"
    return _table(("model type", "class", *PLANS), rows, text)


def _mark(pair: Pair | None) -> str:
    if pair is None:
        return ""
    words = {"runs": "runs", "sharded": "shards", "refused": "refuses"}
    mine = "not tried" if pair.ours is None else words.get(pair.ours["status"], pair.ours["status"])
    return f"{words[pair.real['status']]} / {mine}"


def main() -> None:
    """Sweep, write the data, refresh the page."""
    parser = sweeper(__doc__, "parallel_breadth", "parallel-models.md", seconds=120)
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    parser.add_argument("--redo", choices=(*SIDES, "failed"), help="repeat records that are there already")
    options = parser.parse_args()
    versions = quieten()
    from benchmarks.breadth.parallel import run_real, run_weightless
    from llm_perf_opt.models.huggingface.folder import model_types

    header = {**versions, "model_types": len(model_types())}
    records = load_records(options.out)
    run_real("llama")  # what every child would otherwise import for itself

    def is_wanted(key: str, side: str) -> bool:
        is_failed = key in records and records[key]["status"] != "ok"
        return (
            bool(options.only) or key not in records or options.redo == side or (options.redo == "failed" and is_failed)
        )

    def sweep(side: str, job: Callable[[str], Record], names: list[str]) -> None:
        def keep(name: str, record: Record) -> None:
            records[f"{name} {side}"] = record
            if options.only:
                print(json.dumps(record, indent=1))

        wanted = [name for name in names if is_wanted(f"{name} {side}", side)]
        Sweep(options=options, header=header, records=records, every=5).run(wanted, job, keep, _in_short)

    if "real" in options.sides:
        sweep("real", run_real, sorted(options.only or model_types(), key=lambda name: (not _names_a_plan(name), name)))
    if "weightless" in options.sides:
        known = {key: record["rules"] for key, record in records.items() if "rules" in record}
        rules = {key.removesuffix(" real"): found for key, found in known.items() if key.endswith(" real")}
        names = sorted(set(rules) & set(options.only or rules))
        sweep("weightless", lambda name: run_weightless(name, rules[name]), names)
    write_atomically(options.page, page(header, records))
    print(f"Wrote {options.out} and {options.page}")


def _names_a_plan(model_type: str) -> bool:
    """Whether the configuration class itself has a plan: those come first, since others mostly have none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return False
    config = CONFIG_MAPPING[model_type]
    return any(getattr(config, f"base_model_{axis}_plan", None) for axis in ("tp", "ep", "pp"))


def _in_short(record: Record) -> str:
    if record["status"] != "ok":
        return f"{record['status']} {str(record.get('message'))[:200]}"
    plans = record.get("plans", {})
    return ", ".join(f"{name} {outcome['status']}" for name, outcome in plans.items()) or "no plan"


if __name__ == "__main__":
    main()
