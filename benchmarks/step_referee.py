"""Does vLLM's own code launch what our model of a step says it launches? Every matmul, one by one.

    python -m benchmarks.step_referee [--only NAME ...]    # all models; vLLM's environment for lists not recorded yet
    python -m benchmarks.step_referee --recorded           # our side again, for the models whose lists are recorded
    python -m benchmarks.step_referee --no-run             # writes docs/evidence/step-referee.md from the data alone

For each model and number of ranks a prefill and a decode step are listed twice: by `forward_kernels`, from one trace of
transformers' code on one device, and by a trace of vLLM's model class on that rank. What is not equal gets a cause.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.pages import cell, signed, table, write_atomically
from benchmarks.runner import Record, load_records, quieten, save_records, sweeper
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import device_of, find_hardware
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.names import find_model
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, MatmulShape, StateShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.jobs import TraceAnswer, TraceJob
from llm_perf_opt.serving.engine_process.process import EngineProcess
from llm_perf_opt.serving.engine_settings import SeenDevice
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
from llm_perf_opt.tracing.deployed_traces import deployed
from llm_perf_opt.tracing.origin import find_origin

# The launches of a step as two sides list them, our model of a step and vLLM's own code, and what differs by cause.

Launch = tuple[str, tuple[int, ...]]  # what is launched, and its sizes
Launches = dict[Launch, tuple[int, int]]  # how often, and the FLOPs of all of them

UNEXPLAINED = "not explained"  # what is left when every other cause has taken its part
WHOLE_MIXER: Launch = ("mixer in one op", ())  # of Mamba-1, with its matmuls, its gate and its reductions
_NORMS, _STATES = ("rms_norm", "layer_norm"), ("mamba", "gdn_attention", "kda_attention", "short_conv")
_TORCH_OPS = {"rsqrt": "norm", "relu": "activation"}
_ACTIVATIONS = ("_and_mul", "and_silu", "gelu", "relu", "silu")


def launch_of(kernel: Kernel) -> Launch | None:
    """What a kernel is, whoever listed it; None: a vector kernel, which its shape does not tell."""
    shape, collective = kernel.shape, kernel.collective
    if collective is not None:
        return str(collective.kind), (collective.payload_bytes, collective.group.size)
    if isinstance(shape, MatmulShape):
        sizes = (shape.rows, shape.columns, shape.depth)
        return ("gemm", sizes) if shape.count == 1 else ("batched gemm", (*sizes, shape.count))
    if isinstance(shape, AttentionShape):
        reach = shape.keys if shape.window is None else min(shape.keys, shape.window)
        step = (shape.sequences, shape.queries, reach, shape.heads)
        if shape.latent_rank is not None:
            return "latent attention", (*step, shape.latent_rank)
        return "attention", (*step, shape.key_heads, shape.width, shape.value_width)
    if isinstance(shape, ExpertsShape):
        inner, rows = shape.inner_of_rank, shape.tokens * shape.chosen // shape.expert_ranks
        matrices = round(kernel.flops / (2 * rows * shape.hidden * inner))
        return "experts", (shape.tokens, shape.chosen, shape.experts, shape.hidden, inner, matrices)
    if isinstance(shape, StateShape):
        return "state", ()
    return ("matmul of unknown sizes", (kernel.flops,)) if kernel.kind is KernelKind.MATMUL else None


def ours(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Launches:
    """By the model of a step. Norms and activations are the vector kernels that blocks without the rest have."""
    bare = replace(blocks, matmuls=(), attentions=(), experts=(), states=None)
    no_layers = replace(bare, layers=0, reduced=0, layer_norms=0, norms=())
    gates = tuple(replace(matmul, weight_format="bfloat16") for matmul in blocks.matmuls)
    launches = _summed((launch_of(kernel), count, kernel) for kernel, count in forward_kernels(blocks, forward, plan))
    gated = 0 if blocks.states is None else blocks.states.layers  # a mixer's gate is part of its norm
    launches["norm", ()] = _vectors(bare, forward, plan) + gated, 0
    launches["activation", ()] = _vectors(replace(no_layers, matmuls=gates), forward, plan) - gated, 0
    return {launch: figures for launch, figures in launches.items() if figures[0]}


def _vectors(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> int:
    kernels = forward_kernels(blocks, forward, plan)
    return sum(count for kernel, count in kernels if kernel.kind is KernelKind.VECTOR)


def theirs(graph: CallGraph) -> Launches:
    """By vLLM's code. Its torch ops between kernels are left out: it compiles them into their neighbours.

    A norm in torch ops takes one root, and a squared activation is one `relu`: compiled each is one kernel too.
    """
    counted = Counter(graph.op_kinds[index] for index in ops_of(graph).kind)
    return _summed(
        (launch_of(kernel) or _named(kind.name), count, kernel)
        for kind, count in counted.items()
        for kernel in kernels_of(kind)
    )


def _named(op: str) -> Launch | None:
    """A vector kernel by the name of its op."""
    if op.split(".")[1] == "mamba_mixer":
        return WHOLE_MIXER
    if (kind := _TORCH_OPS.get(op.split(".")[1].rstrip("_"))) and op.startswith("aten."):
        return kind, ()
    kinds = {"norm": _NORMS, "state": _STATES, "activation": _ACTIVATIONS}
    is_plain = op.startswith("aten.") and "layer_norm" not in op
    return next(((kind, ()) for kind, words in kinds.items() if any(w in op for w in words) and not is_plain), None)


def _summed(listed: Iterable[tuple[Launch | None, int, Kernel]]) -> Launches:
    """Of attention the FLOPs that a causal mask leaves."""
    launches: Launches = {}
    for launch, count, kernel in listed:
        if launch is not None:
            before = launches.get(launch, (0, 0))
            launches[launch] = before[0] + count, before[1] + count * (kernel.flops - kernel.skippable_flops)
    return launches


def listed(launches: Launches) -> list[list[Any]]:
    """As JSON: kind, sizes, count, FLOPs."""
    return [[kind, list(sizes), *figures] for (kind, sizes), figures in sorted(launches.items())]


def read(rows: Iterable[Any]) -> Launches:
    return {(kind, tuple(sizes)): (count, flops) for kind, sizes, count, flops in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Launches of one list that are not in the other, with their cause; `flops` are ours without vLLM's."""

    cause: str
    ours: Mapping[Launch, int]
    vllm: Mapping[Launch, int]
    flops: int


def differences(mine: Launches, vllm: Launches, tp: int) -> list[Difference]:
    """What is left when equal launches are taken away, by cause; the last cause takes what no other explains."""
    each = {launch: flops // count for listed in (mine, vllm) for launch, (count, flops) in listed.items()}
    counts = [Counter({launch: count for launch, (count, _) in listed.items()}) for listed in (mine, vllm)]
    left, right = counts[0] - counts[1], counts[1] - counts[0]
    differing = []
    for cause, alike, holds in CAUSES:
        groups: dict[Any, tuple[Counter[Launch], Counter[Launch]]] = {}
        for place, side in enumerate((left, right)):
            for launch, count in side.items():
                if (key := alike(*launch)) is not None:
                    groups.setdefault(key, (Counter(), Counter()))[place][launch] = count
        for more, fewer in groups.values():
            if holds(more, fewer, tp):
                flops = [sum(each[launch] * count for launch, count in side.items()) for side in (more, fewer)]
                differing.append(Difference(cause=cause, ours=more, vllm=fewer, flops=flops[0] - flops[1]))
                left, right = left - more, right - fewer
    return differing


Side = Counter[Launch]


def _columns(side: Side) -> int:
    return sum(sizes[1] * count for (_, sizes), count in side.items())


def _macs(side: Side) -> int:
    return sum(math.prod(sizes) * count for (_, sizes), count in side.items())


def _reach(side: Side) -> int:
    return max(sizes[2] for _, sizes in side)


def _one_input(kind: str, sizes: tuple[int, ...]) -> Any:
    return (sizes[0], sizes[2]) if kind == "gemm" else None


CAUSES: tuple[tuple[str, Callable[..., Any], Callable[[Side, Side, int], bool]], ...] = (
    (
        "one input: joined here, several GEMMs in vLLM",
        _one_input,
        lambda more, fewer, tp: _columns(more) == _columns(fewer) and more.total() < fewer.total(),
    ),
    (
        "one input: joined in vLLM, several GEMMs here",
        _one_input,
        lambda more, fewer, tp: _columns(more) == _columns(fewer) and more.total() > fewer.total(),
    ),
    (
        "replicated in vLLM, split here",
        _one_input,
        lambda more, fewer, tp: more.total() == fewer.total() and _columns(fewer) == tp * _columns(more),
    ),
    (
        "split in vLLM, replicated here",
        _one_input,
        lambda more, fewer, tp: more.total() == fewer.total() and tp * _columns(fewer) == _columns(more),
    ),
    (
        "latent vectors: two batched GEMMs in place of the expansion",
        lambda kind, sizes: "" if "gemm" in kind else None,
        lambda more, fewer, tp: _macs(more) == _macs(fewer) > 0,
    ),
    (
        "window: the query itself is one of its keys in vLLM, one more in transformers' code",
        lambda kind, sizes: (*sizes[:2], *sizes[3:]) if kind == "attention" else None,
        lambda more, fewer, tp: more.total() == fewer.total() and _reach(more) == _reach(fewer) + 1,
    ),
    (
        "Mamba-1: vLLM's mixer is one op, which its trace does not open",
        lambda kind, sizes: "" if kind in ("gemm", "all-reduce", "state", "norm", WHOLE_MIXER[0]) else None,
        lambda more, fewer, tp: WHOLE_MIXER in fewer,
    ),
    (
        "sparse: the keys that the indexer chose here, all of them in vLLM's op",
        lambda kind, sizes: (*sizes[:2], *sizes[3:]) if kind == "latent attention" else None,
        lambda more, fewer, tp: more.total() == fewer.total() and _reach(more) < _reach(fewer),
    ),
    (
        "norm of the keys of an indexer: not seen here",
        lambda kind, sizes: kind if kind == "norm" else None,
        lambda more, fewer, tp: not more and fewer.total() > 0,
    ),
    (UNEXPLAINED, lambda kind, sizes: kind, lambda more, fewer, tp: True),
)


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
        "zai-org/GLM-4.5", "MiniMaxAI/MiniMax-M2.5", "baidu/ERNIE-4.5-21B-A3B-PT",
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
    """As every verb finds them: from a decode step of transformers' code on one device, stored as its checkpoint."""
    origin = find_origin(model, dtype="bfloat16")
    (decode,) = [target for target in origin.targets() if target.phase == "decode"]
    (graph,) = deployed(origin.adapter, [WeightlessTracer(device="cuda").trace(decode)], origin.deployment)
    return engine_blocks(graph)


def vllm_launches(process: EngineProcess, model: str, tp: int) -> dict[str, Launches]:
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


def referee(model: str, process: Callable[[], EngineProcess], kept: Record) -> Record:
    """Both lists for every number of ranks; vLLM's are kept from an earlier run, ours are made again."""
    blocks = blocks_of(model)
    by_size: Record = {}
    for tp in RANKS:
        known = kept.get(str(tp), {})
        if "vllm" not in known and "refused" not in known:
            try:
                known = {"vllm": {phase: listed(step) for phase, step in vllm_launches(process(), model, tp).items()}}
            except PerfOptError as error:
                known = {"refused": " ".join(f"{error.what} {error.why}".split())[:300]}
        mine = {phase: listed(ours(blocks, forward, ParallelPlan(tp=tp))) for phase, forward in FORWARDS.items()}
        by_size[str(tp)] = known if "refused" in known else {**known, "ours": mine}
    return by_size


def page(header: Mapping[str, Any], records: Mapping[str, Record]) -> str:
    """What is equal, and each difference with its cause and its share of vLLM's FLOPs."""
    rows, causes, counted = [], Counter[str](), Counter[str]()
    for kind, names in MODELS.items():
        for name in (name for name in names if name in records):
            for tp, record in records[name].items():
                said = [] if "refused" in record else list(_verdicts(record, int(tp)))
                causes.update({cause for cause, _ in said})
                verdict = "refused" if "refused" in record else "differs" if said else "equal"
                counted[verdict] += 1
                text = record.get("refused", "") or "; ".join(f"{cause} ({figures})" for cause, figures in said)
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
        "decode step behind it. Ours is `forward_kernels`, by which every verb times a step; it comes from "
        f"one trace of transformers' code on one device. The other is a trace of the model class of {header['engine']} "
        "on that rank (`--code vllm`). Rotary embedding, cache writes and the choice of experts are not compared: "
        "engines fuse them in ways of their own. Data: [`step_referee.json`](../data/step_referee.json), made by "
        "`python -m benchmarks.step_referee`; with `--recorded` our side is made again and judged by vLLM's recorded "
        f"lists, without vLLM. {_waiting(records)}",
        "",
        "## Causes",
        "",
        table(("cause", "cases"), sorted(causes.items(), key=lambda item: (-item[1], item[0])), "lr"),
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


def _waiting(records: Mapping[str, Record]) -> str:
    """Models of the list that have no record."""
    names = [f"`{name}`" for names in MODELS.values() for name in names if name not in records]
    return f"Not run yet: {', '.join(names)}." if names else "Every model that it lists was run."


def _verdicts(record: Record, tp: int) -> Iterator[tuple[str, str]]:
    """Cause, and its figures."""
    by_cause: dict[str, dict[str, tuple[int, int, float]]] = {}
    for phase, listed_by_vllm in record["vllm"].items():
        vllm = read(listed_by_vllm)
        whole = sum(flops for _, flops in vllm.values())
        for difference in differences(read(record["ours"][phase]), vllm, tp):
            before = by_cause.setdefault(difference.cause, {}).get(phase, (0, 0, 0.0))
            now = (sum(difference.ours.values()), sum(difference.vllm.values()), difference.flops / whole)
            by_cause[difference.cause][phase] = before[0] + now[0], before[1] + now[1], before[2] + now[2]
    for cause, phases in by_cause.items():
        first = next(iter(phases.values()))
        shares = [signed(figures[2]) for figures in phases.values() if figures[2]]
        yield cause, ", ".join([f"{first[0]} and {first[1]}", *shares])


def main() -> None:
    """Run the models, keep the data, write the page."""
    made = sweeper(__doc__, "step_referee", "evidence/step-referee.md", seconds=600)
    made.add_argument("--recorded", action="store_true", help="only models with recorded vLLM lists, without vLLM")
    made.add_argument("--no-run", action="store_true", help="write the page from the data alone")
    options = made.parse_args()
    logging.disable(logging.WARNING)
    records = load_records(options.out)
    names = [name for names in MODELS.values() for name in names if name in records or not options.recorded]
    if not options.no_run:
        run(options.only or names, options.out, records, is_again=bool(options.redo))
    write_atomically(options.page, page(json.loads(options.out.read_text(encoding="utf-8")), records))


def run(names: Iterable[str], out: Path, records: dict[str, Record], *, is_again: bool) -> None:
    """Models one after another, each saved when it is done; `is_again` traces in vLLM what was recorded too."""
    versions = quieten()
    header = {} if is_again or not out.exists() else json.loads(out.read_text(encoding="utf-8"))
    with ExitStack() as cleanup:

        @cache
        def process() -> EngineProcess:
            environment = find()
            header["engine"] = f"vllm {environment.version}"
            return cleanup.enter_context(EngineProcess(environment))

        for name in names:
            records[name] = referee(name, process, {} if is_again else records.get(name, {}))
            sys.stderr.write(f"{name}\n")
            save_records(out, {"engine": header["engine"], **versions}, records)


if __name__ == "__main__":
    main()
