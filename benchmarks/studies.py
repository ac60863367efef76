"""What a study costs next to the work itself, and how it grows: the table of docs/evidence/studies.md.

    python -m benchmarks.studies overhead [--models 8]     against bare processes and bare Ray tasks, in one run
    python -m benchmarks.studies scale [--points 1000000]  a function at this many points, on two processes

Overhead compares the same task functions: a study against a pool, or Ray, that only calls them.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import llm_perf_opt as lpo
from benchmarks import runner
from llm_perf_opt.api.study import study
from llm_perf_opt.sweeps.studies.run_task import run_task
from llm_perf_opt.sweeps.studies.study import read_study
from llm_perf_opt.sweeps.studies.study_run import installed_versions
from llm_perf_opt.sweeps.studies.tasks import StudyTask, study_tasks

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 32,
    "vocab_size": 128256, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
DEVICES = ("h100-sxm", "h200-sxm", "a100-sxm-80g", "l40s", "l4", "a10", "b200-sxm", "rtx-4090")
WORKERS = 2
timed = partial(runner.seconds_of, clock=time.perf_counter)


def written(folder: Path, **document: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(json.dumps(document))
    return path


def cpu_s() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def bare_processes(tasks: tuple[StudyTask, ...], out: str) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=context) as pool:
        list(pool.map(partial(run_task, root=out, run="00000000"), tasks))


def bare_ray(tasks: tuple[StudyTask, ...], out: str) -> None:
    import ray

    own = {"address": "local", "include_dashboard": False, "log_to_driver": False}
    ray.init(num_cpus=WORKERS, object_store_memory=128 * 2**20, **own)
    try:
        remote = ray.remote(num_cpus=1)(lambda task: run_task(task, out, run="00000000"))
        ray.get([remote.remote(task) for task in tasks])
    finally:
        ray.shutdown()


def overhead(models: int, rounds: int) -> None:
    """Rounds alternate, so that a machine that slows down slows all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(models):
            place = folder / "models" / f"m{number:02}"
            place.mkdir(parents=True)
            (place / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 24 + number}))
        file = written(
            folder,
            name="overhead",
            models=["models/*"],
            workload={"users": 4, "input": 1024},
            deployments={"plan": ["one device", "tp2", "tp4", "pp2"], "weights": ["checkpoint", "fp8"]},
            gpus=list(DEVICES[:4]),
        )
        tasks = study_tasks(read_study(file), installed_versions())
        runs: dict[str, Callable[[str], object]] = {
            "bare processes": partial(bare_processes, tasks),
            "study, local": lambda out: study(file, out=out, workers=WORKERS),
            "bare Ray tasks": partial(bare_ray, tasks),
            "study, Ray": lambda out: study(file, out=out, engine="ray", workers=WORKERS),
        }
        seconds: dict[str, list[float]] = {run: [] for run in runs}
        for turn in range(rounds):
            for number, (run, work) in enumerate(runs.items()):
                seconds[run].append(timed(partial(work, str(folder / f"out-{turn}-{number}"))))
                print(f"  {run}: {seconds[run][-1]:.1f} s", file=sys.stderr, flush=True)
        medians = {run: median(values) for run, values in seconds.items()}
        print(f"{len(tasks)} tasks, {sum(task.points for task in tasks):,} points, median of {rounds}")
        for run, value in medians.items():
            print(f"| {run} | {value:.1f} s |")
        print(f"local: {medians['study, local'] / medians['bare processes']:.3f}")
        print(f"Ray: {medians['study, Ray'] / medians['bare Ray tasks']:.3f}")


def saved_function(folder: Path) -> Path:
    (folder / "llama").mkdir()
    (folder / "llama/config.json").write_text(json.dumps(LLAMA))
    path = folder / "llama.function.json"
    lpo.trace(str(folder / "llama")).over(batch=(1, 256), context=(1024, 40_000)).save(path)
    return path


def scale(points: int, function: Path | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = function or saved_function(folder)
        contexts = points // len(DEVICES) // 250
        step = max(1, 30_000 // contexts)
        file = written(
            folder,
            name="scale",
            models=[str(source.resolve())],
            workload={"users": "range(1,251)", "input": f"range(1024,{1024 + contexts * step},{step})"},
            gpus=list(DEVICES),
            prices=dict.fromkeys(DEVICES, 2.0),
        )
        before, out = cpu_s(), folder / "out"
        wall = timed(lambda: study(file, out=out, workers=WORKERS))
        spent = cpu_s() - before
        size = sum(path.stat().st_size for path in out.rglob("*.parquet"))
        asked = [timed(lambda: lpo.ask(out, "cheapest plan under 50 ms TPOT on l40s")) for _ in range(3)]
        every = [timed(lambda: lpo.ask(out, "highest throughput under 50 ms TPOT")) for _ in range(3)]
        rows = lpo.ask(out, "summary").rows
        print(f"points {rows[0][2]:,}, failed {rows[0][3]:,}")
        print(f"wall {wall:.1f} s, CPU {spent:.1f} s on {WORKERS} processes, {size / 1e6:.0f} MB")
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"a question of one device {median(asked):.2f} s, of all {median(every):.2f} s")
        print(f"largest process {largest:.2f} GiB")


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("what", choices=("overhead", "scale"))
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--function", type=Path, help="a saved function, in place of one that is made")
    words = parser.parse_args()
    if words.what == "overhead":
        overhead(words.models, words.rounds)
    else:
        scale(words.points, words.function)


if __name__ == "__main__":
    main()
