"""How well a calibrated prediction meets a real run of full-size DeepSeek-OCR on this processor.

    python -m benchmarks.calibrated_prediction --out docs/data/calibrated_prediction.json --docs
    python -m benchmarks.calibrated_prediction --threads 2 --out docs/data/calibrated_prediction_2_threads.json --docs

Calibrates the processor, runs the model with random bfloat16 weights in five image modes, and holds the times of each
stage against those predicted from weightless traces. Calibrating and running take turns, round by round, so that a
processor whose speed changes within minutes is the same for both. One mode, the reference, may be used to correct each
stage by one factor, as `predict --measured` does with a profile of it; errors count in the other modes only. Takes
about ten minutes and 10 GB, and wants the machine for itself. Which expert gets how many rows is data, so the routing
of the real run is replayed in the traces.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import runner
from benchmarks.breadth.observed import RoutingRecorder
from benchmarks.pages import DOCS, put_between, table
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration, write_calibration
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.measurements.calibrate.calibrate import calibrate, combined
from llm_perf_opt.measurements.correction import FitPoint, fitted
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.timing.calibrated_rates import CalibratedRates
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.weightless import ReplayRouting

PAGE = DOCS / "evidence" / "how-good-is-the-prediction.md"


def write_page(record: dict[str, Any], page: Path = PAGE) -> None:
    threads = f"{record['threads']} {'thread' if record['threads'] == 1 else 'threads'}"
    tables = {f"verdicts, {threads}": verdict_table(record, threads), f"errors, {threads}": error_table(record)}
    for name, text in tables.items():
        put_between(page, f"<!-- {name}: begin -->", f"<!-- {name}: end -->", text)


def verdict_table(record: dict[str, Any], threads: str) -> str:
    names = {
        "microbenchmarks_alone": "the calibration alone",
        "with_reference": f"the calibration, corrected by one run in {record['reference']} mode",
    }
    rows = [
        (
            title,
            f"{judged['median_error']:.1%}",
            f"{judged['worst_error']:.1%}",
            "reached" if judged["reached"] else "missed",
        )
        for title, judged in ((title, record[key]) for key, title in names.items())
        if judged is not None
    ]
    titles = ("prediction from", "median error", "worst error", "goal (15 %, 30 %)")
    device = f"{record['device']}, {threads}, torch {record['library_versions']['torch']}"
    made = table(titles, rows, "lrrl", wide=True)
    return f"{device}.\n\n{made}\n\n{steadiness_line(record['steadiness'])}"


def steadiness_line(spread: dict[str, Any]) -> str:
    ends = " to ".join(f"{spread[key] * 1e3:.0f}" for key in ("fastest_s", "slowest_s"))
    half = " to ".join(f"{spread[key] * 1e3:.0f}" for key in ("lower_quarter_s", "upper_quarter_s"))
    return (
        f"Meanwhile one and the same piece of work (twenty matmuls, {spread['tries']} times) took {ends} ms, "
        f"half of the time {half} ms."
    )


def error_table(record: dict[str, Any]) -> str:
    rows = []
    for row in record["rows"]:
        after = row["error_after_reference"]
        corrected = "reference" if not row["held_out"] else "" if after is None else f"{after:+.1%}"
        measured, predicted = (
            f"{ms(row, f'{kind}_s')} ({ms(row, f'{kind}_{low}_s')} to {ms(row, f'{kind}_{high}_s')})"
            for kind, low, high in (("measured", "fastest", "slowest"), ("predicted", "low", "high"))
        )
        rows.append((row["mode"], row["stage"], measured, predicted, f"{row['error']:+.1%}", corrected))
    titles = ("measured ms (fastest to slowest)", "predicted ms (band)", "error", "after the reference run")
    return table(("mode", "stage", *titles), rows, "llr", wide=True)


def ms(row: dict[str, Any], key: str) -> str:
    return f"{row[key] * 1e3:.3g}" if row[key] < 1 else f"{row[key] * 1e3:,.0f}"


TRIES, MATMULS = 60, 20


def matmul_seconds() -> list[float]:
    """Twenty matmuls of 1024 x 1024 with 1024 x 4096 values in bfloat16, again and again, in torch's threads."""
    inputs = torch.randn(1024, 1024, dtype=torch.bfloat16)
    weight = torch.randn(4096, 1024, dtype=torch.bfloat16)
    times = []
    with torch.inference_mode():
        for _ in range(TRIES):
            started = time.perf_counter()
            for _ in range(MATMULS):
                F.linear(inputs, weight)
            times.append(time.perf_counter() - started)
    return times


def spread_of(seconds: list[float]) -> dict[str, Any]:
    """The ends, the quarters and the middle of all tries."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {
        "tries": len(seconds),
        "fastest_s": min(seconds),
        "lower_quarter_s": low,
        "median_s": middle,
        "upper_quarter_s": high,
        "slowest_s": max(seconds),
    }


MODES: dict[str, tuple[str, tuple[int, int] | None, int]] = {  # name -> mode, crops, repeats in each round
    "tiny": ("tiny", None, 3),
    "small": ("small", None, 3),
    "base": ("base", None, 3),
    "large": ("large", None, 2),
    "gundam-2x3": ("gundam", (2, 3), 2),
}
ROUNDS = 3
REFERENCE = "base"
DECODE_STEPS = 8
STAGES = ("sam", "clip", "projector", "prefill", "decode")
PATHS = {"sam": "model.sam_model", "clip": "model.vision_model", "projector": "model.projector"}
MEDIAN_GOAL, WORST_GOAL = 0.15, 0.30
Clock = Callable[[], float]


def main() -> int:
    options = parsed_options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(options.threads)
    models = RealModels(weights="random", device="cpu")
    model = models.model_of(targets_of(options.modes[0])[0])
    routing = {name: recorded_routing(model, name) for name in options.modes}
    calibration, times, steadiness = measured_in_turns(model, options)
    rows = []
    for name in options.modes:
        predicted = predictions(name, calibration, routing[name])
        balanced = predictions(name, calibration, None)
        rows += [row_of(name, stage, times[name][stage], predicted[stage], balanced[stage]) for stage in STAGES]
        gc.collect()
    record = record_of(calibration, rows, options) | {"steadiness": spread_of(steadiness)}
    print(verdict_table(record, f"{options.threads} threads"), error_table(record), sep="\n\n")
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.docs:
        write_page(record)
    return 0


def measured_in_turns(
    model: torch.nn.Module, options: argparse.Namespace
) -> tuple[Calibration, dict[str, dict[str, list[float]]], list[float]]:
    """The calibration, seconds of each stage by mode, and seconds of one and the same piece of work throughout."""
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    given = options.calibration if options.calibration is not None and options.calibration.exists() else None
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in options.modes}
    calibrations, steadiness = [], []
    for number in range(ROUNDS):
        logging.info("Round %d of %d.", number + 1, ROUNDS)
        steadiness += matmul_seconds()
        if given is None:
            calibrations.append(calibrate(threads=options.threads, clock=options.clock, rounds=1))
        for name in options.modes:
            for stage, seconds in stage_times(model, name, clock, options.repeats or MODES[name][2]).items():
                times[name][stage] += seconds
    if given is not None:
        return read_calibration(given), times, steadiness
    calibration = combined(calibrations)
    if options.calibration is not None:
        write_calibration(calibration, options.calibration)
    return calibration, times, steadiness


def parsed_options() -> argparse.Namespace:
    parser = runner.parser(__doc__, docs=f"rewrite the tables of docs/{PAGE.name}")
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--repeats", type=int, help="in each round, instead of each mode's own number")
    parser.add_argument("--calibration", type=Path, help="read it from here if it exists, otherwise write it there")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: one thread on a busy machine")
    return parser.parse_args()


def targets_of(name: str) -> tuple[Target, Target]:
    mode, crops, _ = MODES[name]
    workload = DeepSeekOcrWorkload(image="1240x1754", mode=mode, crops=crops, decode_steps=DECODE_STEPS)
    prefill, decode = DeepSeekOcrAdapter().targets(workload)
    return prefill, decode


def recorded_routing(model: torch.nn.Module, name: str) -> dict[str, list[list[int]]]:
    """Per phase, how many rows each expert got, router call by router call; this run also warms the machine up."""
    counts_of_phase: dict[str, list[list[int]]] = {}
    for target in targets_of(name):
        with RoutingRecorder() as routing:
            target.run(model)
        counts_of_phase[target.phase] = routing.counts
    return counts_of_phase


def stage_times(model: torch.nn.Module, name: str, clock: Clock, repeats: int) -> dict[str, list[float]]:
    """Seconds of each stage in every repeat: `prefill` is what the vision stages leave, `decode` is one step.

    A first pass is not counted: it finds memory as another mode has left it.
    """
    samples: dict[str, list[float]] = defaultdict(list)
    prefill, decode = targets_of(name)
    prefill.run(model)
    decode.run(model)
    for _ in range(repeats):
        with timed_stages(model, clock) as spent:
            started = clock()
            prefill.run(model)
            whole = clock() - started
        given = decode.start(model)
        started = clock()
        decode.run(model, given)
        samples["decode"].append((clock() - started) / DECODE_STEPS)
        for stage, seconds in spent.items():
            samples[stage].append(seconds)
        samples["prefill"].append(whole - sum(spent.values()))
    return samples


@contextmanager
def timed_stages(model: torch.nn.Module, clock: Clock) -> Iterator[dict[str, float]]:
    """Adds up what each vision stage takes, with two readings of the clock per call and nothing else."""
    spent = dict.fromkeys(PATHS, 0.0)
    modules = {stage: model.get_submodule(path) for stage, path in PATHS.items()}

    def timed(stage: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = clock()
            try:
                return forward(*args, **kwargs)
            finally:
                spent[stage] += clock() - started

        return run

    for stage, module in modules.items():
        module.__dict__["forward"] = timed(stage, module.forward)
    try:
        yield spent
    finally:
        for module in modules.values():
            del module.__dict__["forward"]


def predictions(
    name: str, calibration: Calibration, routing: dict[str, list[list[int]]] | None
) -> dict[str, StageTime]:
    """Every stage from weightless traces; of decode all steps together."""
    stages = {}
    for target in targets_of(name):
        policy = "balanced" if routing is None else ReplayRouting(routing[target.phase])
        graph = WeightlessTracer(routing=policy, device="cpu").trace(target)
        stages.update({stage.name: stage for stage in predict(graph, CalibratedRates(calibration))})
    return stages


def row_of(mode: str, stage: str, samples: list[float], predicted: StageTime, balanced: StageTime) -> dict[str, Any]:
    steps = DECODE_STEPS if stage == "decode" else 1
    median = statistics.median(samples)
    return {
        "mode": mode,
        "stage": stage,
        "measured_s": median,
        "measured_fastest_s": min(samples),
        "measured_slowest_s": max(samples),
        "repeats": len(samples),
        "predicted_s": predicted.wall.expected / steps,
        "predicted_low_s": predicted.wall.low / steps,
        "predicted_high_s": predicted.wall.high / steps,
        "error": predicted.wall.expected / steps / median - 1,
        "error_balanced_routing": balanced.wall.expected / steps / median - 1,
        "error_of_fastest": predicted.wall.low / steps / min(samples) - 1,
        "fresh_bytes": predicted.fresh_bytes // steps,
        "unpredicted_ops": dict(predicted.untimed),
        "families_s": {
            rate: band.expected / steps for (_, rate), band in list(predicted.by_rate.items())[:6] if band.expected
        },
    }


def record_of(calibration: Calibration, rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    fits = {
        row["stage"]: fitted([FitPoint(samples_s=(row["measured_s"],), predicted_s=row["predicted_s"])])
        for row in rows
        if row["mode"] == REFERENCE
    }
    factors = {stage: fit.factor_at(1.0) for stage, fit in fits.items()}  # of one point, the same for every length
    for row in rows:
        factor = factors.get(row["stage"])
        row["held_out"] = row["mode"] != REFERENCE
        row["error_after_reference"] = None if factor is None else (1 + row["error"]) * factor - 1
    held_out = [row for row in rows if row["held_out"]]
    return {
        "device": calibration.device,
        "threads": calibration.threads,
        "clock": options.clock,
        "library_versions": dict(calibration.library_versions),
        "reference": REFERENCE,
        "reference_factors": factors,
        "microbenchmarks_alone": verdict_of([row["error"] for row in held_out]),
        "with_reference": verdict_of(
            [row["error_after_reference"] for row in held_out if row["error_after_reference"] is not None]
        ),
        "rows": rows,
    }


def verdict_of(errors: list[float]) -> dict[str, Any] | None:
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    median, worst = statistics.median(sizes), sizes[-1]
    return {
        "median_error": median,
        "worst_error": worst,
        "reached": median <= MEDIAN_GOAL and worst <= WORST_GOAL,
        "count": len(sizes),
    }


if __name__ == "__main__":
    sys.exit(main())
