"""What a page needs to recompute a server: the memory of a rank and the step table of every GPU, plan and format."""

from __future__ import annotations

import base64
import logging
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.hardware.prices import shipped_prices
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.sizing import search_cluster
from llm_perf_opt.serving.engines import default_limits, visible_bytes
from llm_perf_opt.serving.fit import RankMemory, fullest_fit
from llm_perf_opt.serving.served_model import ServedModel
from llm_perf_opt.timing.lower_bound import fastest_peak
from llm_perf_opt.timing.step.request_time import first_token_shares
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface, UntimedKernels

log = logging.getLogger(__name__)

MOST_RANKS = 8  # of a replica

Data = dict[str, Any]


@dataclass(kw_only=True)
class ExploredPlans:
    """The server of one model in several formats; columns that tables share are listed once."""

    served: Mapping[str, ServedModel]  # by the name of the format
    clusters: tuple[Cluster, ...]
    dtypes: frozenset[str]  # of the multiplications
    _columns: dict[tuple[float, ...], int] = field(default_factory=dict)  # with their places
    _memories: dict[tuple[object, ...], Sequence[RankMemory]] = field(default_factory=dict)

    @classmethod
    def of(cls, served: Mapping[str, ServedModel], gpus: Iterable[str], dtypes: frozenset[str]) -> ExploredPlans:
        """On whole nodes, up to `MOST_RANKS` GPUs for a replica."""
        clusters = tuple(search_cluster(gpu, MOST_RANKS) for gpu in gpus)
        return cls(served=served, clusters=clusters, dtypes=dtypes)

    def data(self) -> Data:
        """GPUs, plans and engine once; accounts and tables by format, GPU and plan."""
        model = next(iter(self.served.values()))
        plans = self._plans(model)
        entries: list[Data] = []
        for name, served in self.served.items():
            for cluster in self.clusters:
                log.info("%s, %s: %d plans", cluster.device.id, name, len(plans))
                within = [plan for plan in plans if plan.tp <= cluster.per_node]
                entries += [entry for plan in within for entry in self._entry(name, served, cluster, plan)]
        return {
            "gpus": [_gpu(cluster, self.dtypes) for cluster in self.clusters],
            "plans": [{"name": plan.describe(), "ranks": plan.replica_ranks} for plan in plans],
            "client": asdict(first_token_shares(model.engine, has_drawn_lengths=False)),
            "engine": model.engine,
            "entries": entries,
            "columns": [_packed(column) for column in self._columns],
        }

    def _plans(self, served: ServedModel) -> list[ParallelPlan]:
        """Ranks that divide the heads; of experts the widest plan also with whole experts on each rank."""
        sizes = [2**power for power in range(10) if 2**power <= MOST_RANKS and served.heads % 2**power == 0]
        plans = [ParallelPlan(tp=size) for size in sizes]
        if served.has_experts and sizes[-1] > 1:
            plans.append(ParallelPlan(tp=sizes[-1], ep=sizes[-1]))
        return plans

    def _entry(self, name: str, served: ServedModel, cluster: Cluster, plan: ParallelPlan) -> Iterator[Data]:
        """One account, with a step table where the weights leave room for a cache."""
        device = cluster.device
        memory = self._memory(name, served, device, plan)
        (rank,) = memory
        if rank.working is None or rank.cache is None:
            return
        fit = fullest_fit(memory, device, context=1)
        entry = {
            "format": name,
            "gpu": device.id,
            "plan": plan.describe(),
            "weights": [asdict(term) for term in rank.weights],
            "working": {"moment": rank.working.moment, "terms": [asdict(term) for term in rank.working.terms]},
            "outside": rank.engine.outside_torch(rank.plan),
            "utilisation": rank.engine.utilisation,
            "cache": asdict(rank.cache),
            "trained": rank.trained_context,
            "table": None,
        }
        if fit.room_bytes is None or fit.room_bytes <= 0:
            yield entry
            return
        try:
            table = served._table(device, plan, cluster)
        except UntimedKernels as error:
            log.warning("%s %s has no times. %s", device.id, plan.describe(), error.what)
            yield entry
            return
        yield {**entry, "table": self._table(table), "measured": served.is_measured(cluster)}

    def _memory(self, name: str, served: ServedModel, device: Device, plan: ParallelPlan) -> Sequence[RankMemory]:
        """Of a device only its batch limits and its compute capability count here."""
        limits = default_limits(device)
        key = (name, plan, limits, str(device.facts.get("compute_capability", "")))
        if key not in self._memories:
            self._memories[key] = served._memory(device, plan, limits)
        return self._memories[key]

    def _table(self, table: StepTable) -> Data:
        return {
            "tokens": self._curve(table.tokens),
            "head": self._curve(table.head),
            "decoding": self._surface(table.decoding),
            "prompts": self._surface(table.prompts),
            "states": None if table.states is None else self._surface(table.states),
            "images": None if table.images is None else self._curve(table.images),
            "padded": self._column(tuple(map(float, table.padded_to))),
            "groups": table.groups,
            "host_s": table.host_s,
            "low": table.low,
            "high": table.high,
            "origin": table.origin,
        }

    def _curve(self, curve: Curve) -> Data:
        return {"at": self._column(curve.at), "seconds": self._column(tuple(curve.seconds))}

    def _surface(self, surface: Surface) -> Data:
        seconds = tuple(number for row in surface.seconds for number in row)
        return {
            "across": self._column(surface.across),
            "along": self._column(surface.along),
            "seconds": self._column(seconds),
        }

    def _column(self, numbers: tuple[float, ...]) -> int:
        """Its place in the list: formats and GPUs have many steps in common."""
        return self._columns.setdefault(numbers, len(self._columns))


def _packed(numbers: Sequence[float]) -> str:
    """Doubles of eight bytes, the lowest first, in base 64: every digit arrives."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}d", *numbers)).decode("ascii")


def _gpu(cluster: Cluster, dtypes: frozenset[str]) -> Data:
    device, limits = cluster.device, default_limits(cluster.device)
    price = shipped_prices().get(device.id)
    return {
        "id": device.id,
        "name": device.name,
        "per_node": cluster.per_node,
        "memory": device.memory_bytes,
        "visible": visible_bytes(device),
        "bandwidth": device.bandwidth_bytes_per_s,
        "cache": device.cache_bytes or 0,
        "peaks": dict(_peaks(device, dtypes)),
        "sequences": limits.sequences,
        "batched_tokens": limits.chunk_tokens,
        "price": None
        if price is None
        else {"per_hour": price.per_hour, "currency": price.currency, "of": f"{price.provider}, {price.as_of}"},
    }


def _peaks(device: Device, dtypes: frozenset[str]) -> Iterator[tuple[str, int]]:
    """The fastest peak of each type; a type without a known one is left out, and has no lower bound."""
    for dtype in sorted(dtypes):
        with suppress(PerfOptError):
            yield dtype, fastest_peak(dtype, device)
