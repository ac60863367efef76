"""From a declared grid to tasks: points that share a trace are one task, with the hash of everything they rest on.

A trace depends on the model, the plan, the types and the rest of the workload; stored formats, replicas and devices are
applied to it afterwards. A function is of one stored format. A saved function needs no model: its devices are tasks of
their own. Under traffic a trace of one device serves every plan.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.reading import MODEL_FILE, filled, read_bytes
from llm_perf_opt.sweeps.studies.study import FUNCTION_SUFFIX, Study, StudyModel, combinations
from llm_perf_opt.sweeps.studies.study_columns import SCHEMA_VERSION

TRACE, FUNCTION, FILE, REPLAY = "trace", "function", "file", "replay"
TRACED_PAIRS = 12  # up to this many batches x contexts are traced one by one: a function takes as many traces itself
CHECKPOINT = "checkpoint"
_CODE = (".json", ".py", ".jinja", ".toml")  # of a folder: what a trace rests on; weights are not read
_HASHED = replace(MODEL_FILE, max_bytes=2**28, stays_in_folder=False)  # whoever traces it looks at its links


@dataclass(frozen=True, slots=True, kw_only=True)
class PointDeployment:
    """One deployment of a task: replicas, formats, device and price, with the hash of all its inputs."""

    plan: ParallelPlan
    weights: str | None
    cache: str | None
    device: str
    price_per_hour: float | None  # of all devices together
    inputs_hash: str
    traffic: str | None = None

    @property
    def replicas(self) -> int:
        """How many replicas share the batch."""
        return self.plan.dp * self.plan.fsdp

    def cluster(self) -> Cluster:
        """The devices that the plan runs on."""
        return cluster_for(self.plan, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask:
    """Points that share a trace or a function; one process computes all of them and writes one file."""

    study: str
    model: StudyModel
    workload: Mapping[str, Any]
    plan: ParallelPlan  # of one replica
    way: str
    deployments: tuple[PointDeployment, ...]
    batches: tuple[int, ...]  # none under traffic, which has its own
    contexts: tuple[int, ...] | None
    generated_tokens: int
    execution: str
    rates: str
    currency: str
    versions: Mapping[str, str | None]
    trust_remote_code: bool
    key: str  # of the task, whatever the versions
    digest: str  # of every input and every point

    @property
    def points(self) -> int:
        """How many rows its file has."""
        return len(self.deployments) * (len(self.batches) or 1) * len(self.contexts or (None,))

    @property
    def file_stem(self) -> str:
        """The name of the file that holds its points, without its ending."""
        return f"part-{self.key}-{self.digest}"

    def pairs(self) -> Iterator[tuple[int | None, int | None]]:
        """Batch and context of every point of a deployment; None: as its traffic or its model has it."""
        return product(self.batches or (None,), self.contexts or (None,))


def cluster_for(plan: ParallelPlan, device: str) -> Cluster:
    """As many of a device as the plan has ranks; a text with a number of its own must say the same."""
    cluster = parse_cluster(device)
    if cluster.count > 1 and cluster.count != plan.ranks:
        raise PerfOptError(
            f"{plan.describe()} does not run on {device}.",
            why=f"it has {plan.ranks:,} ranks, one for each device",
            fix="name the device alone: a plan takes as many as it has ranks",
        )
    return cluster if cluster.count == plan.ranks else parse_cluster(f"{plan.ranks}x {device}")


def study_tasks(
    study: Study, versions: Mapping[str, str | None], folders: Mapping[str, Path] | None = None
) -> tuple[StudyTask, ...]:
    """Every task of a study, in the order of its axes.

    `folders` is where the configuration of a model lies that is given by its name.
    """
    plans = [ParallelPlan()] if study.traffics else dict.fromkeys(replace(plan, dp=1) for plan in study.plans)
    return tuple(
        task
        for model, workload in combinations(study)
        for shared in plans
        for task in _tasks(study, model, workload, shared, versions, (folders or {}).get(model.source))
    )


def _tasks(
    study: Study,
    model: StudyModel,
    workload: Mapping[str, Any],
    plan: ParallelPlan,
    versions: Mapping[str, str | None],
    folder: Path | None,
) -> Iterator[StudyTask]:
    way = way_of(study, model, plan)
    place = model.source if folder is None else str(folder)
    is_folder = os.path.isdir(place)  # noqa: PTH112  Path.is_dir raises for a name that is too long
    known = {
        "tool_version": versions["tool_version"],
        "torch_version": None if way == FILE else versions["torch_version"],
        "transformers_version": versions["transformers_version"] if is_folder else None,
    }
    if way == REPLAY:
        known["engine_version"] = versions.get("engine_version")
    basis = {
        "schema": SCHEMA_VERSION,
        "model": [model.source, content_hash(place)],
        "workload": dict(workload),
        "plan": asdict(plan),
        "way": way,
        "execution": study.execution,
        "rates": study.rates,
        "generated_tokens": study.generated_tokens,
        "versions": known,
    }
    plans = [candidate for candidate in study.plans if way == REPLAY or replace(candidate, dp=1) == plan]
    formats = list(product(study.weights, study.caches))
    places = list(product(plans, study.devices, study.traffics or (None,)))
    if way == TRACE:
        groups = [[(*place, *stored) for place in places for stored in formats]]
    elif way in (FUNCTION, REPLAY):
        groups = [[(*place, *stored) for place in places] for stored in formats]
    else:
        groups = [[(*place, *stored)] for place in places for stored in formats]
    identity = [study.name, model.name, model.source, dict(workload), asdict(plan)]
    for number, group in enumerate(groups):
        deployments = tuple(_deployment(study, basis, *choice) for choice in group)
        hashes = [deployment.inputs_hash for deployment in deployments]
        yield filled(
            StudyTask,
            study,
            study=study.name,
            model=model,
            workload=workload,
            plan=plan,
            way=way,
            deployments=deployments,
            batches=() if way == REPLAY else study.batches,
            versions=known,
            key=short_hash([*identity, way, group[0] if way == FILE else number]),
            digest=short_hash([hashes, study.batches, study.contexts]),
        )


def _deployment(
    study: Study,
    basis: Mapping[str, Any],
    plan: ParallelPlan,
    device: str,
    traffic: str | None,
    weights: str | None,
    cache: str | None,
) -> PointDeployment:
    price = study.prices.get(device)
    hourly = None if price is None else price * plan.ranks
    stored = {"plan": asdict(plan), "weights": weights, "cache": cache}
    machine = {"device": device, "figures": _figures(plan, device), "price": hourly, "currency": study.currency}
    requests = {} if traffic is None else {"traffic": [traffic, content_hash(traffic)]}
    return PointDeployment(
        plan=plan,
        weights=weights,
        cache=cache,
        device=device,
        price_per_hour=hourly,
        inputs_hash=short_hash([basis, stored, {**machine, **requests}], 32),
        traffic=traffic,
    )


def _figures(plan: ParallelPlan, device: str) -> str:
    """The figures of the devices and their links as text; a cluster that cannot be is refused as a point, not here."""
    try:
        return repr(cluster_for(plan, device))
    except PerfOptError as refusal:
        return refusal.what


def way_of(study: Study, model: StudyModel, plan: ParallelPlan) -> str:
    """How points are found: few pairs by tracing each, many by a function; a pipeline has several kinds of rank."""
    if study.traffics:
        return REPLAY
    if model.source.endswith(FUNCTION_SUFFIX):
        return FILE
    return FUNCTION if study.contexts is not None and study.pairs > TRACED_PAIRS and plan.pp == 1 else TRACE


def content_hash(source: str) -> str | None:
    """The digest of the configuration and the code that a trace rests on; None: a model of the package itself."""
    if os.path.isdir(source):  # noqa: PTH112  as above
        files = [file for file in sorted(Path(source).rglob("*")) if file.suffix in _CODE and file.is_file()]
    elif os.path.isfile(source):  # noqa: PTH113  as above
        files = [Path(source)]
    else:
        return None
    digest = hashlib.sha256()
    for file in files:
        raw = read_bytes(file, _HASHED)
        digest.update(f"{file.name}\0{len(raw)}\0".encode(errors="surrogateescape"))
        digest.update(raw)
    return digest.hexdigest()


def short_hash(value: object, digits: int = 16) -> str:
    """The first digits of the SHA-256 of plain values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def workload_text(workload: Mapping[str, Any]) -> str:
    """The workload as it is shown in a row."""
    return " ".join(f"{name}={value}" for name, value in sorted(workload.items()))


def points_of(tasks: Sequence[StudyTask]) -> int:
    """The points of several tasks."""
    return sum(task.points for task in tasks)
