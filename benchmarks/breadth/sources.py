"""Count full-size models of transformers without weights, and compare the count with torch's counter and fvcore.

    python -m benchmarks.breadth.sources

One forked child per model type under a cap of time and memory. `--only NAME` runs some model types and keeps the
records of the others, `--redo all` runs all again. The page is made from the data file.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.breadth.full_size import full_size_config
from benchmarks.pages import table
from benchmarks.runner import Record, Sweep, quieten, sweeper
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.folder import class_names

# In the sizes of their default configurations: mostly released ones.
SUBJECTS = {
    "dense": (
        "llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "cohere", "starcoder2", "gpt2", "gpt_neox",
        "opt", "falcon", "t5", "bart", "bert", "modernbert",
    ),
    "mixture of experts": (
        "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "olmoe", "phimoe", "glm4_moe",
        "granitemoe",
    ),
    "vision and language": ("llava", "qwen2_vl", "qwen2_5_vl", "paligemma", "gemma3", "idefics3", "internvl", "clip"),
    "audio": ("whisper", "wav2vec2", "hubert", "qwen2_audio", "musicgen", "clap"),
    "state space": ("mamba", "mamba2", "falcon_mamba", "recurrent_gemma", "jamba", "bamba", "zamba2"),
    "vision": ("vit", "swin", "convnext", "detr", "sam"),
}  # fmt: skip
KIND_OF = {model_type: kind for kind, model_types in SUBJECTS.items() for model_type in model_types}
SECTION = "agreement of sources"
ONE_PERCENT = 0.01
TITLES = ("model", "parameters", "phase", "counted FLOPs", "torch's counter", "cause", "left over")
TITLES += ("fvcore", "cause", "left over")
SIDES = "lrlrrlrrlr"


def section(header: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]) -> str:
    """Versions, a summary, and a table per kind of model."""
    ran = {name: record for name, record in records.items() if record["status"] == "ok"}
    phases = [(record["class"], phase) for record in ran.values() for phase in record["phases"].values()]
    plain = [cls for cls, phase in phases if _gap(phase, "torch-counter") <= ONE_PERCENT]
    named = [cls for cls, phase in phases if _gap(phase, "torch-counter") > ONE_PERCENT >= rest(phase, "torch-counter")]
    lines = [
        f"Made with torch {header['torch']}, transformers {header['transformers']} and fvcore {header['fvcore']}.",
        "",
        f"{len(ran)} models, {len(phases)} phases. Against torch's counter {len(plain)} phases agree within 1 % as they"
        f" are, {len(named)} once its blind spots are added, {len(phases) - len(plain) - len(named)} do not.",
        "",
        _bytes_sentence([phase for _, phase in phases]),
    ]
    for kind, names in SUBJECTS.items():
        of_kind = {name: records[name] for name in names if name in records}
        lines += ["", f"### {kind.capitalize()}", "", table(TITLES, _rows(of_kind), SIDES)]
    return "\n".join(lines)


def _bytes_sentence(phases: Sequence[Mapping[str, Any]]) -> str:
    """How many phases move as many bytes by the price list as by the tensors at the dispatcher."""
    figures = [(phase["bytes"]["counted"], phase["bytes"]["byte-counter"]) for phase in phases if "bytes" in phase]
    alike = sum(ours == theirs for ours, theirs in figures)
    furthest = max((abs(ours - theirs) / max(1, ours) for ours, theirs in figures), default=0.0)
    rest = "" if alike == len(figures) else f", the others within {100 * furthest:.2g} %"
    told = f"{alike} of {len(figures)} phases agree to the byte{rest}"
    return f"Bytes moved, by the price list and by the tensors at the dispatcher: {told}."


def _rows(records: Mapping[str, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for name, record in records.items():
        if record["status"] != "ok":
            yield f"`{name}`", "", record["status"], *[""] * 7
            continue
        for phase, figures in record["phases"].items():
            cells = [f"`{record['class']}`", f"{record['parameters']:,}", phase, f"{figures['counted']:,}"]
            for counter in ("torch-counter", "fvcore"):
                cells += _cells(figures, counter)
            yield cells


def _cells(figures: Mapping[str, Any], counter: str) -> tuple[str, str, str]:
    told = figures[counter]
    if told["failures"]:
        return "", told["failures"][0].replace("|", "\\|")[:120], ""
    return _share(_gap(figures, counter, signed=True)), causes(figures, counter), _share(rest(figures, counter))


def _gap(figures: Mapping[str, Any], counter: str, *, signed: bool = False) -> float:
    """How much of the count a source has less, or more, than counted."""
    gap = (figures[counter]["flops"] - figures["counted"]) / max(1, figures["counted"])
    return float(gap if signed else abs(gap))


def rest(figures: Mapping[str, Any], counter: str) -> float:
    """The part of the count that is still unaccounted for when every known blind spot is added."""
    told = figures[counter]
    accounted = told["flops"] + sum(told["left_out"].values()) - sum(told["added"].values())
    return float(abs(accounted - figures["counted"]) / max(1, figures["counted"]))


def causes(figures: Mapping[str, Any], counter: str) -> str:
    """The causes by the FLOPs they stand for, the largest first, then ops that nobody has a figure for."""
    told = figures[counter]
    parts = sorted({**told["left_out"], **told["added"]}.items(), key=lambda part: -part[1])
    unknown = [f"op-without-formula: `{operator}`" for operator in told["unknown"]]
    return ", ".join([cause for cause, flops in parts if flops] + unknown)


def _share(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:+.2f} %" if abs(share) >= 1e-4 else f"{share:+.0e}"


COUNTERS = ("torch-counter", "fvcore")
BYTE_COUNTER = "byte-counter"
ADDED = ("elementwise-counted", "rounded-up")  # causes by which a source counts more than the matrix work


def compare(model_type: str) -> Record:
    """Totals by phase of every source, with the causes of each difference; built and run without weights."""
    started = time.process_time()
    chosen = full_size_config(model_type)
    name = chosen.class_name or class_names(model_type)[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / model_type
        chosen.config.architectures = [name]
        chosen.config.save_pretrained(folder)
        adapter = HuggingFaceAdapter(folder, trust_remote_code=False)
        graphs = [WeightlessTracer().trace(target) for target in adapter.targets(Workload())]
        ours = [figures for graph in graphs for figures in counted(graph)]
        theirs = {counter: SOURCES.get(counter)().figures(adapter, Workload()) for counter in COUNTERS}
        watched = SOURCES.get(BYTE_COUNTER)().figures(adapter, Workload())
    return {
        "kind": KIND_OF[model_type],
        "class": name,
        "changed": chosen.why,
        "parameters": sum(t.parameters or 0 for t in ours if t.phase == graphs[0].phase),
        "inputs": str(graphs[0].workload["modalities"]),
        "phases": {
            graph.phase: {
                "counted": sum(t.flops or 0 for t in ours if t.phase == graph.phase),
                "unpriced": [spot.operator for t in ours if t.phase == graph.phase for spot in t.blind_spots],
                **{counter: _told([t for t in told if t.phase == graph.phase]) for counter, told in theirs.items()},
                "bytes": {
                    "counted": sum(t.bytes_moved or 0 for t in ours if t.phase == graph.phase),
                    BYTE_COUNTER: sum(t.bytes_moved or 0 for t in watched if t.phase == graph.phase),
                },
            }
            for graph in graphs
        },
        "seconds": round(time.process_time() - started, 1),
        "status": "ok",
    }


def _told(source_figures: Sequence[SourceFigures]) -> Record:
    """The total of a phase; `left_out` and `added` are FLOPs by cause, `unknown` the ops without any figure."""
    failures = [figures.failure for figures in source_figures if figures.failure is not None]
    left_out: Counter[str] = Counter()
    added: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for spot in (spot for figures in source_figures for spot in figures.blind_spots):
        if spot.flops is None:
            unknown[spot.operator] += spot.calls
        else:
            (added if spot.cause in ADDED else left_out)[spot.cause] += spot.flops
    return {
        "flops": sum(figures.flops or 0 for figures in source_figures),
        "left_out": dict(left_out),
        "added": dict(added),
        "unknown": dict(unknown),
        "failures": failures,
    }


def main() -> None:
    """Sweep, write the data, refresh the page."""
    options = sweeper(__doc__, "source_agreement", "evidence/source-agreement.md", seconds=240, gib=4).parse_args()
    logging.disable(logging.WARNING)
    sweep = Sweep(options, {**quieten(), "fvcore": metadata.version("fvcore")}, every=1)
    compare("bert")  # what every child would otherwise import for itself
    sweep.run(list(KIND_OF), compare)
    sweep.put(SECTION, section(sweep.header, sweep.records))


if __name__ == "__main__":
    main()
