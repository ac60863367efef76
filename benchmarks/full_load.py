"""What `serve` says a system answers at full load, next to what was measured: TensorRT-LLM's overview and MLPerf.

    python -m benchmarks.full_load          asks every question once; a quarter of an hour of one core
    python -m benchmarks.full_load --docs   writes its sections of docs/evidence/serving-times.md

**The rule**, written before the first question. A row is judged if the table of devices has its GPU, all of one kind;
if it names an engine with measured kernels; if it names the format of its weights; and if the mean lengths of its
requests are published. Every other row is counted by its reason. Of MLPerf that is the closed division, offline; a row
that a submitter gave for two accuracies is judged once. A question has the pages and the deadline of a backlog, no
limit, and the engine's defaults: the best plan of MLPerf is searched, that of the overview is given. Several nodes are
asked as one of them, and judged per GPU: without a limit on time each has requests of its own. The cache is in 8 bits
where weights are quantised, but for gpt-oss and DeepSeek-R1 on Hopper, as the overview says.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from statistics import median
from typing import Any

import llm_perf_opt as lpo
from benchmarks.bounds.floors import token_s
from benchmarks.pages import DOCS, share, show_sections, signed, table, write_data
from benchmarks.records import CONFIGS, SERVING, MeasuredRun, read_overview, records_of, shared
from benchmarks.runner import parser
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.costs.necessary.decoder_needs import DecoderNeeds, decoder_needs
from llm_perf_opt.costs.necessary.expert_blocks import FEWEST

DATA = DOCS / "data" / "full_load.json"
OVERVIEW, MLPERF = "TensorRT-LLM overview", "MLPerf offline"
NAMED = {  # as released: their checkpoints store some of the weights in 8 or 4 bits
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B-Instruct",
}
# Mean tokens in and out. Out: MLPerf's submission checker (tokens per sample); of Llama-3.1-8B the most that it lets a
# summary have, which nearly all reach. In: as MLCommons announced them, rounded, written down by hand. No mean is known
# of the prompts of Mixtral and gpt-oss, and of Llama-2-70B none but a longest of 1,024: a sixth of that is taken.
LENGTHS = {
    "llama-2-70b": (170, 294),
    "llama-3.1-405b": (9400, 685),
    "llama-3.1-8b": (778, 128),
    "deepseek-r1": (800, 3886),
}
GPUS = {
    "AMD Instinct MI300X 192GB HBM3": "mi300x",
    "AMD Instinct MI325X 256GB HBM3e": "mi325x",
    "AMD Instinct MI355X 288GB HBM3e": "mi355x",
    "NVIDIA B200-SXM-180GB": "b200-sxm",
    "NVIDIA B300-SXM-270GB": "b300-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA H100-SXM-80GB": "h100-sxm",
    "NVIDIA H200-SXM-141GB": "h200-sxm",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-bw-server",
}
ENGINE_WORDS = {"tensorrt": "trtllm", "vllm": "vllm", "sglang": "sglang"}
PRECISIONS = {"fp16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "fp4": "fp4", "mxfp4": "fp4"}
RELEASED_SO = {("deepseek-r1", "fp8"), ("gpt-oss-120b", "fp8"), ("gpt-oss-120b", "fp4")} | {
    ("gpt-oss-20b", "fp8"),
    ("gpt-oss-20b", "fp4"),
}
HOPPER = frozenset({"h100-sxm", "h200-sxm"})
SIXTEEN_BIT_CACHE = frozenset({"gpt-oss-120b", "gpt-oss-20b", "deepseek-r1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FullLoad:
    """A measured rate of a whole system, and the question that asks for it."""

    source: str
    run: MeasuredRun
    plan: Mapping[str, int] = field(default_factory=dict)  # as `serve` takes it; empty: searched

    @property
    def formats(self) -> dict[str, str]:
        """Weights and cache as `serve` takes them; a checkpoint that is published so needs no word."""
        model, precision = self.run.model, self.run.precision
        said = {"fp8": "fp8", "fp4": "mxfp4" if self.run.device.startswith("mi") else "nvfp4"}
        weights = {} if precision == "bf16" or (model, precision) in RELEASED_SO else {"weights": said[precision]}
        if precision == "bf16" or (self.run.device in HOPPER and model in SIXTEEN_BIT_CACHE):
            return weights
        return {**weights, "cache": "fp8"}


def overview() -> Iterator[FullLoad]:
    """TensorRT-LLM's own table, with the plan of each row."""
    file = SERVING / "trtllm_overview.json"
    for record, run in zip(records_of(file), read_overview(file), strict=True):
        yield FullLoad(source=OVERVIEW, run=run, plan=_plan(record["parallel"]))


def _plan(written: str) -> dict[str, int]:
    """`TP2`, `TP1,PP2`; `DEP4`: attention of its own on each of four ranks, which share the experts."""
    sizes = {part.rstrip("0123456789"): int(part.lstrip("DETP")) for part in written.split(",")}
    groups = sizes.get("DEP", 1)
    return {"tp": sizes.get("TP", 1), "pp": sizes.get("PP", 1), "attention_dp": groups, "ep": groups}


def mlperf() -> tuple[list[FullLoad], Counter[str]]:
    """The rows that the rule judges, and how many others there are for each reason."""
    loads, others = [], Counter[str]()
    with (SERVING / "mlperf_offline.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if (reason := _reason(row)) is not None:
                others[reason] += 1
                continue
            model, count = _model(row), int(row["count"])
            prompt, output = LENGTHS[model]
            run = MeasuredRun(
                name=f"{row['round']} {row['organization']} {row['system']} {row['model']}",
                source=row["source"],
                model=model,
                device=GPUS[row["gpu"]],
                engine=_engine(row) or "",
                precision=PRECISIONS[row["weight_data_types"].casefold()],
                prompt_tokens=prompt,
                output_tokens=output,
                in_flight=None,
                tokens_per_s_per_gpu=float(row["result"]) / count,
                **shared(count // int(row["nodes"])),
            )
            loads.append(FullLoad(source=MLPERF, run=run))
    return loads, others


def _model(row: Mapping[str, str]) -> str:
    name = row["model"].removesuffix("-99.9").removesuffix("-99").removesuffix("-edge")
    return name.replace("llama2-", "llama-2-").replace("llama3.1-", "llama-3.1-")


def _engine(row: Mapping[str, str]) -> str | None:
    words = row["framework"].casefold()
    return next((name for word, name in ENGINE_WORDS.items() if word in words), None)


def _reason(row: Mapping[str, str]) -> str | None:
    """Why a row is not judged; the first that holds."""
    tests: dict[str, Callable[[], bool]] = {
        "no model of text: Whisper, Qwen3-VL": lambda: row["units"] != "Tokens/s",
        "the open division": lambda: row["division"] != "closed",
        "the same run under another accuracy": lambda: bool(row["same_run_as"]),
        "mean lengths are not published: Mixtral, gpt-oss": lambda: _model(row) not in LENGTHS,
        "several kinds of GPU, or one that the table of devices does not have": lambda: row["gpu"] not in GPUS,
        "no engine with measured kernels is named": lambda: _engine(row) is None,
        "the format of the weights is not named, or integers": lambda: (
            row["weight_data_types"].casefold() not in PRECISIONS
        ),
    }
    return next((reason for reason, holds in tests.items() if holds()), None)


@cache
def traced(model: str, formats: tuple[tuple[str, str], ...]) -> tuple[lpo.Trace, DecoderNeeds]:
    """The model with its weights and cache stored so, and what a step of it needs."""
    run = lpo.trace(NAMED.get(model, CONFIGS / model), torch_device="cuda", **dict(formats))  # type: ignore[arg-type]
    return run, decoder_needs(next(graph for graph in run.graphs if graph.phase == DECODE))


def asked(load: FullLoad) -> dict[str, Any]:
    """What `serve` answers, or why it does not."""
    run = load.run
    model, needs = traced(run.model, tuple(sorted(load.formats.items())))
    try:
        answer = lpo.serve(
            model,
            f"{run.decode_gpus}x {run.device}",
            input=run.prompt_tokens,
            output=run.output_tokens,
            pages=100_000,
            within="1000h",
            engine=run.engine,
            prices={run.device: 1.0},
            **load.plan,
        )
    except PerfOptError as error:
        return {"refused": error.what}
    if (best := answer.best) is None:
        return {"refused": answer.why_none or "no plan fits"}
    device, ranks = find_device(run.device), best.candidate.replica.considered.plan.replica_ranks
    least = token_s(
        MeasuredRun(**{**{name: getattr(run, name) for name in run.__slots__}, **shared(ranks)}),
        needs,
        device,
        best.state.sequences,
        FEWEST,
    )
    return {
        "plan": best.plan,
        "replicas": best.replicas,
        "sequences": best.state.sequences,
        "is_measured": best.is_measured,
        "limit": best.limit,
        "rate": best.output_tokens_per_s / best.gpus,
        "bound": 1 / least,
    }


def rows() -> tuple[list[dict[str, Any]], Counter[str]]:
    """Every judged row with its answer; equal questions are asked once."""
    loads, others = mlperf()
    answers: dict[str, dict[str, Any]] = {}
    judged = []
    for load in sorted([*overview(), *loads], key=lambda load: (load.run.model, load.run.precision, load.run.device)):
        run = load.run
        names = ("model", "device", "engine", "precision", "prompt_tokens", "output_tokens")
        question = {name: getattr(run, name) for name in names} | {"gpus": run.decode_gpus} | dict(load.plan)
        key = json.dumps(question)
        if key not in answers:
            answers[key] = asked(load)
            sys.stderr.write(f"{question} {answers[key]}\n")
        measured = run.tokens_per_s_per_gpu
        judged.append({"source": load.source, "run": run.name, **question, "measured": measured, **answers[key]})
    return judged, others


GROUPS: dict[str, Callable[[dict[str, Any]], str]] = {
    "all": lambda row: "all",
    "system": lambda row: row["device"] + ("" if row["is_measured"] else ", by its data sheet"),
    "model": lambda row: row["model"],
    "format": lambda row: row["precision"],
    "plan": lambda row: "one rank" if row["plan"] == "one device" else "several ranks",
}


def sections(data: dict[str, Any]) -> dict[str, str]:
    """Errors of the rate by group, and what was not answered or not judged."""
    lines = []
    for source in (OVERVIEW, MLPERF):
        some = [row for row in data["rows"] if row["source"] == source and "rate" in row]
        for name, key in GROUPS.items():
            parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in some:
                parts[key(row)].append(row)
            lines += [(f"{source}: {_named(name, part)}", *_cells(members)) for part, members in sorted(parts.items())]
    refused = Counter((row["source"], row["refused"]) for row in data["rows"] if "refused" in row)
    reasons = [(source, reason, count) for (source, reason), count in sorted(refused.items())]
    reasons += [(MLPERF, reason, count) for reason, count in data["not_judged"].items()]
    titles = ("", "rows", "rate off by: median / p90", "bias", "answers above the bound", "records above the bound")
    return {
        "full-load": table(titles, lines),
        "full-load-refused": table(("source", "not answered, or not judged", "rows"), reasons, "llr"),
    }


def _named(name: str, part: str) -> str:
    return part if name == "all" else f"{name} {part}"


def _cells(some: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    errors = [row["rate"] / row["measured"] - 1 for row in some]
    sizes = sorted(map(abs, errors))
    return (
        f"{len(some)}",
        f"{share(median(sizes))} / {share(sizes[ceil(0.9 * len(sizes)) - 1])}",
        signed(median(errors)),
        f"{sum(row['rate'] > row['bound'] for row in some)}",
        f"{sum(row['measured'] > row['bound'] for row in some)}",
    )


def main() -> None:
    made = parser(
        __doc__, docs="write the page's sections and the data file", kept="from the data file, asking nothing"
    )
    options = made.parse_args()
    if options.kept:
        data = json.loads(DATA.read_text(encoding="utf-8"))
    else:
        judged, others = rows()
        data = {"rows": judged, "not_judged": dict(others)}
    show_sections("evidence/serving-times", sections(data), is_written=options.docs)
    if options.docs:
        write_data("full_load", data)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    main()
