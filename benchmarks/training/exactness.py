"""Training steps of many tiny architectures without weights, next to the same steps for real on this processor.

    python -m benchmarks.training.exactness full lora ...   some ways to train; default: all; needs peft for LoRA
    python -m benchmarks.training.exactness --docs          writes its sections of docs/evidence/training-exactness.md

A way to train is run on every architecture that has it, and its rows in docs/data/training_exactness.json are replaced.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.pages import DOCS, replace_section, table, write_data
from benchmarks.runner import Record, parser
from benchmarks.training.shrunk_models import ShrunkModel, shrunk_models
from benchmarks.training.tiny_steps import Comparison, compare, run_real, run_weightless, tiny_target
from llm_perf_opt.core.training_setup import TrainingSetup
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel

DATA = DOCS / "data" / "training_exactness.json"
PAGE = DOCS / "evidence" / "training-exactness.md"
SETUPS: dict[str, dict[str, Any]] = {
    "full": {},
    "bfloat16": {"dtype": "bfloat16"},
    "autocast": {"autocast": "bfloat16"},
    "eager attention": {"attention": "eager"},
    "recompute full": {"recompute": "full"},
    "recompute full, reentrant": {"recompute": "full-reentrant"},
    "recompute selective": {"recompute": "selective"},
    "AdamW fused": {"optimizer": "adamw-fused"},
    "AdamW loop": {"optimizer": "adamw-loop"},
    "SGD": {"optimizer": "sgd"},
    "Adafactor": {"optimizer": "adafactor"},
    "accumulation 3": {"accumulation": 3},
    "full, classes made small": {},
    "LoRA": {"method": "lora", "lora_rank": 4},
    "LoRA, recompute full": {"method": "lora", "lora_rank": 4, "recompute": "full"},
}
SHRUNK = "full, classes made small"  # of every other class of a language model
_LABELLED = ("ForCausalLM", "MaskedLM", "LMHead")


def step_target(case: TinyModel | ShrunkModel, setup: TrainingSetup, gradients: dict[str, tuple[int, ...]]) -> Any:
    """The step of a case; its routed experts run as one grouped matmul: its ops do not depend on the routing."""
    inputs = case.make_inputs()
    if any(ending in case.model for ending in _LABELLED):
        inputs["labels"] = inputs["input_ids"].clone()
    chosen = case if case.experts is None else replace(case, experts="grouped_mm")
    return tiny_target(case.model, lambda: built(chosen, setup), inputs, setup, gradients)


def built(case: TinyModel | ShrunkModel, setup: TrainingSetup) -> Any:
    """The model in the dtype and with the attention of the setup."""
    model = case.build().to(getattr(torch, setup.dtype))
    if setup.attention == "eager":
        model.set_attn_implementation("eager")  # type: ignore[operator]
    return model


def row(case: TinyModel | ShrunkModel, name: str) -> Record:
    """One architecture, one way to train."""
    gradients: dict[str, tuple[int, ...]] = {}
    setup = TrainingSetup(device="cpu", **{"dtype": "float32", **SETUPS[name]})
    found: Record = {"model": case.model, "setup": name}
    try:
        target = step_target(case, setup, gradients)
        real = run_real(target)
        theirs = dict(gradients)
    except Exception as error:  # noqa: BLE001 - what a library does not support is a result
        return {**found, "refused": f"{type(error).__name__}: {error}"[:160]}
    try:
        both = compare(run_weightless(target), real)
    except Exception as error:  # noqa: BLE001 - so is what does not run without weights
        return {**found, "fails": f"{type(error).__name__}: {error}"[:160]}
    return {**found, **figures(both), "gradients": len(theirs), "gradients_differ": gradients != theirs}


def figures(both: Comparison) -> Record:
    """What the page says of two runs."""
    return {
        "peak_bytes": both.peak_bytes,
        "real_peak_bytes": both.real_peak_bytes,
        "flops": both.flops,
        "real_flops": both.real_flops,
        "flops_differ": both.flops_differ,
        "ops_differ": both.ops_differ,
        "views_differ": len(both.views_differ),
        "unpriced": both.unpriced,
        "problems": both.problems,
    }


# What is known to differ, with its cause: how the row shows it -> the cause.
def cause(record: Record) -> str:
    """Why a row is not exact; empty: not known."""
    flops, ops = set(record["flops_differ"]), set(record["ops_differ"])
    if flops == {"convolution_backward"} and is_grouped_convolution(record):
        return "torch's counter ignores the groups of a convolution in its backward"
    if record["model"] in LOOPED_EXPERTS:
        return "experts run in a Python loop, as often as the routing has it, and routing depends on values"
    if record["model"] in RANDOM_DEPTH:
        return "layers are skipped at random in training"
    if ops and not flops and abs(peak_error(record)) <= 0.01:
        return "copies that depend on the strides a CPU kernel gives its result"
    return ""


RANDOM_DEPTH = ("WavLMModel", "SpeechT5ForTextToSpeech")
LOOPED_EXPERTS = ("DbrxForCausalLM", "LongcatFlashForCausalLM", "SwitchTransformersForConditionalGeneration")


def is_grouped_convolution(record: Record) -> bool:
    """Torch's figure is the larger one by the number of groups, or by most of it."""
    ours, theirs = record["flops_differ"]["convolution_backward"]
    return bool(theirs > ours)


def peak_error(record: Record) -> float:
    """Relative to the real peak."""
    return float(record["peak_bytes"] / record["real_peak_bytes"] - 1)


def ran(records: Sequence[Record]) -> list[Record]:
    """Rows with both runs."""
    return [record for record in records if "peak_bytes" in record]


def summary(records: Sequence[Record]) -> str:
    """One line for each way to train."""
    lines = []
    for name in SETUPS:
        rows = [record for record in records if record["setup"] == name]
        both = ran(rows)
        if not rows:
            continue
        worst = sorted(abs(peak_error(record)) for record in both)
        lines.append(
            (
                name,
                len(both),
                sum(not record["flops_differ"] for record in both),
                sum(not record["ops_differ"] for record in both),
                sum(error <= 0.01 for error in worst),
                f"{100 * worst[len(worst) // 2]:.3f} %",
                sum("fails" in record for record in rows),
                sum("refused" in record for record in rows),
            )
        )
    titles = ("way to train", "both ran", "FLOPs equal", "ops equal", "peak within 1 %", "median error of the peak")
    return table((*titles, "not without weights", "not for real"), lines)


def misses(records: Sequence[Record]) -> str:
    """Every row that is not exact, by architecture and cause."""
    causes: dict[tuple[str, str], list[Record]] = {}
    for record in ran(records):
        if record["flops_differ"] or record["ops_differ"] or abs(peak_error(record)) > 0.01:
            causes.setdefault((record["model"], cause(record) or "not known"), []).append(record)
    rows = (
        (model, why, len(rows), f"{100 * max(map(peak_error, rows), key=abs):+.2f} %", _differing(rows))
        for (model, why), rows in sorted(causes.items())
    )
    return table(("architecture", "cause", "ways to train", "largest error of the peak", "ops that differ"), rows, "ll")


def _differing(rows: Sequence[Record]) -> str:
    names = Counter(name for record in rows for name in (*record["flops_differ"], *record["ops_differ"]))
    shown = [name.removeprefix("aten.") for name, _ in names.most_common(3)]
    return ", ".join(f"`{name}`" for name in shown) or "none"


def others(records: Sequence[Record]) -> str:
    """What did not run, for real or without weights."""
    said: dict[tuple[str, str, str], int] = {}
    for record in records:
        for where in ("fails", "refused"):
            if where in record:
                key = (record["model"], "without weights" if where == "fails" else "for real", record[where])
                said[key] = said.get(key, 0) + 1
    rows = ((*key, count) for key, count in sorted(said.items()))
    return table(("architecture", "does not run", "because", "ways to train"), rows, "lll")


def measured(names: Sequence[str]) -> Iterator[Record]:
    """Every architecture in each of these ways."""
    for name in names:
        if name == SHRUNK:
            yield from (row(case, name) for case in shrunk_models())
            continue
        for case in TINY_MODELS:
            if name == "full" or case.model.endswith(_LABELLED) or case.model.endswith("ConditionalGeneration"):
                yield row(case, name)


def kept() -> list[Record]:
    """The rows of earlier runs."""
    return json.loads(DATA.read_text(encoding="utf-8"))["rows"] if DATA.is_file() else []


def main() -> None:
    asked = parser(__doc__, docs="write the page from the rows that are there")
    asked.add_argument("setups", nargs="*", help="ways to train")
    options = asked.parse_args()
    if not options.docs:
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        torch.set_num_threads(1)
        names = options.setups or list(SETUPS)
        rows = [record for record in kept() if record["setup"] not in names] + list(measured(names))
        write_data("training_exactness", {"rows": rows})
    rows = kept()
    sections: Mapping[str, str] = {"summary": summary(rows), "misses": misses(rows), "others": others(rows)}
    for name, text in sections.items():
        print(f"## {name}\n\n{text}\n")
        if options.docs:
            replace_section(PAGE, name, text)


if __name__ == "__main__":
    main()
