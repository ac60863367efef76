"""How fast, how small: the engine against plain meta tensors, the whole command, and a trillion parameters.

Ratios are taken in one process, rounds interleaved, medians of process CPU time on one thread, so that a busy machine
disturbs both sides alike. Each other figure comes from a process of its own.

    python -m benchmarks.speed                  every section; prints the tables
    python -m benchmarks.speed --docs           and writes them into docs/evidence/performance.md
    python -m benchmarks.speed --section ratios --rounds 9
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import runner
from benchmarks.pages import DOCS, put_between, table

TOKENS = 1024
Row = dict[str, Any]


# ---- models, at the sizes of their library defaults unless said


LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_8B |= {"num_key_value_heads": 8, "vocab_size": 128256}
TRILLION = {"n_routed_experts": 384, "num_hidden_layers": 61, "first_k_dense_replace": 1, "num_attention_heads": 64}
TRILLION |= {"num_key_value_heads": 64, "n_group": 1, "topk_group": 1, "vocab_size": 163840}
RATIO_MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "Llama 8B": ("Llama", LLAMA_8B),
    "Mixtral 8x7B": ("Mixtral", {}),
    "DeepSeek-V3 671B": ("DeepseekV3", {}),
}


def sized(family: str, **sizes: Any) -> tuple[Any, Any]:
    """The class of a language model in transformers, and a configuration."""
    import transformers

    return getattr(transformers, f"{family}ForCausalLM"), getattr(transformers, f"{family}Config")(**sizes)


# ---- helpers


def in_bfloat16(build: Callable[[], Any]) -> Any:
    import torch

    torch.set_default_dtype(torch.bfloat16)
    try:
        return build().eval()
    finally:
        torch.set_default_dtype(torch.float32)


def text_target(model_class: Any, config: Any) -> Any:
    import torch

    from llm_perf_opt.core.target import Target

    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    return Target(
        model=model_class.__name__,
        phase="prefill",
        workload={"prompt_tokens": TOKENS},
        build=functools.cache(lambda: in_bfloat16(lambda: model_class(config))),
        invoke=lambda model: model(input_ids=ids),
    )


def priced(graph: Any) -> int:
    """Total FLOPs; pricing is part of a full trace."""
    from llm_perf_opt.costs.stage_costs import stage_costs

    return int(stage_costs(graph).total.flops)


# ---- sections


def ratios(rounds: int) -> list[Row]:
    """Engine forward and full trace against the same forward on plain meta tensors."""
    import torch

    from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
    from llm_perf_opt.weightless import Engine

    torch.set_num_threads(1)
    rows = []
    for name, (family, sizes) in RATIO_MODELS.items():
        model_class, config = sized(family, **sizes)
        with torch.device("meta"):
            meta_model = in_bfloat16(functools.partial(model_class, config))
            meta_ids = torch.zeros(1, TOKENS, dtype=torch.long)
        engine = Engine()
        with engine:
            model = in_bfloat16(functools.partial(model_class, config))
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        target, tracer = text_target(model_class, config), WeightlessTracer(device="cpu")
        sides: dict[str, Callable[[], object]] = {
            "meta": torch.no_grad()(functools.partial(meta_model, input_ids=meta_ids)),
            "engine": lambda engine=engine, model=model, ids=ids: engine.run(lambda: model(input_ids=ids)),
            "full trace": lambda target=target, tracer=tracer: priced(tracer.trace(target)),
        }
        first_trace = runner.seconds_of(sides["full trace"])
        runner.in_turns(sides, 1)  # warms up
        median = {side: statistics.median(values) for side, values in runner.in_turns(sides, rounds).items()}
        graph = tracer.trace(target)
        rows.append(
            {
                "model": name,
                "ops": len(graph.ops.kind),
                "meta s": median["meta"],
                "engine s": median["engine"],
                "full trace s": median["full trace"],
                "first trace with build s": first_trace,
                "engine / meta": median["engine"] / median["meta"],
                "full trace / meta": median["full trace"] / median["meta"],
            }
        )
    return rows


def flatness(rounds: int) -> list[Row]:
    """Cost of one recorded op in traces of ten thousand to a million ops."""
    import torch
    from torch import nn

    from llm_perf_opt.core.target import Target
    from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(64, 128)
            self.down = nn.Linear(128, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.silu(self.up(x)) * 0.5).to(x.dtype)

    class Loop(nn.Module):
        def __init__(self, steps: int) -> None:
            super().__init__()
            self.step = Step()
            self.steps = steps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.steps):
                x = self.step(x)
            return x

    rows = []
    for ops in (10_000, 100_000, 1_000_000):
        costs = []
        for _ in range(rounds if ops < 1_000_000 else max(1, rounds // 3)):
            target = Target(
                model="loop",
                phase="prefill",
                workload={},
                build=functools.cache(lambda ops=ops: Loop(ops // 5)),
                invoke=lambda model: model(torch.zeros(4, 64)),
            )
            tracer = WeightlessTracer(device="cpu")
            start = time.process_time()
            graph = tracer.trace(target)
            costs.append((time.process_time() - start) / len(graph.ops.kind))
        per_op_us = 1e6 * statistics.median(costs)
        rows.append({"ops": len(graph.ops.kind), "calls": len(graph.calls.path), "us per op": per_op_us})
    for row in rows:
        row["against the first"] = row["us per op"] / rows[0]["us per op"]
    return rows


def one_trillion(experts_implementation: str) -> Row:
    """Build, trace and price one trillion-parameter model in this process."""
    import torch

    from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer

    torch.set_num_threads(1)
    target = text_target(*sized("DeepseekV3", **TRILLION, experts_implementation=experts_implementation))
    start = time.process_time()
    graph = WeightlessTracer(device="cpu").trace(target)
    traced = time.process_time() - start
    flops = priced(graph)
    return {
        "experts": experts_implementation,
        "parameters": sum(parameter.numel() for parameter in target.build().parameters()),
        "ops": len(graph.ops.kind),
        "TFLOP": flops / 1e12,
        "trace s": traced,
        "trace and price s": time.process_time() - start,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def trillions(rounds: int) -> list[Row]:
    """Both ways of running experts, each in a process of its own."""
    rows = []
    for implementation in ("grouped_mm", "eager"):
        arguments = [sys.executable, "-m", "benchmarks.speed", "--one-trillion", implementation]
        printed = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
        rows.append(json.loads(printed.splitlines()[-1]))
    return rows


def command(rounds: int) -> list[Row]:
    """The whole trace command, from the shell to the written files."""
    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["trace", "deepseek-ocr", "--image", "1240x1754", "--crops", "2x3", "--out", f"{folder}/run"]
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-c", "from llm_perf_opt.cli import main; main()", *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - start
            if status:
                raise SystemExit(f"the trace command failed with status {status}")
        rows.append({"wall s": wall, "CPU s": usage.ru_utime + usage.ru_stime, "peak GB": usage.ru_maxrss / 1e6})
    return [{"median of": rounds, **{key: statistics.median(row[key] for row in rows) for key in rows[0]}}]


SECTIONS: dict[str, tuple[str, Callable[[int], list[Row]]]] = {
    "ratios": ("Against plain meta tensors, 1,024 tokens, bfloat16, CPU seconds", ratios),
    "command": ("The whole command: `llm-perf-opt trace deepseek-ocr --crops 2x3`", command),
    "trillion": ("One trillion parameters: 61 layers, 384 experts, 1,024 tokens, CPU seconds", trillions),
    "flatness": ("Cost of one traced op", flatness),
}


def markdown(rows: list[Row]) -> str:
    """A table; numbers with three significant digits."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    sides = "".join("l" if isinstance(value, str) else "r" for value in rows[0].values())
    return table(tuple(rows[0]), (list(map(cell, row.values())) for row in rows), sides, wide=True)


def write_page(section: str, text: str) -> None:
    """Put a table between its markers in the performance page."""
    put_between(DOCS / "evidence" / "performance.md", f"<!-- {section}: begin -->", f"<!-- {section}: end -->", text)


def main() -> None:
    parser = runner.parser(__doc__, docs="write the tables into docs/evidence/performance.md")
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one-trillion", choices=("grouped_mm", "eager"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_trillion:
        print(json.dumps(one_trillion(options.one_trillion)))
        return
    for section in options.section or SECTIONS:
        title, measure = SECTIONS[section]
        text = markdown(measure(options.rounds))
        print(f"{title}\n\n{text}\n", flush=True)
        if options.docs:
            write_page(section, text)


if __name__ == "__main__":
    main()
