"""Python's answers for a choice of the explore page, from the functions that other verbs print; and the page's own."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import llm_perf_opt as lpo
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.formats.html_format import joined_modules, page_modules
from llm_perf_opt.serving.capacity.sizing import search_cluster
from llm_perf_opt.serving.capacity.steady_state import MeanRequest
from llm_perf_opt.serving.engines import default_limits
from llm_perf_opt.serving.explored_plans import MOST_RANKS
from llm_perf_opt.serving.fit import fullest_fit
from llm_perf_opt.serving.served_model import Replica, ServedModel
from llm_perf_opt.serving.served_trace import served_origin
from llm_perf_opt.sweeps.function.phase_function import ALL_FIGURES
from llm_perf_opt.timing.lower_bound import lower_bound
from llm_perf_opt.timing.step.request_time import first_token_shares

# No form gives these in another cache format than the traced one: the page shows a question mark.
_UNKNOWN = frozenset(f"decode {name}" for name in ("cache_bytes", "peak_bytes", "needed_bytes"))
OF_FIGURES = ("forms.js", "formulas.js", "memory.js", "steady.js", "steps.js", "figures.js")
# Whole numbers as text, times as doubles; `none` where the page shows a question mark.
ASK = """
const model = new Model(JSON.parse(arguments[0]));
const plain = (tree) => (tree ? (typeof tree.value === "bigint" ? tree.value.toString() : tree.value) : null);
const flat = (choice) => {
  const { phases, bounds, times, memory, serve } = allFigures(model, choice);
  const answer = {};
  for (const [phase, figures] of Object.entries(phases)) {
    for (const [name, tree] of Object.entries(figures ?? {})) {
      if (name !== "stages") answer[`${phase} ${name}`] = plain(tree);
    }
    answer[`${phase} bound`] = plain(bounds[phase]);
    answer[`${phase} time`] = plain(times[phase]);
  }
  for (const [name, tree] of Object.entries(memory ?? {})) {
    answer[`memory ${name}`] = name === "fits" ? tree : plain(tree);
  }
  answer.broken = serve.broken;
  if (!serve.broken) {
    for (const name of ["ttft", "tpot", "requests", "tokens", "speed"]) answer[`serve ${name}`] = plain(serve[name]);
  }
  const { points } = frontier(model, choice);
  answer.frontier = points.map(({ plan, sequences, speed, tokens }) => [plan, sequences, speed, tokens]);
  return answer;
};
return JSON.stringify(arguments[1].map(flat));
"""

Choice = Mapping[str, Any]


def figures_script() -> str:
    """The modules of the page that compute, without those that draw."""
    texts = page_modules("explore_page")
    return joined_modules(texts[name] for name in texts if name in OF_FIGURES)


def page_answers(driver: Any, data: Mapping[str, Any], choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """What the page's own script gives in a browser."""
    return json.loads(driver.execute_script(f"{figures_script()}\n{ASK}", json.dumps(data), list(choices)))


def random_choices(data: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """Sizes spread evenly over their logarithms, and any GPU, plan and format that the page has an account of."""
    rng = random.Random(seed)

    def spread(low: int, high: int) -> int:
        return min(high, max(low, round(math.exp(rng.uniform(math.log(low), math.log(high))))))

    domain = {
        name: (
            max(phase["domain"][name][0] for phase in data["phases"]),
            min(phase["domain"][name][1] for phase in data["phases"]),
        )
        for name in ("batch", "context")
    }
    choices = []
    for _ in range(count):
        entry = rng.choice(data["entries"])
        weights, cache = entry["format"].split(" / ")
        choices.append(
            {
                "batch": spread(*domain["batch"]),
                "context": spread(*domain["context"]),
                "input": spread(16, 32768),
                "output": spread(16, 4096),
                "users": spread(1, 2048),
                "count": spread(1, 64),
                "gpu": entry["gpu"],
                "plan": entry["plan"],
                "weights": weights,
                "cache": cache,
            }
        )
    return choices


@dataclass(eq=False)
class Reference:
    """A model in some formats, each traced and made a function of by itself; asked as the other verbs ask it."""

    functions: Mapping[str, lpo.TraceFunction[lpo.Trace]]
    served: Mapping[str, ServedModel]

    @classmethod
    def of(
        cls, model: str | Path, formats: Mapping[str, Deployment], *, batch: tuple[int, int], context: tuple[int, int]
    ) -> Reference:
        functions, served = {}, {}
        for name, wanted in formats.items():
            trace = lpo.trace(model, batch=batch[0], weights=wanted.weights, cache=wanted.cache)
            functions[name] = trace.over(batch=batch, context=context)
            origin, _ = served_origin(functions[name].at(batch=batch[0], context=context[0]))
            served[name] = ServedModel(origin)
        return cls(functions, served)

    def differences(self, choice: Choice, page: Mapping[str, Any]) -> list[str]:
        """Every figure that the page has otherwise: whole numbers to the last digit, times to 1e-12."""
        wanted = self.answers(choice)
        unknown = _UNKNOWN if choice["cache"] == "fp8" else frozenset()
        return [
            f"{dict(choice)}: {name}: {page.get(name)} is not {value}"
            for name, value in wanted.items()
            if not _same(page.get(name), value) and not (name in unknown and page.get(name) is None)
        ]

    def answers(self, choice: Choice) -> dict[str, Any]:
        served = self.served[f"{choice['weights']} / {choice['cache']}"]
        cluster, plan = search_cluster(choice["gpu"], MOST_RANKS), _plan(served, choice["plan"])
        mean = MeanRequest(prompt_tokens=float(choice["input"]), output_tokens=float(choice["output"]))
        client = first_token_shares(served.engine, has_drawn_lengths=False)
        memory = served._memory(cluster.device, plan, default_limits(cluster.device))
        replica = None
        if (fullest_fit(memory, cluster.device, context=1).room_bytes or 0) > 0:
            replica = served.replica(cluster.device, plan, mean, None, cluster=cluster, is_closed=True, client=client)
        return {
            **self._of_phases(choice, served, plan),
            **_of_memory(memory, cluster.device, choice),
            **_of_serve(replica, plan, choice),
        }

    def _of_phases(self, choice: Choice, served: ServedModel, plan: ParallelPlan) -> dict[str, Any]:
        function = self.functions[f"{choice['weights']} / {choice['cache']}"]
        cluster = search_cluster(choice["gpu"], MOST_RANKS)
        point = {"batch": choice["batch"], "context": choice["context"]}
        columns = {name: [value] for name, value in point.items()}
        answers: dict[str, Any] = {}
        for phase in function.phases:
            figures = function.figures(phase.phase, columns, ALL_FIGURES)
            answers |= {f"{phase.phase} {name}": _text(column[0]) for name, column in figures.items()}
            if plan.replica_ranks == 1:
                answers[f"{phase.phase} bound"] = float(
                    function.times(phase.phase, columns, choice["gpu"], execution="fused").lower_bound_s[0]  # type: ignore[index]
                )
            else:
                answers[f"{phase.phase} bound"] = self._bound_of_ranks(phase, point, plan.replica_ranks, choice["gpu"])
        memory = served._memory(cluster.device, plan, default_limits(cluster.device))
        if (fullest_fit(memory, cluster.device, context=1).room_bytes or 0) > 0:
            table = served._table(cluster.device, plan, cluster)
            batch, context = choice["batch"], choice["context"]
            answers["prefill time"] = table.seconds(0, 0, [(context, 0)] * batch) + table.host_s
            answers["decode time"] = table.seconds(batch, batch * context) + table.host_s
        return answers

    @staticmethod
    def _bound_of_ranks(phase: Any, point: Mapping[str, int], ranks: int, gpu: str) -> float:
        """The bound of a device with the peaks, the bandwidth and the cache of all ranks."""
        from llm_perf_opt.costs.necessary.stage_needs import necessary_by_stage

        device = search_cluster(gpu, MOST_RANKS).device
        together = replace(
            device,
            peak_flops_per_s={name: ranks * peak for name, peak in device.peak_flops_per_s.items()},
            bandwidth_bytes_per_s=ranks * device.bandwidth_bytes_per_s,
            l2_bytes=None if device.l2_bytes is None else ranks * device.l2_bytes,
            last_cache_bytes=None if device.last_cache_bytes is None else ranks * device.last_cache_bytes,
        )
        work = necessary_by_stage(phase.graph_at(point)).values()
        return sum(
            lower_bound(stage.flops_by_dtype, stage.bytes or 0, together, forwards=stage.forwards).seconds
            for stage in work
        )


def _plan(served: ServedModel, name: str) -> ParallelPlan:
    sizes = [2**power for power in range(4) if served.heads % 2**power == 0]
    plans = [ParallelPlan(tp=tp, ep=ep) for tp in sizes for ep in dict.fromkeys((1, tp))]
    return next(plan for plan in plans if plan.describe() == name)


def _of_memory(memory: Sequence[Any], device: Any, choice: Choice) -> dict[str, Any]:
    (rank,) = memory
    from llm_perf_opt.serving.fit import fit_of

    fit = fit_of(rank, device, batch=choice["batch"], context=choice["context"])
    return {
        "memory weights": _text(fit.weights_bytes),
        "memory working": _text(fit.working_bytes),
        "memory outside": _text(fit.outside_torch_bytes),
        "memory budget": _text(fit.budget_bytes),
        "memory room": _text(fit.room_bytes),
        "memory cache": _text(fit.cache_bytes),
        "memory fits": fit.fits,
        "memory largest_batch": _text(fit.largest_batch),
        "memory longest": _text(fit.largest_context),
    }


def _of_serve(replica: Replica | None, plan: ParallelPlan, choice: Choice) -> dict[str, Any]:
    replicas, users, output = choice["count"] // plan.replica_ranks, choice["users"], choice["output"]
    if not replicas or replica is None:
        return {"broken": "memory" if replicas else "count"}
    each, steady = ceil(users / replicas), replica.steady
    states = [
        [plan.describe(), state.sequences, 1 / state.step_s, state.requests_per_s * output / plan.replica_ranks]
        for state in steady.states()
    ]
    if each > steady.most:
        return {"broken": "cache", "frontier": states}
    state = steady.at(each)
    requests = users / (state.first_token_s + state.token_s * (output - 1))
    return {
        "broken": None,
        "serve ttft": state.first_token_s,
        "serve tpot": state.token_s,
        "serve requests": requests,
        "serve tokens": requests * output / (replicas * plan.replica_ranks),
        "serve speed": 1 / state.token_s,
        "frontier": states,
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(int(value))


def _same(page: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):  # the states of one plan, among those of all
        own = [row for row in page if row[0] == wanted[0][0]]
        return len(own) == len(wanted) and all(
            _same(a, b) for one, other in zip(own, wanted, strict=True) for a, b in zip(one, other, strict=True)
        )
    if isinstance(wanted, float):
        return isinstance(page, int | float) and math.isclose(page, wanted, rel_tol=1e-12)
    return bool(page == wanted)
