"""Run every command that the shell blocks of the pages show, each in a folder that holds what the command names.

    python -m scripts.page_commands REPOSITORY [PAGE ...] [--chosen FILE] [--record FILE]

A line runs as a whole, pipes and all, on forks of one process that has imported torch and transformers; the commands of
README.md start as users start them. With `--chosen` only the lines in that JSON list run; `--record` keeps the seconds
of each. A line must leave with code 0, and one of ours must print something or write what it
says it writes; the first that does not ends the run. Lines with placeholders are forms to fill in; those that need a
GPU, released weights or minutes are left out by name, with the reason; FIRST_HOUR_SLOW=1 runs the slow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from scripts.gate.warm_python import CPU_SECONDS, PRELOADED, warm_python
from scripts.page_blocks import blocks

LEFT_OUT = {
    r"^python[\d.]* -m venv|^pip install|^bash scripts/set_up": "makes an environment, as this journey did",
    r"^python (-m )?benchmarks\b": "a benchmark, which takes minutes to hours",
    r"device=cuda": "needs a GPU",
    r"--traffic\b": "needs an environment with vLLM",
    r"--address auto": "needs a cluster that runs",
    r"^llm-perf-opt engines install": "makes an environment of gigabytes",
    r"model=released": "needs the released weights",
    r"model=path/to/": "needs a folder of that model",
    r"--times timed/": "needs the trace of a real run",
}
FORM = r"\[[A-Zo-]|\b[A-Z_]{3,}\b(?!=|\.md)"
SLOW = {
    r"devices calibrate": "measures for minutes",
    r"trace deepseek-ocr .*--tracer (hooks|profiler|torchlens)": "runs the full-size model for real",
    r"workload\.image=scans/": "runs the full-size model for real",
    r"workload\.mode=base,gundam": "runs the full-size model for real",
    r"profile device\.devices=": "runs the full-size model for real",
    r"export deepseek-ocr (?!--part projector )": "exports at full size, for minutes",
}
CONFIGS = Path(__file__).resolve().parent.parent / "tests" / "facts" / "deployment" / "configs"
PREPARED = ("other-run", "before", "after", "hooks", "timed")
TOOLS = ("jq", "dot")
STUDY = {  # with the names that the pages ask for
    "name": "chat",
    "models": [{"model": "deepseek-ocr-tiny", "image": "90x130", "name": "llama31-8b"}],
    "workload": {"users": [1, 2]},
    "gpus": ["h100-sxm", "l40s"],
    "prices": {"h100-sxm": 2.5, "l40s": 1.0},
}
WRITTEN = re.compile(r"(?:--out |--write |--page (?=\S+\.html)|run\.folder=|>>? ?)([\w./-]+)")


@dataclass(frozen=True)
class Shown:
    page: str
    line: str
    left_out: str | None


def shown_commands(repository: Path) -> list[Shown]:
    """Every command line in the order of the pages, with the reason if it is not to be run; comments are cut off."""
    shown = []
    for block in blocks(repository, "sh"):
        for line in block.body.replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s{2,})#.*$", "", line).strip()
            if command:
                shown.append(Shown(block.page, command, block.not_run or reason_to_leave_out(command)))
    return shown


def _unquoted(command: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", command)


def reason_to_leave_out(command: str) -> str | None:
    table = LEFT_OUT if os.environ.get("FIRST_HOUR_SLOW") else {**LEFT_OUT, **SLOW}
    for pattern, reason in table.items():
        if re.search(pattern, command):
            return reason
    if re.search(FORM, _unquoted(command)):
        return "a form to fill in"
    for tool in TOOLS:
        if re.search(rf"(^|\|\s*){tool}\b", command) and shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


def written_by(command: str) -> set[str]:
    """The files and folders that a command says it writes."""
    return {name.rstrip("/") for name in WRITTEN.findall(_unquoted(command))}


def prepare(store: Path, command: str) -> None:
    """Everything that a line may name: traces, a page, scans, a model folder, devices; `command` is the executable."""

    def ask(*words: str) -> str:
        done = subprocess.run([command, *words], cwd=store, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"llm-perf-opt {' '.join(words)} failed while the store was made:\n{done.stderr[-2000:]}")
        return done.stdout

    trace = ["trace", "deepseek-ocr", "--image", "1240x1754"]
    ask(*trace, "--out", "run")
    ask(*trace, "--mode", "base", "--out", "weightless")
    ask("cost", "run", "--out", "cost")
    for name in ("real", "base"):
        shutil.copytree(store / "weightless", store / name)
    for name in PREPARED:
        shutil.copytree(store / "run", store / name)
    from PIL import Image

    Image.new("RGB", (1240, 1754), "white").save(store / "page.png")
    (store / "scans").mkdir()
    for index in range(2):
        Image.new("RGB", (620, 877), "white").save(store / "scans" / f"{index}.png")
    folder = store / "path" / "to" / "folder"
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copytree(folder, store / "my-model")
    shutil.copytree(CONFIGS / "llama31-8b-fp8ct", store / "my-fp8-checkpoint")
    (store / "study.yaml").write_text(json.dumps(STUDY))  # JSON is YAML
    ask("study", "study.yaml", "--out", "results")
    template = ask("devices", "template", "my-card")
    for name in ("my.toml", "my-devices.toml", "machine.toml"):
        (store / name).write_text(template)
    ask("devices", "calibrate", "--smoke", "--out", "machine.json")


def folder_for(command: str, store: Path, place: Path) -> Path:
    """A fresh folder with what the command reads; what it writes is not there yet."""
    folder = Path(tempfile.mkdtemp(dir=place))
    written = written_by(command)
    for item in store.iterdir():
        if item.name in written:
            continue
        if re.search(rf"(?<![\w.-]){re.escape(item.name)}(?![\w-])", command):
            (shutil.copytree if item.is_dir() else shutil.copy)(item, folder / item.name)
    if "docs/" in command:
        (folder / "docs").mkdir()
    return folder


@dataclass(frozen=True)
class Runner:
    """Where commands run: a store of what they read, a place for their folders, the folder of a warm Python."""

    store: Path
    place: Path
    warm: Path

    def run(self, shown: Shown) -> tuple[float, str | None]:
        """Seconds of CPU, and what is wrong with a command that does not do what the text says, with its output."""
        folder = folder_for(shown.line, self.store, self.place)
        starts_itself = shown.page == "README.md"
        path = os.environ["PATH"] if starts_itself else f"{self.warm}{os.pathsep}{os.environ['PATH']}"
        times = folder.with_suffix(".times")
        began = time.perf_counter()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", shown.line],
            cwd=folder,
            env={**os.environ, "PATH": path, CPU_SECONDS: str(times)},
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"   {time.perf_counter() - began:6.1f} s  {shown.line}", flush=True)
        seconds = time.perf_counter() - began
        if times.exists():  # what forks used is known whatever else the machine did
            seconds = sum(map(float, times.read_text("utf-8").split()))
            times.unlink()
        missing = [name for name in written_by(shown.line) if not (folder / name).exists()]
        shutil.rmtree(folder)
        return seconds, problem_of(shown, done, missing)


def problem_of(shown: Shown, done: subprocess.CompletedProcess[str], missing: list[str]) -> str | None:
    if done.returncode:
        wrong = f"left with exit code {done.returncode}"
    elif missing:
        wrong = f"wrote no {', '.join(missing)}"
    elif "llm-perf-opt " in shown.line and not done.stdout.strip() and not written_by(shown.line):
        wrong = "printed nothing"
    else:
        return None
    return f"{shown.page}: {shown.line}\n{wrong}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def is_full_size(shown: Shown) -> bool:
    return re.search(r"\bdeepseek-ocr(?!-)", shown.line) is not None


def run_all(wanted: list[Shown], workers: int = 2, preloaded: tuple[str, ...] = PRELOADED) -> dict[str, float]:
    """Seconds by line. Those that take long begin first, so that all end together; the first that fails ends it."""
    took: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(max_workers=workers) as pool,
        warm_python(sys.executable, preloaded) as warm,
    ):
        store, place = Path(scratch) / "store", Path(scratch) / "place"
        store.mkdir()
        place.mkdir()
        prepare(store, str(warm / "llm-perf-opt"))
        runner = Runner(store, place, warm)
        longest_first = sorted(wanted, key=lambda shown: (not is_full_size(shown), "cost " not in shown.line))
        line_of = {pool.submit(runner.run, shown): shown.line for shown in longest_first}
        for done in as_completed(line_of):
            took[line_of[done]], error = done.result()
            if error is not None:
                pool.shutdown(cancel_futures=True)
                sys.exit(error)
    return took


def runnable(repository: Path) -> dict[str, Shown]:
    """Line -> the first page that shows it, of every line that a gate may run."""
    return {shown.line: shown for shown in reversed(shown_commands(repository)) if shown.left_out is None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--chosen", type=Path, help="a JSON list of the lines to run")
    parser.add_argument("--record", type=Path, help="keep the seconds of each line here")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    commands = shown_commands(options.repository)
    for line, reason in {shown.line: shown.left_out for shown in commands if shown.left_out is not None}.items():
        print(f"   left out ({reason}): {line}")
    wanted = [
        shown for shown in runnable(options.repository).values() if not options.pages or shown.page in options.pages
    ]
    if options.chosen:
        chosen = set(json.loads(options.chosen.read_text("utf-8")))
        wanted = [shown for shown in wanted if shown.line in chosen]
    took = run_all(wanted, options.workers)
    if options.record:
        options.record.write_text(json.dumps(took), "utf-8")
    print(f"   {len(wanted)} commands of {len({shown.line for shown in commands})} ran")


if __name__ == "__main__":
    main()
