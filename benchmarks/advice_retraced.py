"""Changes that `advise` makes in a trace, next to a new trace of code that was changed in the same way.

    python -m benchmarks.advice_retraced            prints the table
    python -m benchmarks.advice_retraced --write    puts it on docs/evidence/advice-retraced.md

Each model is built from its released configuration, with two layers and no weights, and traced before and after the
change. What the rewrite predicts of FLOPs, bytes and kernel launches is compared with the new trace. Where they differ,
the ops that only one of the two has name the cause. Changes of the deployment are compared by their decode step.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llm_perf_opt as lpo
from benchmarks.pages import show_sections
from llm_perf_opt.advice.changes import CHANGES
from llm_perf_opt.advice.pricing import Pricer, code_kernels, seconds_of
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.hardware.links import find_hardware
from llm_perf_opt.ops.kernel_shape import AttentionShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.datasheet_rates import Execution

Kernels = Counter[Kernel]
ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "tests" / "facts" / "serving" / "configs"
TOKENS = 256
JOINED = (("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("gate_proj", "up_proj"))
FIGURES = ("flops", "bytes_moved", "launches")
DENSE = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-14b", "mistral-nemo", "codellama-34b", "yi-34b")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "minimax-m2.5", "qwen3-235b-a22b", "deepseek-r1")


@dataclass(frozen=True, slots=True)
class Work:
    """What the kernels of a forward do."""

    flops: int
    bytes_moved: int
    launches: int

    @classmethod
    def of(cls, kernels: Mapping[Kernel, int]) -> Work:
        """Pairs that a mask hides and bytes that stay in a kernel are left out: no kernel need have them."""
        return cls(
            sum((kernel.flops - kernel.skippable_flops) * count for kernel, count in kernels.items()),
            sum((kernel.bytes_moved - kernel.avoidable_bytes) * count for kernel, count in kernels.items()),
            sum(kernels.values()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A change, how the code is built before and after it, and for which models.

    `edit` changes the modules that were built, where no argument does. `cause` names what is left between the
    prediction and the new trace.
    """

    change: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    models: tuple[str, ...]
    cause: Callable[[CallGraph, CallGraph, Kernels, Kernels], str]
    edit: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One change of one model: the work before it, as predicted, and as traced anew."""

    change: str
    model: str
    before: Work
    predicted: Work
    retraced: Work
    cause: str


def write_config(name: str, folder: Path) -> None:
    """The released configuration with two layers, and with the weights as the model was trained."""
    config = json.loads((CONFIGS / name / "config.json").read_text())
    config.pop("quantization_config", None)
    config["num_hidden_layers"] = 2
    if "first_k_dense_replace" in config:
        config["first_k_dense_replace"] = 1
    (folder / "config.json").write_text(json.dumps(config))


def graph_of(
    name: str, settings: Mapping[str, Any], folder: Path, edit: Callable[[Any], None] | None = None
) -> CallGraph:
    """A forward of the model without weights: `TOKENS` tokens of one sequence, without a cache."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(name, folder)
    built = {"attn_implementation": "sdpa", "dtype": "bfloat16", **settings}
    has_cache = built.pop("use_cache", False)
    keep, experts = built.pop("logits_to_keep", 1), built.pop("experts_implementation", None)
    dtype = getattr(torch, built.pop("dtype"))
    if experts is not None:
        built["experts_implementation"] = experts
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype, **built).eval()
        if edit is not None:
            edit(model)
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    return lpo.trace(model, (ids,), {"logits_to_keep": keep, "use_cache": has_cache}).graphs[0]


def kernels_in(graph: CallGraph, rules: frozenset[Any] = frozenset()) -> Kernels:
    """Of all stages, with these rules granted to the code."""
    kernels: Kernels = Counter()
    for counts in code_kernels(graph, rules).values():
        kernels += counts
    return kernels


def rows(folder: Path) -> Iterator[Row]:
    """Every change of every model that has the code for it."""
    for case in CASES:
        for name in case.models:
            before, after = graph_of(name, case.before, folder), graph_of(name, case.after, folder, case.edit)
            setup = CHANGES.get(case.change).apply(Setup(graphs=(before,), hardware=find_hardware("h100-sxm")))
            assert setup is not None, f"{case.change} does not apply to {name}"
            predicted, retraced = kernels_in(setup.graphs[0], setup.rules), kernels_in(after)
            is_equal = Work.of(predicted) == Work.of(retraced)
            yield Row(
                change=case.change,
                model=name,
                before=Work.of(kernels_in(before)),
                predicted=Work.of(predicted),
                retraced=Work.of(retraced),
                cause="" if is_equal else case.cause(before, after, predicted, retraced),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A change of the deployment, and what a new trace of it is asked for."""

    change: str
    traced: Mapping[str, Any]
    device: str = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The time of a decode step after a change of the deployment: as predicted, and of a new trace."""

    change: str
    model: str
    before_s: float
    predicted_s: float
    retraced_s: float
    is_told: bool  # whether `advise` tells it of a model of two layers

    @property
    def is_equal(self) -> bool:
        """But for the last digit, which the order of a sum decides."""
        return math.isclose(self.predicted_s, self.retraced_s, rel_tol=1e-14, abs_tol=0.0)


def steps(folder: Path) -> Iterator[Step]:
    """Every change of the deployment of every model."""
    for name in (*DENSE, *EXPERTS):
        write_config(name, folder)
        graphs = lpo.trace(folder, prompt_tokens=TOKENS).graphs
        engine = Setup(graphs=graphs, hardware=find_hardware("h100-sxm"), execution=Execution.FUSED)
        for case in DEPLOYED:
            told = CHANGES.get(case.change).apply(engine)
            changed = told or replace(engine, hardware=find_hardware(case.device), tp=case.traced.get("tp", 0))
            anew = lpo.trace(folder, prompt_tokens=TOKENS, **case.traced).predict(case.device, execution="fused")
            yield Step(
                change=case.change,
                model=name,
                before_s=_decode_s(engine),
                predicted_s=_decode_s(changed),
                retraced_s=sum(stage.expected_s or math.nan for stage in anew.stages if stage.phase == "decode"),
                is_told=told is not None,
            )


def _decode_s(setup: Setup) -> float:
    return sum(seconds_of(stage.wall) for stage in Pricer().stages(setup) if stage.phase == "decode")


def join_matmuls(model: Any) -> None:
    """Each group of linear layers with one input as one layer; the other members return their part of its result."""
    import torch

    class First(torch.nn.Module):
        def __init__(self, parts: list[Any]) -> None:
            super().__init__()
            self.sizes = [part.out_features for part in parts]
            has_bias = any(part.bias is not None for part in parts)
            self.whole = torch.nn.Linear(
                parts[0].in_features, sum(self.sizes), bias=has_bias, dtype=parts[0].weight.dtype
            )

        def forward(self, states: Any) -> Any:
            self.parts = self.whole(states).split(self.sizes, dim=-1)
            return self.parts[0]

    class Other(torch.nn.Module):
        def __init__(self, first: First, number: int) -> None:
            super().__init__()
            self.first, self.number = [first], number  # in a list, so that it is no module of this one

        def forward(self, states: Any) -> Any:
            return self.first[0].parts[self.number]

    for module in list(model.modules()):
        for names in JOINED:
            parts = [getattr(module, name, None) for name in names]
            if all(isinstance(part, torch.nn.Linear) for part in parts):
                first = First(parts)
                setattr(module, names[0], first)
                for number, name in enumerate(names[1:], 1):
                    setattr(module, name, Other(first, number))


def unknown_text(before: CallGraph, after: CallGraph, predicted: Kernels, retraced: Kernels) -> str:
    """Nothing is known that would make a difference."""
    return "not known"


def mask_text(before: CallGraph, after: CallGraph, predicted: Kernels, retraced: Kernels) -> str:
    """The ops outside of attention that the changed code leaves out, the copy behind it, and a latent cache."""
    left = Counter(_apart(Work.of(predicted), Work.of(retraced)))
    texts = []
    for what, found in (
        ("the mask, which is not built any more", _apart(*map(Work.of, map(_outside_attention, (before, after))))),
        ("the copy behind attention, by the layout of its queries", _apart(_copies(predicted), _copies(retraced))),
        ("the rule reads latent vectors in place of keys", _apart(_attention(predicted), _attention(retraced))),
    ):
        if any(found.values()):
            texts.append(f"{what}: {found['launches']:+} launches, {found['bytes_moved']:+,} bytes")
            left.subtract(found)
    rest = f"{left['launches']:+} launches, {left['bytes_moved']:+,} bytes: not known"
    return "; ".join([*texts, *([rest] if any(left.values()) else [])])


def _apart(first: Work, second: Work) -> dict[str, int]:
    return {name: getattr(first, name) - getattr(second, name) for name in FIGURES}


def _attention(kernels: Kernels) -> Work:
    return Work.of({kernel: count for kernel, count in kernels.items() if kernel.kind is KernelKind.ATTENTION})


def _copies(kernels: Kernels) -> Work:
    """Copies of queries, keys, values or heads: of as many bytes as a layer's attention makes, in one kernel each."""
    sizes = {
        2 * 2 * shape.sequences * shape.queries * shape.heads * shape.value_width
        for kernel in kernels
        if isinstance(shape := kernel.shape, AttentionShape)
    }
    return Work.of(
        {
            kernel: count
            for kernel, count in kernels.items()
            if kernel.kind is KernelKind.VECTOR and not kernel.flops and kernel.bytes_moved in sizes
        }
    )


def _outside_attention(graph: CallGraph) -> Counter[Kernel]:
    ops, calls = ops_of(graph), calls_of(graph)
    kernels: Counter[Kernel] = Counter()
    for call, kind in zip(ops.call, ops.kind, strict=True):
        if call < 0 or "attn" not in graph.paths[calls.path[call]]:
            kernels.update(kernels_of(graph.op_kinds[kind]))
    return kernels


def cast_text(before: CallGraph, after: CallGraph, predicted: Kernels, retraced: Kernels) -> str:
    """Casts that change nothing in float32."""
    counts = [
        sum(len(kernels_of(graph.op_kinds[kind])) for kind in ops_of(graph).kind if _is_cast(graph, kind))
        for graph in (before, after)
    ]
    more, launches = counts[1] - counts[0], retraced.total() - predicted.total()
    rest = "" if launches == more else f"; {launches - more:+} launches: not known"
    return f"{more} casts to float32 and back, in norms and routers, which do nothing in a float32 trace{rest}"


def _is_cast(graph: CallGraph, kind: int) -> bool:
    return graph.op_kinds[kind].name.startswith(("aten.to.", "aten._to_copy"))


CASES = (
    Case(
        change="fused-attention",
        before={"attn_implementation": "eager"},
        after={"attn_implementation": "sdpa"},
        models=(*DENSE, *EXPERTS),
        cause=mask_text,
    ),
    Case(
        change="last-logits",
        before={"logits_to_keep": 0, "use_cache": True},
        after={"logits_to_keep": 1, "use_cache": True},
        models=(*DENSE, *EXPERTS),
        cause=unknown_text,
    ),
    Case(
        change="grouped-experts",
        before={"experts_implementation": "eager"},
        after={"experts_implementation": "grouped_mm"},
        models=EXPERTS,
        cause=unknown_text,
    ),
    Case(
        change="half-precision",
        before={"dtype": "float32"},
        after={"dtype": "bfloat16"},
        models=(*DENSE, *EXPERTS),
        cause=cast_text,
    ),
    Case(
        change="joined-matmuls",
        before={},
        after={},
        models=(*DENSE, *EXPERTS),
        cause=unknown_text,
        edit=join_matmuls,
    ),
)


DEPLOYED = (
    Deployed(change="weights-fp8", traced={"weights": "fp8"}),
    Deployed(change="weights-int4", traced={"weights": "int4-g128"}),
    Deployed(change="cache-fp8", traced={"cache": "fp8"}),
    Deployed(change="larger-batch", traced={"batch": 8}),
    Deployed(change="tensor-parallel", traced={"tp": 2}, device="2x h100-sxm"),
)


def table_of_steps(compared: list[Step]) -> str:
    """Markdown: the decode step before, as predicted and of a new trace."""
    equal = sum(step.is_equal for step in compared)
    lines = [
        f"{len(compared)} cases: the decode step takes as long as the one of a new trace in {equal}, to 14 digits.",
        "",
        "| change | model | decode step before | predicted | traced anew |",
        "|---|---|--:|--:|--:|",
        *(
            f"| {step.change} | {step.model} | {1e6 * step.before_s:.1f} us | {1e6 * step.predicted_s:.4f} us "
            f"| {1e6 * step.retraced_s:.4f} us |"
            for step in compared
        ),
    ]
    untold = Counter(step.change for step in compared if not step.is_told)
    for change, count in untold.items():
        lines += ["", f"`advise` does not tell `{change}` of {count} of these models: two layers are too few for it."]
    return "\n".join(lines)


def table(found: list[Row]) -> str:
    """Markdown: what the change takes away, and how far the prediction is from the new trace."""
    exact = sum(not row.cause for row in found)
    flops = sum(row.predicted.flops == row.retraced.flops for row in found)
    lines = [
        f"{len(found)} cases: FLOPs are equal in {flops}, bytes and launches too in {exact}; of the rest the cause is "
        "named.",
        "",
        "| change | model | FLOPs, before -> after | bytes | kernel launches | predicted - traced anew | cause |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        pairs = [f"{getattr(row.before, name):.4g} -> {getattr(row.retraced, name):.4g}" for name in FIGURES[:2]]
        apart = [getattr(row.predicted, name) - getattr(row.retraced, name) for name in FIGURES]
        rest = "equal" if not any(apart) else f"{apart[0]:+,} FLOPs, {apart[1]:+,} bytes, {apart[2]:+} launches"
        launches = f"{row.before.launches} -> {row.retraced.launches}"
        lines.append(f"| {row.change} | {row.model} | {pairs[0]} | {pairs[1]} | {launches} | {rest} | {row.cause} |")
    return "\n".join(lines)


def main() -> None:
    with TemporaryDirectory() as name:
        texts = {"retraced": table(list(rows(Path(name)))), "deployed": table_of_steps(list(steps(Path(name))))}
    show_sections("evidence/advice-retraced", texts, is_written="--write" in sys.argv[1:])


if __name__ == "__main__":
    main()
