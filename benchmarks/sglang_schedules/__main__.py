"""Record SGLang's schedules, or compare recorded ones with a replay.

python -m benchmarks.sglang_schedules record [CASE ...]   with the SGLang that is found; 15 s for each case
python -m benchmarks.sglang_schedules check [CASE ...]    recorded runs of that version, replayed; keeps what it found
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.sglang_schedules.cases import CASES, FOLDER
from benchmarks.vllm_schedules.__main__ import line
from benchmarks.vllm_schedules.recorded import Comparison, compare, path_of, read, write_compared
from llm_perf_opt.serving.engine_process.environment import SGLANG, find
from llm_perf_opt.serving.engine_process.process import EngineProcess, environment_variables

TRIES = 4  # a request between two launches that follow at once has no place on a replay's clock


def record(cases: list[str]) -> None:
    variables = environment_variables(SGLANG)
    variables["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    command = [str(find(SGLANG).python), "-m", "benchmarks.sglang_schedules.real_engine"]
    for case in cases:
        for _ in range(TRIES):
            if subprocess.run([*command, case], env=variables).returncode == 0:
                break
        else:
            raise SystemExit(f"{case} was not recorded")


def check(cases: list[str]) -> list[Comparison]:
    environment = find(SGLANG)
    found = []
    for case in cases:
        with EngineProcess(environment) as process:  # SGLang's settings are for a whole process
            found.append(compare(read(path_of(environment.release, case, FOLDER)), process))
        print(line(found[-1]), flush=True)
    write_compared(environment.release, found, FOLDER)
    print(
        f"{len(found)} cases, {sum(one.steps for one in found):,} steps, {sum(one.entries for one in found):,} entries"
    )
    return found


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    {"record": record, "check": check}[verb](rest or list(CASES))
