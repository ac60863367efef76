"""Run every `llm-perf-opt` command that the pages show, each in a folder of its own that holds what the command names.

    python scripts/page_commands.py REPOSITORY [PAGE ...]

A command that leaves with another code than 0 is an error. Commands with placeholders are syntax, not commands; those
that need a GPU, released weights or minutes are left out by name, with the reason; FIRST_HOUR_SLOW=1 runs the slow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = {
    "device=cuda": "needs a GPU",
    "model=released": "needs the released weights",
    "--times timed/": "needs the trace of a real run",
}
SLOW = {
    "devices calibrate": "measures for minutes",
    "--tracer hooks": "runs the full-size model for real",
    "--tracer profiler": "runs the full-size model for real",
    "workload.image=scans/": "runs the full-size model for real",
    "workload.mode=base,gundam": "runs the full-size model for real",
    "profile device.devices=": "runs the full-size model for real",
    "export deepseek-ocr": "exports at full size, for minutes",
}
PREPARED = ("other-run", "before", "after", "hooks", "timed")
TOOLS = ("jq", "dot")


@dataclass(frozen=True)
class Shown:
    page: str
    line: str


def shown_commands(repository: Path, pages: list[str]) -> list[Shown]:
    """Every distinct command line, in the order of the pages; comments are cut off, placeholders left out."""
    files = [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]
    found: dict[str, Shown] = {}
    for file in files:
        name = str(file.relative_to(repository))
        if pages and name not in pages:
            continue
        for block in re.findall(r"```sh\n(.*?)```", file.read_text("utf-8"), re.DOTALL):
            for line in block.splitlines():
                command = re.sub(r"\s{2,}#.*$", "", line).strip()
                if command.startswith("llm-perf-opt ") and not re.search(
                    r"\[[A-Zo-]|\b[A-Z_]{3,}\b(?!=)", _unquoted(command)
                ):
                    found.setdefault(command, Shown(name, command))
    return list(found.values())


def _unquoted(command: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", command)


def reason_to_leave_out(command: str) -> str | None:
    table = LEFT_OUT if os.environ.get("FIRST_HOUR_SLOW") else {**LEFT_OUT, **SLOW}
    for part, reason in table.items():
        if part in command:
            return reason
    for tool in TOOLS:
        if re.search(rf"\|\s*{tool}\b", command) and shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


def prepare(store: Path) -> None:
    """Everything that a command may name: traces, a page, scans, a model folder, devices."""
    trace = ["llm-perf-opt", "trace", "deepseek-ocr", "--image", "1240x1754"]
    subprocess.run([*trace, "--out", str(store / "run")], check=True, capture_output=True)
    subprocess.run([*trace, "--mode", "base", "--out", str(store / "weightless")], check=True, capture_output=True)
    shutil.copytree(store / "weightless", store / "real")
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
    for name in ("my.toml", "my-devices.toml"):
        template = subprocess.run(
            ["llm-perf-opt", "devices", "template", "my-card"], check=True, capture_output=True, text=True
        )
        (store / name).write_text(template.stdout)
    calibrate = ["llm-perf-opt", "devices", "calibrate", "--smoke", "--out", str(store / "machine.json")]
    subprocess.run(calibrate, check=True, capture_output=True)


def folder_for(command: str, store: Path, place: Path) -> Path:
    """A fresh folder with what the command reads; what it writes is not there yet."""
    folder = Path(tempfile.mkdtemp(dir=place))
    written = set(re.findall(r"(?:--out |run\.folder=|> ?)([\w.-]+)/?(?=\s|$)", command))
    for item in store.iterdir():
        if item.name in written:
            continue
        if re.search(rf"(?<![\w.-]){re.escape(item.name)}(?![\w-])", command):
            (shutil.copytree if item.is_dir() else shutil.copy)(item, folder / item.name)
    if "docs/" in command:
        (folder / "docs").mkdir()
    return folder


def run(shown: Shown, store: Path, place: Path) -> str | None:
    """The error of a command that does not do what the text says."""
    folder = folder_for(shown.line, store, place)
    started = time.perf_counter()
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shown.line], cwd=folder, capture_output=True, text=True)
    print(f"   {time.perf_counter() - started:6.1f} s  {shown.line}", flush=True)
    if done.returncode == 0:
        return None
    return f"{shown.page}: {shown.line}\nexit code {done.returncode}\n{done.stderr[-2000:]}"


def main() -> None:
    repository, *pages = sys.argv[1:]
    commands = shown_commands(Path(repository), pages)
    with tempfile.TemporaryDirectory() as scratch:
        store, place = Path(scratch) / "store", Path(scratch) / "place"
        store.mkdir()
        place.mkdir()
        prepare(store)
        wanted = []
        for shown in commands:
            reason = reason_to_leave_out(shown.line)
            if reason is None:
                wanted.append(shown)
            else:
                print(f"   left out ({reason}): {shown.line}")
        with ThreadPoolExecutor(max_workers=2) as workers:
            errors = [error for error in workers.map(lambda shown: run(shown, store, place), wanted) if error]
    if errors:
        sys.exit("\n\n".join(errors))
    print(f"   {len(wanted)} commands of {len(commands)} ran")


if __name__ == "__main__":
    main()
