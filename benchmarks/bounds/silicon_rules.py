"""What is wrong with the records of `silicon_sample.csv`, rule by rule; the first line of each says what is known.

A rule takes a row and the run that was read from it so far. Where a record leaves a choice, the choice that makes the
run easier is taken, so that no bound is higher for what is not known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.bounds.measured_run import MeasuredRun, ServedPlan

Row = Mapping[str, str]
Rule = Callable[[Row, MeasuredRun], MeasuredRun]
TableRule = Callable[[Sequence[Row], Sequence[MeasuredRun]], list[MeasuredRun]]

AGGREGATED = "agg"
INFERENCEX = "InferenceX dump"
GPUS_OF_A_NODE = 8
MEAN_OF_RANGE = 0.9  # lengths are drawn evenly between 0.8 of the nominal length and the whole of it
DRAFTED_FASTER = 1.4  # by which the same configuration differs where one of the runs drafted
DRAFTS = 3  # the most that the benchmark's recipes draft
DRAFTING_MODELS = frozenset({"deepseek-r1", "glm-5"})  # checkpoints with a layer that predicts a further token


def expert_parallelism_counted_once(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Aggregated InferenceX rows multiply expert parallelism in twice: `tp8 ep8` is 8 GPUs, not 64."""
    if row["mode"] != AGGREGATED or row["origin"] != INFERENCEX:
        return run
    tensor, data = number(row, "tp_size"), number(row, "attention_dp_size")
    expert_tensor, experts = number(row, "moe_tp_size"), number(row, "moe_ep_size")
    gpus = math.isqrt(tensor * data)
    if gpus * gpus != tensor * data or gpus == 1:
        return run
    is_squared = expert_tensor == experts == gpus
    is_squared_data = tensor == data == gpus and (expert_tensor, experts) == (1, gpus * gpus)
    if not is_squared and not is_squared_data:
        return run
    plan = ServedPlan(tensor=1 if data > 1 else gpus, experts=gpus)
    return replace(run, prefill_gpus=gpus, decode_gpus=gpus, prefill_plan=plan, decode_plan=plan)


def attention_parallelism_left_blank(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Experts on more GPUs than attention means that attention ran data-parallel and the record says nothing of it."""
    if row["mode"] != AGGREGATED or row["origin"] == INFERENCEX:
        return run
    gpus = max(run.decode_gpus, number(row, "moe_tp_size") * number(row, "moe_ep_size"))
    return replace(run, prefill_gpus=gpus, decode_gpus=gpus)


def whole_system_labelled_aggregated(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Aggregated rows on 12 to 72 GPUs are whole disaggregated systems: all of their GPUs count for both phases."""
    is_system = row["mode"] == AGGREGATED and row["origin"] == INFERENCEX and run.decode_gpus > GPUS_OF_A_NODE
    return replace(run, is_whole_system=True, prefill_plan=ServedPlan(), decode_plan=ServedPlan()) if is_system else run


def batch_of_one_replica(row: Row, run: MeasuredRun) -> MeasuredRun:
    """A replica held its batch times its attention ranks, where that is below the concurrency or none is recorded."""
    if row["mode"] != AGGREGATED:
        return run
    held = number(row, "batch_size") * number(row, "attention_dp_size")
    return replace(run, in_flight=held if run.in_flight is None else min(held, run.in_flight))


def concurrency_over_workers(row: Row, run: MeasuredRun) -> MeasuredRun:
    """The concurrency of a disaggregated system is spread over its decode workers, where their number is recorded."""
    if row["mode"] == AGGREGATED or not row["decode_num_workers"] or run.in_flight is None:
        return run
    return replace(run, in_flight=max(1, run.in_flight // number(row, "decode_num_workers")))


def workers_not_recorded(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Without the number of decode workers a worker's batch is unknown: one sequence is all that is certain."""
    if row["mode"] == AGGREGATED or row["decode_num_workers"]:
        return run
    return replace(run, in_flight=1)


def lengths_drawn_from_a_range(row: Row, run: MeasuredRun) -> MeasuredRun:
    """InferenceX draws prompt and output between 0.8 of the nominal length and the whole of it: 0.9 on average."""
    if row["origin"] != INFERENCEX:
        return run
    return replace(
        run,
        prompt_tokens=math.floor(MEAN_OF_RANGE * run.prompt_tokens),
        output_tokens=math.floor(MEAN_OF_RANGE * run.output_tokens),
    )


def precision_not_recorded(row: Row, run: MeasuredRun) -> MeasuredRun:
    """Rows without a precision serve the checkpoint as published, in bfloat16."""
    return run if row["precision"] else replace(run, precision="bf16")


ROW_RULES: tuple[Rule, ...] = (
    expert_parallelism_counted_once,
    attention_parallelism_left_blank,
    whole_system_labelled_aggregated,
    batch_of_one_replica,
    concurrency_over_workers,
    workers_not_recorded,
    lengths_drawn_from_a_range,
    precision_not_recorded,
)


def unmarked_drafts(rows: Sequence[Row], runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Of equal configurations of a model with a draft layer, those 1.4 times faster drafted 3 tokens, unmarked."""
    configurations = [_configuration(row, run) for row, run in zip(rows, runs, strict=True)]
    slowest: dict[object, float] = defaultdict(float)
    for configuration, run in zip(configurations, runs, strict=True):
        slowest[configuration] = max(slowest[configuration], run.tpot_s or 0)
    return [
        replace(run, drafts=DRAFTS)
        if run.model in DRAFTING_MODELS and (run.tpot_s or 0) * DRAFTED_FASTER < slowest[configuration]
        else run
        for configuration, run in zip(configurations, runs, strict=True)
    ]


def repeated_measurement(rows: Sequence[Row], runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """A row with the TTFT and TPOT of an earlier one is the same measurement: checked, but counted once in a median."""
    seen: set[tuple[str, str]] = set()
    marked = []
    for row, run in zip(rows, runs, strict=True):
        times = (row["ttft_ms"], row["tpot_ms"])
        marked.append(replace(run, is_repeat=times in seen))
        seen.add(times)
    return marked


TABLE_RULES: tuple[TableRule, ...] = (unmarked_drafts, repeated_measurement)


def number(row: Row, column: str) -> int:
    """A size as recorded; blank and 0 both mean that nothing is split so."""
    return int(row[column] or 1) or 1


def _configuration(row: Row, run: MeasuredRun) -> object:
    return (
        run.model,
        run.device,
        run.engine,
        run.precision,
        run.prefill_gpus,
        run.decode_gpus,
        *(row[column] for column in _SAME),
    )


_SAME = (
    "mode",
    "input_tokens",
    "output_tokens",
    "concurrency",
    "moe_tp_size",
    "moe_ep_size",
    "attention_dp_size",
    "decode_num_workers",
    "decode_attention_dp_size",
    "decode_moe_tp_size",
    "decode_moe_ep_size",
    "prefill_num_workers",
    "prefill_moe_ep_size",
)
