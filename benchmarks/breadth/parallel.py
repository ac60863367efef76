"""Every model type that carries a parallel plan, at its default sizes: what transformers accepts, and what we trace.

    python -m benchmarks.breadth.parallel

Two jobs for each model type, each in a forked child under a cap of time and memory: transformers' own distribution on
meta tensors, then weightless traces of the same plans. The data file is written as the sweep goes, and a second run
continues it: `--sides weightless --redo all` repeats one side, `--only NAME` runs some and prints their records.

transformers builds and shards as `from_pretrained` does it, in torch's fake process group. Then one forward runs on
meta tensors. Where that needs values, which meta tensors do not have, sharding alone is the acceptance, and the record
says so. `Watch` sees every collective of a real run, with its bytes, its ranks and the module that asked for it.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.breadth.full_size import full_size_config
from benchmarks.pages import wide_table, write_atomically
from benchmarks.runner import Record, Sweep, in_short, quieten, resident_bytes, sweeper
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.folder import class_names, load_class, model_types
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from llm_perf_opt.models.huggingface.parallel import uneven_heads

FAMILIES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
NOT_TRAFFIC = ("wait_tensor", "_wrap_tensor_autograd", "barrier")
ROUTED = torch.ops.aten.topk.default


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCollective:
    """One collective as torch dispatched it. `payload_bytes` is the largest tensor among its arguments and results."""

    op: str
    payload_bytes: int
    ranks: tuple[int, ...]
    module: str


def bytes_held(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes on this rank; a tensor that two names share counts once."""
    local = {id(tensor): getattr(tensor, "_local_tensor", tensor) for tensor in tensors}
    return sum(map(_size, local.values()))


@contextmanager
def running_modules(model: torch.nn.Module) -> Iterator[list[str]]:
    """The modules that are running, outermost first. FSDP's own hooks run inside the module they serve."""
    names = {module: name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: torch.nn.Module, arguments: Any) -> None:
        stack.append(names.get(module, "?"))

    def leave(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        stack.pop()

    hooks = torch.nn.modules.module
    entered = hooks.register_module_forward_pre_hook(enter)
    left = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield stack
    finally:
        entered.remove()
        left.remove()


class Watch(TorchDispatchMode):
    """Writes down every collective, and every choice of experts, that torch dispatches."""

    def __init__(self, stack: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.collectives: list[SeenCollective] = []
        self.choices: list[torch.Tensor] = []
        self._stack = stack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back with local tensors
        result = func(*args, **(kwargs or {}))
        family, _, rest = str(func).partition(".")
        if family in FAMILIES and rest.split(".")[0] not in NOT_TRAFFIC:
            everything = tree_leaves((args, kwargs, result))
            self.collectives.append(
                SeenCollective(
                    op=str(func),
                    payload_bytes=max(_size(leaf) for leaf in everything if isinstance(leaf, torch.Tensor)),
                    ranks=_group_ranks(everything),
                    module=self._stack[-1] if self._stack else "",
                )
            )
        elif func is ROUTED:
            self.choices.append(result[1])
        return result


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _group_ranks(leaves: Sequence[Any]) -> tuple[int, ...]:
    from torch.distributed import ProcessGroup, get_process_group_ranks
    from torch.distributed.distributed_c10d import _resolve_process_group

    for leaf in leaves:
        if isinstance(leaf, torch.ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return tuple(get_process_group_ranks(ProcessGroup.unbox(leaf)))
    (name,) = [leaf for leaf in leaves if isinstance(leaf, str) and leaf not in ("sum", "avg", "max", "min")]
    return tuple(get_process_group_ranks(_resolve_process_group(name)))


def distributed_model(build: Callable[[], Any], sizes: Mapping[str, int]) -> Any:
    """The share of this rank. `sizes` are as in transformers' `DistributedConfig`, `tp_size` and so on."""
    from transformers import initialization
    from transformers.distributed import DistributedConfig

    with initialization.no_tie_weights():
        whole = build()
    kind = type(whole)
    settled, _, meshes = kind.prepare_distribute_model(DistributedConfig(**sizes))
    model = kind.maybe_distribute_model(whole, settled, meshes)
    model.tie_weights(recompute_mapping=False)
    return model


MESSAGE_LENGTH = 300
PLANS = {
    "tp2": ParallelPlan(tp=2, rank=0),
    "tp8": ParallelPlan(tp=8, rank=0),
    "tp8 ep8": ParallelPlan(tp=8, ep=8, rank=0),
    "fsdp8 ep8": ParallelPlan(fsdp=8, ep=8, rank=0),
    "pp2 first": ParallelPlan(pp=2, rank=0),
    "pp2 last": ParallelPlan(pp=2, rank=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedType:
    """A model type at its default sizes: class, configuration, and a folder with that configuration."""

    model_type: str
    model_class: Any
    config: Any
    folder: Path


@contextmanager
def planned_type(model_type: str) -> Iterator[PlannedType]:
    """The type, with a folder that lives as long as the context."""
    chosen = full_size_config(model_type)
    name = chosen.class_name or class_names(model_type)[0]
    with tempfile.TemporaryDirectory() as scratch:
        fields = json.loads(chosen.config.to_json_string(use_diff=False)) | {"architectures": [name]}
        (Path(scratch) / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        yield PlannedType(
            model_type=model_type, model_class=load_class(model_type, name), config=chosen.config, folder=Path(scratch)
        )


def plans_of(rules: Mapping[str, object], only: Collection[str] = PLANS) -> dict[str, ParallelPlan]:
    """The plans among `only` to try, by name: those for which the built model has rules."""
    wanted = {name: plan for name, plan in PLANS.items() if name in only}
    return {n: plan for n, plan in wanted.items() if rules["ep" if plan.ep > 1 else "pp" if plan.pp > 1 else "tp"]}


def cause(config: Any, plan: ParallelPlan, message: str) -> str:
    """Why a plan is refused, in a few words: heads that do not divide, or what the library said."""
    return uneven_heads(config, plan) or re.sub(r"\s+", " ", message)[:MESSAGE_LENGTH]


# What torch says of an op that needs values, or that has no kernel for meta tensors.
NEEDS_VALUES = ("meta tensor", "on meta", "'Meta' backend", "data-dependent", "meta device", "type meta")


def run_real(model_type: str, only: Collection[str] = PLANS) -> Record:
    """The record of one model type: its rules, and the outcome of its plans among `only`."""
    with planned_type(model_type) as planned:
        model = _build(planned)
        rules = {axis: len(getattr(model, f"{axis}_plan", None) or ()) for axis in ("tp", "ep", "pp")}
        record: Record = {"status": "ok", "class": planned.model_class.__name__, "rules": rules}
        plans = plans_of(rules, only)
        if not plans:
            return record
        workload = HuggingFaceWorkload(decode_steps=0)
        target = HuggingFaceAdapter(planned.folder, False).targets(workload)[0]
        outcomes = {name: _outcome(planned, plan, target) for name, plan in plans.items()}
        record["plans"] = outcomes
        if any(outcome.get("stage") == "forward" for outcome in outcomes.values()):
            whole = record["whole"] = _forward(model, target)
            for outcome in outcomes.values():
                if outcome.get("stage") == "forward" and outcome["message"] == whole.get("message"):
                    outcome["status"] = "sharded"  # meta tensors cannot run the unsharded model either
        record["rss_bytes"] = resident_bytes()
        return record


def _build(planned: PlannedType) -> Any:
    with torch.device("meta"):
        return planned.model_class._from_config(copy.deepcopy(planned.config), dtype=torch.bfloat16).eval()


def _outcome(planned: PlannedType, plan: ParallelPlan, target: Target) -> Record:
    """`runs`, `sharded` (its forward needs values), or `refused` with stage, message and cause."""
    started = time.process_time()
    with _fake_group(plan):
        try:
            sizes = {f"{axis}_size": size for axis, size in plan.sizes().items()}
            model = distributed_model(partial(_build, planned), sizes)
        except Exception as error:  # noqa: BLE001  a sweep records whatever a library raises
            return _refused(planned, plan, "sharding", _said(error))
        outcome: Record = {"weight_bytes": bytes_held(model.parameters())}
        outcome |= _forward(model, target)
    outcome["seconds"] = round(time.process_time() - started, 2)
    if outcome["status"] == "refused":
        return outcome | _refused(planned, plan, "forward", str(outcome["message"]))
    return outcome


def _forward(model: Any, target: Target) -> Record:
    with torch.device("meta"), torch.no_grad(), running_modules(model) as stack:
        watch = Watch(stack)
        given = target.start(model)
        if isinstance(given, dict):
            given.pop("attention_mask", None)  # of ones: it hides nothing, and its values would be asked for
        try:
            with watch:
                target.run(model, given)
        except Exception as error:  # noqa: BLE001  a sweep records whatever a model raises
            said = _said(error)
            needs_values = any(words in said for words in NEEDS_VALUES)
            return {"status": "sharded" if needs_values else "refused", "message": said}
    counts = Counter(f"{seen.op} {seen.payload_bytes}" for seen in watch.collectives)
    return {"status": "runs", "collectives": dict(sorted(counts.items()))}


def _refused(planned: PlannedType, plan: ParallelPlan, stage: str, message: str) -> Record:
    why = cause(planned.config, plan, message)
    return {"status": "refused", "stage": stage, "message": message, "cause": why}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[:MESSAGE_LENGTH]


@contextmanager
def _fake_group(plan: ParallelPlan) -> Iterator[None]:
    from torch import distributed
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _clear_sharding_prop_cache()  # meshes of equal layout share it
    distributed.init_process_group(
        "cpu:fake,meta:fake", store=FakeStore(), rank=plan.rank or 0, world_size=plan.replica_ranks
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def run_weightless(model_type: str, rules: Mapping[str, object], only: Collection[str] = PLANS) -> Record:
    """The record of one model type: the outcome of each plan among `only` that its rules allow to try."""
    with planned_type(model_type) as planned:
        outcomes = {name: _traced(planned, plan) for name, plan in plans_of(rules, only).items()}
        return {"status": "ok", "plans": outcomes, "rss_bytes": resident_bytes()}


def _traced(planned: PlannedType, plan: ParallelPlan) -> Record:
    """`runs` with what a rank holds and communicates, or `refused` with the message."""
    started = time.process_time()
    try:
        adapter = HuggingFaceAdapter(planned.folder, False).on_rank(plan)
        graphs = [WeightlessTracer().trace(target) for target in adapter.targets(HuggingFaceWorkload())]
    except PerfOptError as error:
        why = f"{error.what} {error.why or ''}"[:MESSAGE_LENGTH]
        return {"status": "refused", "message": why, "cause": cause(planned.config, plan, why)}
    except Exception as error:  # noqa: BLE001  not one of ours: a mistake of this house, and recorded as one
        return {"status": "crash", "message": f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH]}
    prefill, *later = graphs
    return {
        "status": "runs",
        "weight_bytes": _weight_bytes(prefill),
        "collectives": _collectives(prefill),
        "phases": len(graphs),
        "decode_collectives": sum(_collectives(later[0]).values()) if later else None,
        "seconds": round(time.process_time() - started, 2),
    }


def _weight_bytes(graph: CallGraph) -> int:
    assert graph.storages is not None, "a weightless trace knows its storages"
    held = {parameter.storage for parameter in graph.parameters if not parameter.is_buffer}
    return sum(graph.storages.bytes[storage] for storage in held)


def _collectives(graph: CallGraph) -> dict[str, int]:
    assert graph.ops is not None, "a weightless trace has ops"
    counts: Counter[str] = Counter()
    for row in graph.ops.kind:
        kind = graph.op_kinds[row]
        if (collective := collective_of(kind)) is not None:
            counts[f"{kind.name} {collective.payload_bytes}"] += 1
    return dict(sorted(counts.items()))


# ---- the page

SIDES = ("real", "weightless")
Records = Mapping[str, Mapping[str, Any]]

ACCEPTED = ("runs", "sharded")
INTRODUCTION = """
# Model types under a parallel plan

How many models of transformers run here under the parallel plan that each of them carries, without weights, without a
GPU and without the other ranks. Every model type with a model class, at its default sizes, is tried twice:

- **transformers itself**: its own distribution code on meta tensors in torch's fake process group, then one forward.
  *Runs*: sharded, and the forward ran. *Shards*: sharded, and the forward stops where it needs values. *Refuses*: one
  of the two raised, and the cause is below.
- **a weightless trace** of the same plan: rank 0 (both pipeline stages), prefill and one decode step.

```sh
python -m benchmarks.breadth.parallel
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

    def is_same(self, figure: str) -> bool:
        return self.ours is not None and bool(self.real[figure] == self.ours[figure])


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
    having = {axis: sum(bool(ranks_of_axis[axis]) for ranks_of_axis in rules) for axis in ("tp", "ep", "pp")}
    accepted = [pair for pair in pairs if pair.accepted]
    traced = [pair for pair in accepted if pair.ours is not None]
    run = sum(pair.we_run for pair in traced)
    share = f"{run / len(traced):.1%}" if traced else "none"
    untried = "" if len(traced) == len(accepted) else f" The other {len(accepted) - len(traced)} were not traced yet."
    return (
        f"With transformers {header['transformers']} and torch {header['torch']}, {len(rules)} of "
        f"{header['model_types']} model types examined: {len(types)} carry a plan, their own or a part's "
        f"({having['tp']} for tensor, {having['ep']} for expert, {having['pp']} for pipeline parallelism). "
        f"transformers accepts {len(accepted)} of {len(pairs)} plans; "
        f"of these {len(traced)} were traced and **{run} run here, {share}**.{untried}"
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]], heading: str = "") -> str:
    """Under a heading where there is one, and then only where there are rows."""
    lines = [[str(cell_value).replace("|", "\\|") for cell_value in row] for row in rows]
    return heading + wide_table(titles, lines) if lines or not heading else ""


def _by_plan(pairs: Sequence[Pair]) -> str:
    rows = []
    for plan in PLANS:
        tried = [pair for pair in pairs if pair.plan == plan]
        status = Counter(pair.real["status"] for pair in tried)
        accepted = [pair for pair in tried if pair.accepted and pair.ours is not None]
        both = [pair for pair in accepted if pair.we_run]
        counted = [pair for pair in both if "collectives" in pair.real]
        weights = sum(pair.is_same("weight_bytes") for pair in both)
        collectives = sum(pair.is_same("collectives") for pair in counted)
        shares = ((len(both), accepted), (weights, both), (collectives, counted))
        said = (status[word] for word in ("runs", "sharded", "refused"))
        rows.append((plan, len(tried), *said, *(f"{some} of {len(of)}" for some, of in shares)))
    titles = ("plan", "types", "runs", "shards", "refuses", "we run", "same weight bytes", "same collectives")
    return _table(titles, rows)


def _refusals(pairs: Sequence[Pair]) -> str:
    causes: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.real["status"] == "refused":
            causes.setdefault(_code(pair.real["cause"]), []).append(f"{pair.model_type} ({pair.plan})")
    rows = [(len(who), cause, ", ".join(who)) for cause, who in sorted(causes.items(), key=lambda item: -len(item[1]))]
    return _table(("plans", "cause", "model types"), rows, "## What transformers refuses\n\n")


def _code(message: str) -> str:
    """A message of a library as code, a cause in words as it is."""
    line = " ".join(message.split())
    return f"`{line[:160]}`" if "Error" in line else line


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
        and not (pair.is_same("weight_bytes") and ("collectives" not in pair.real or pair.is_same("collectives")))
    ]
    titles = ("model type", "plan", "weight bytes, ours / theirs", "collectives only in ours", "only in theirs")
    return _table(titles, rows, "## Different figures\n\n")


def _difference(pair: Pair) -> tuple[str, str, str]:
    assert pair.ours is not None
    mine, its = Counter(pair.ours["collectives"]), Counter(pair.real.get("collectives", pair.ours["collectives"]))
    weights = " / ".join(f"{record['weight_bytes']:,}" for record in (pair.ours, pair.real))
    return "same" if pair.is_same("weight_bytes") else weights, _counted(mine - its), _counted(its - mine)


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
        (name, records[f"{name} real"]["class"], *(_mark(by_plan.get(plan)) for plan in PLANS))
        for name, by_plan in sorted(by_type.items())
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
    parser = sweeper(__doc__, "parallel_breadth", "evidence/parallel-models.md", seconds=120)
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    sweep = Sweep(options, {**quieten(), "model_types": len(model_types())}, every=5)
    run_real("llama")  # what every child would otherwise import for itself
    if "real" in options.sides:
        names = sorted(model_types(), key=lambda name: (not _names_a_plan(name), name))
        sweep.run(names, run_real, _plans_in_short, " real")
    if "weightless" in options.sides:
        known = {key.removesuffix(" real"): record for key, record in sweep.records.items() if key.endswith(" real")}
        rules = {name: record["rules"] for name, record in known.items() if "rules" in record}
        sweep.run(sorted(rules), lambda name: run_weightless(name, rules[name]), _plans_in_short, " weightless")
    write_atomically(options.page, page(sweep.header, sweep.records))
    print(f"Wrote {options.out} and {options.page}")


def _names_a_plan(model_type: str) -> bool:
    """Whether the configuration class itself has a plan: those come first, since others mostly have none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return False
    config = CONFIG_MAPPING[model_type]
    return any(getattr(config, f"base_model_{axis}_plan", None) for axis in ("tp", "ep", "pp"))


def _plans_in_short(record: Record) -> str:
    plans = record.get("plans", {})
    said = ", ".join(f"{name} {outcome['status']}" for name, outcome in plans.items()) or "no plan"
    return said if record["status"] == "ok" else in_short(record)


if __name__ == "__main__":
    main()
