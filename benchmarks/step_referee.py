"""Does vLLM's own code launch what our model of a step says it launches? Every matrix product, one by one.

    python -m benchmarks.step_referee [--only NAME ...]    # needs vLLM's environment; without --only all models
    python -m benchmarks.step_referee --no-run             # writes docs/step-referee.md from the data alone

For each model and number of ranks a prefill and a decode step are listed twice: by `forward_kernels`, from one trace of
transformers' code on one device, and by a trace of vLLM's model class on that rank. What is not equal gets a cause.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import cell, signed, table, write_atomically
from benchmarks.runner import Record, load_records, quieten, save_records, sweeper
from benchmarks.step_launches import Launches, differences, listed, ours, read, theirs
from llm_perf_opt.core.callgraph import read_callgraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import device_of, find_hardware
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.names import find_model
from llm_perf_opt.serving.engine_settings import SeenDevice
from llm_perf_opt.serving.vllm.environment import find
from llm_perf_opt.serving.vllm.jobs import TraceAnswer, TraceJob
from llm_perf_opt.serving.vllm.process import VllmProcess
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.tracing.origin import find_origin

RANKS = (1, 2, 8)
SEQUENCES, PROMPT_TOKENS = 4, 2048
FORWARDS = {
    "prefill": Forward(sequences=SEQUENCES, queries=PROMPT_TOKENS, keys=PROMPT_TOKENS),
    "decode": Forward(sequences=SEQUENCES, queries=1, keys=PROMPT_TOKENS + 1),
}
MODELS = {
    "dense": (
        "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-32B",
        "microsoft/phi-4", "allenai/OLMo-2-1124-13B", "CohereForAI/c4ai-command-r-v01",
        "ibm-granite/granite-3.3-8b-instruct", "HuggingFaceTB/SmolLM3-3B",
    ),
    "windows and sinks": (
        "mistralai/Mistral-7B-v0.1", "google/gemma-2-9b", "google/gemma-3-1b-it", "openai/gpt-oss-20b",
        "openai/gpt-oss-120b", "XiaomiMiMo/MiMo-V2-Flash",
    ),
    "experts": (
        "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen1.5-MoE-A2.7B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B",
        "zai-org/GLM-4.5", "MiniMaxAI/MiniMax-M2.5", "baidu/ERNIE-4.5-21B-A3B-PT", "microsoft/Phi-3.5-MoE-instruct",
    ),
    "latent attention": (
        "deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct",
        "deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5",
    ),
    "hybrid": (
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/Nemotron-H-56B-Base-8K",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "ai21labs/Jamba-v0.1", "state-spaces/mamba2-2.7b",
        "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    ),
    "vision and language": (
        "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "google/gemma-3-27b-it",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "meta-llama/Llama-4-Scout-17B-16E", "Qwen/Qwen3.5-35B-A3B",
    ),
}  # fmt: skip


def blocks_of(model: str) -> EngineBlocks:
    """As a plan finds them: from one decode step of transformers' code on one device."""
    (decode,) = [one for one in find_origin(model, dtype="bfloat16").targets() if one.phase == "decode"]
    return engine_blocks(WeightlessTracer(device="cuda").trace(decode))


def vllm_launches(process: VllmProcess, model: str, tp: int) -> dict[str, Launches]:
    """Phase -> what one rank launches."""
    with scratch_folder() as scratch:
        job = TraceJob(
            model=str(_named_architecture(Path(str(find_model(model).folder)).resolve(), scratch)),
            out=str(scratch),
            device=SeenDevice.of(device_of(find_hardware("h100-sxm"))),
            plan=ParallelPlan(tp=tp),
            batch=SEQUENCES,
            prompt_tokens=PROMPT_TOKENS,
            dtype="bfloat16",
        )
        graphs = [read_callgraph(Path(file)) for file in process.ask("trace", job, TraceAnswer).files]
    return {graph.phase: theirs(graph) for graph in graphs}


def _named_architecture(folder: Path, scratch: Path) -> Path:
    """The folder, or a copy that names its class: vLLM takes a configuration without one for an embedding model."""
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if stored.get("architectures"):
        return folder
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    copy = scratch / "model"
    copy.mkdir()
    stored["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[stored["model_type"]]]
    (copy / "config.json").write_text(json.dumps(stored), encoding="utf-8")
    return copy


def referee(model: str, process: VllmProcess, kept: Record) -> Record:
    """Both lists for every number of ranks; vLLM's are kept from an earlier run, ours are made again."""
    blocks = blocks_of(model)
    found: Record = {}
    for tp in RANKS:
        known = kept.get(str(tp), {})
        if "vllm" not in known and "refused" not in known:
            try:
                known = {"vllm": {phase: listed(one) for phase, one in vllm_launches(process, model, tp).items()}}
            except PerfOptError as error:
                known = {"refused": " ".join(f"{error.what} {error.why}".split())[:300]}
        mine = {phase: listed(ours(blocks, forward, ParallelPlan(tp=tp))) for phase, forward in FORWARDS.items()}
        found[str(tp)] = known if "refused" in known else {**known, "ours": mine}
    return found


def page(header: Mapping[str, Any], records: Mapping[str, Record]) -> str:
    """What is equal, and each difference with its cause and its share of vLLM's FLOPs."""
    rows, causes, counted = [], Counter[str](), Counter[str]()
    for kind, names in MODELS.items():
        for name in (name for name in names if name in records):
            for tp, one in records[name].items():
                said = [] if "refused" in one else list(_verdicts(one, int(tp)))
                causes.update({cause for cause, _ in said})
                verdict = "refused" if "refused" in one else "differs" if said else "equal"
                counted[verdict] += 1
                text = one.get("refused", "") or "; ".join(f"{cause} ({figures})" for cause, figures in said)
                rows.append((kind, f"`{name}`", tp, verdict, cell(text, 300)))
    judged, models = sum(counted.values()) - counted["refused"], len({row[1] for row in rows})
    lines = [
        "# Does an engine launch what our step says?",
        "",
        f"**{models} models: in {counted['equal']} of {judged} cases our step launches the kernels of vLLM's**: "
        "GEMMs, attention, routed experts, collectives, states, norms, activations, by number and sizes. The other "
        f"{counted['differs']} differ as the tables say; {counted['refused']} more do not run in vLLM or its trace.",
        "",
        f"A case is a model on 1, 2 or 8 ranks: a prefill of {SEQUENCES} prompts of {PROMPT_TOKENS:,} tokens, and the "
        "decode step behind it. Ours is `forward_kernels`, by which `plan` and `predict` time a step; it comes from "
        f"one trace of transformers' code on one device. The other is a trace of the model class of {header['engine']} "
        "on that rank (`--code vllm`). Rotary embedding, cache writes and the choice of experts are not compared: "
        "engines fuse them in ways of their own. Data: [`step_referee.json`](data/step_referee.json), made by "
        f"`python -m benchmarks.step_referee`, which lists {sum(map(len, MODELS.values()))} models; the others are not "
        "run yet.",
        "",
        "## Causes",
        "",
        table(("cause", "cases"), causes.most_common(), "lr"),
        "",
        "## Cases",
        "",
        "In brackets: launches here and in vLLM in one forward, and our FLOPs less vLLM's as a share of vLLM's, in "
        "prefill and decode.",
        "",
        table(("kind", "model", "ranks", "verdict", "differences"), rows, "llrll"),
        "",
    ]
    return "\n".join(lines)


def _verdicts(one: Record, tp: int) -> Iterator[tuple[str, str]]:
    """Cause, and its figures."""
    by_cause: dict[str, dict[str, tuple[int, int, float]]] = {}
    for phase, listed_by_vllm in one["vllm"].items():
        vllm = read(listed_by_vllm)
        whole = sum(flops for _, flops in vllm.values())
        for found in differences(read(one["ours"][phase]), vllm, tp):
            before = by_cause.setdefault(found.cause, {}).get(phase, (0, 0, 0.0))
            now = (sum(found.ours.values()), sum(found.vllm.values()), found.flops / whole)
            by_cause[found.cause][phase] = before[0] + now[0], before[1] + now[1], before[2] + now[2]
    for cause, phases in by_cause.items():
        first = next(iter(phases.values()))
        shares = [signed(figures[2]) for figures in phases.values() if figures[2]]
        yield cause, ", ".join([f"{first[0]} and {first[1]}", *shares])


def main() -> None:
    """Run the models, keep the data, write the page."""
    made = sweeper(__doc__, "step_referee", "step-referee.md", seconds=600)
    made.add_argument("--no-run", action="store_true", help="write the page from the data alone")
    options = made.parse_args()
    logging.disable(logging.WARNING)
    records = load_records(options.out)
    if not options.no_run:
        environment, versions = find(), quieten()
        with VllmProcess(environment) as process:
            for name in options.only or [name for names in MODELS.values() for name in names]:
                records[name] = referee(name, process, records.get(name, {}))
                sys.stderr.write(f"{name}\n")
                save_records(options.out, {"engine": f"vllm {environment.version}", **versions}, records)
    write_atomically(options.page, page(json.loads(options.out.read_text(encoding="utf-8")), records))


if __name__ == "__main__":
    main()
