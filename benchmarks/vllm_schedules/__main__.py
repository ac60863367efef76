"""Record the real engine's schedules, or compare recorded ones with a replay.

python -m benchmarks.vllm_schedules record [CASE ...]   with the vLLM that is found; 10 s for each case
python -m benchmarks.vllm_schedules check               recorded runs of that version, replayed; keeps what it found
"""

from __future__ import annotations

import sys

from benchmarks.vllm_schedules.cases import FOLDER, in_vllm
from benchmarks.vllm_schedules.recorded import Comparison, compare, read, write_compared
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.process import EngineProcess


def record(cases: list[str]) -> None:
    in_vllm("benchmarks.vllm_schedules.real_engine", *cases)


def check() -> None:
    environment = find()
    files = sorted((FOLDER / environment.release).glob("*.json"))
    if not files:
        raise UsageError(
            f"There are no recorded schedules of vLLM {environment.release}.",
            why=f"{FOLDER} has none",
            fix="record them: python -m benchmarks.vllm_schedules record",
        )
    comparisons = []
    with EngineProcess(environment) as process:
        for file in files:
            comparisons.append(compare(read(file), process))
            print(line(comparisons[-1]), flush=True)
    write_compared(environment.release, comparisons)
    steps, entries = (
        sum(comparison.steps for comparison in comparisons),
        sum(comparison.entries for comparison in comparisons),
    )
    print(f"{len(files)} cases, {steps:,} steps, {entries:,} entries")


def line(result: Comparison) -> str:
    said = "identical" if result.first_difference is None else f"DIFFERENT: {result.first_difference}"
    return (
        f"{result.case:18} {said}; {result.steps:,} steps, {result.entries:,} entries, "
        f"{result.preemptions} preemptions; largest difference of a request's time {result.largest_time_error_s:g} s"
    )


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "record":
        record(rest)
    else:
        check()
