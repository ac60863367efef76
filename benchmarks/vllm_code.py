"""What vLLM's own model classes do for seven models, as traces of them say: kept as facts for the tests.

    python -m benchmarks.vllm_code            # writes tests/facts/vllm_code.json; needs vLLM's environment

Each case is one rank of a plan, a prefill and one decode step behind it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import FACTS
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.hardware.links import device_of, find_hardware
from llm_perf_opt.core.output_files import scratch_folder, write_whole
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.costs.parameters import untied
from llm_perf_opt.ops.cost import elements
from llm_perf_opt.ops.table import price
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.jobs import TraceAnswer, TraceJob
from llm_perf_opt.serving.engine_process.process import EngineProcess
from llm_perf_opt.serving.engine_settings import SeenDevice

FILE = FACTS / "vllm_code.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A folder with a configuration, a plan, and a workload of equal sequences."""

    name: str
    folder: Path
    tp: int = 1
    ep: int = 1
    batch: int = 2
    prompt_tokens: int = 2048
    model_type: str | None = None  # in place of the one in the configuration

    def traced(self, process: EngineProcess, scratch: Path) -> tuple[TraceAnswer, tuple[CallGraph, ...]]:
        """By vLLM's code, in a process that is open; its files go below `scratch`."""
        job = TraceJob(
            model=str(self._folder_for_vllm(scratch)),
            out=str(scratch),
            device=SeenDevice.of(device_of(find_hardware("h100-sxm"))),
            plan=ParallelPlan(tp=self.tp, ep=self.ep),
            batch=self.batch,
            prompt_tokens=self.prompt_tokens,
            dtype="bfloat16",
        )
        answer = process.ask("trace", job, TraceAnswer)
        return answer, tuple(read_callgraph(Path(file)) for file in answer.files)

    def _folder_for_vllm(self, scratch: Path) -> Path:
        """The folder, or a copy of its configuration that names the type under which vLLM knows the model."""
        if self.model_type is None:
            return self.folder
        stored = json.loads((self.folder / "config.json").read_text())
        stored.pop("auto_map", None)
        copy = scratch / self.folder.name
        copy.mkdir()
        (copy / "config.json").write_text(json.dumps({**stored, "model_type": self.model_type}))
        return copy


def _config(name: str) -> Path:
    return FACTS / "deployment" / "configs" / name


CASES = (
    Case(name="llama-3.1-70b tp8", folder=_config("llama31-70b"), tp=8),
    Case(name="qwen3-30b-a3b tp4", folder=_config("qwen3-30b-a3b"), tp=4),
    Case(name="qwen3-30b-a3b tp4 ep4", folder=_config("qwen3-30b-a3b"), tp=4, ep=4),
    Case(name="deepseek-v3 tp8", folder=_config("deepseek-v3"), tp=8),
    Case(name="deepseek-v3-fp8 tp8", folder=_config("deepseek-v3-fp8"), tp=8),
    Case(name="gpt-oss-120b tp4", folder=_config("gpt-oss-120b"), tp=4),
    Case(name="minimax-m2.5 tp4", folder=FACTS / "serving" / "configs" / "minimax-m2.5", tp=4),
    Case(name="deepseek-ocr", folder=FACTS / "deepseek_ocr", prompt_tokens=903, model_type="deepseek_vl_v2"),
)


def figures_of(graph: CallGraph) -> dict[str, Any]:
    """One phase in whole numbers: weights, matrix FLOPs by op, collectives, the cache, vLLM's own estimate."""
    flops, calls, payload_bytes = Counter[str](), Counter[str](), Counter[str]()
    unpriced = 0
    for index, count in Counter(ops_of(graph).kind).items():
        kind = graph.op_kinds[index]
        cost, collective = price(kind), collective_of(kind)
        unpriced += count if cost is None else 0
        if cost is not None and cost.flops:
            flops[kind.name] += cost.flops * count
        if collective is not None:
            calls[str(collective.kind)] += count
            payload_bytes[str(collective.kind)] += collective.payload_bytes * count
    weights = [weight for weight in untied(graph.parameters) if not weight.is_buffer]
    return {
        "parameters": sum(elements(weight.meta) for weight in weights),
        "matrix_parameters_fp8": sum(
            elements(weight.meta) for weight in weights if weight.meta.dtype.startswith("float8")
        ),
        "flops": dict(sorted(flops.items())),
        "collectives": dict(sorted(calls.items())),
        "collective_bytes": dict(sorted(payload_bytes.items())),
        "cache": graph.runtime["kv_cache"],
        "estimate_flops": graph.runtime["vllm_estimate"].get("flops", {}),
        "unpriced_ops": unpriced,
    }


def record(case: Case, process: EngineProcess) -> dict[str, Any]:
    """The figures of every phase, of which vLLM they are, and how long it took."""
    with scratch_folder() as scratch:
        answer, graphs = case.traced(process, scratch)
    asked = {"tp": case.tp, "ep": case.ep, "batch": case.batch, "prompt_tokens": case.prompt_tokens}
    phases = {graph.phase: figures_of(graph) for graph in graphs}
    took = {"configure_s": round(answer.configure_s, 2), "run_s": round(answer.run_s, 2)}
    return {**asked, "engine": graphs[0].deployment["engine"], **took, "phases": phases}


def main() -> None:
    records = {}
    with EngineProcess(find()) as process:
        for case in CASES:
            records[case.name] = record(case, process)
            sys.stderr.write(f"{case.name}: built and ran in {records[case.name]['run_s']} s\n")
    write_whole(FILE, [json.dumps(records, indent=1).encode(), b"\n"])


if __name__ == "__main__":
    main()
