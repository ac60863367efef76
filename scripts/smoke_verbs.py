"""Run every verb once on a tiny model and check the exit code and one thing that it prints or writes.

    python -m scripts.smoke_verbs [--extras all|none] [PYTHON]

PYTHON is an interpreter with the package installed (default: this one). With `--extras none` the package has no extras:
what needs one must exit 1 and name the exact pip command, and everything else must work. The first commands are started
as users start them; the others are forks of a process that has imported torch (`scripts/gate/warm_python.py`), which
takes half as long. Fails at the end, with every step that did not do what it should.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.gate.warm_python import warm_python

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
}
RECORDING = {
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16bf16", "ts": 100 * row, "dur": 40, "pid": 0, "tid": 7}
        for row in range(8)
    ],
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
}
STUDY = {
    "name": "tiny",
    "models": [{"model": "deepseek-ocr-tiny", "mode": "base"}],
    "deployments": {"weights": ["checkpoint", "fp8"]},
    "gpus": ["h100-sxm", "l40s"],
}
TINY = "deepseek-ocr-tiny --mode base"
NOT_OF_ALL = {"llm-perf-opt[ray]"}  # an extra that `all` leaves out: a cluster is asked for by name
LONGEST_S = 300


@dataclass(frozen=True)
class Step:
    """A command, what its output must hold, how it ends, and the extra without which it must refuse."""

    command: str
    shows: str  # a regular expression, in stdout, or in the file that the command writes; in stderr, if it must fail
    code: int = 0
    extra: str | None = None
    file: str | None = None
    without: str | None = None  # the command that is tried without the extra, if it is another one
    is_refused: bool = True  # without the extra: exit 1; False: the answer comes in part, and names the pip command
    has_cache: bool = False  # also where a gate turns it off: traces that ship with the package are found with one

    @property
    def verb(self) -> str:
        return self.command.split()[0]


STEPS = (
    Step("doctor", r"torch +2\.13"),
    Step("models", r"deepseek-ocr-tiny"),
    Step("devices list", r"h100-sxm"),
    Step("devices show h100-sxm", r"NVIDIA H100"),
    Step("devices cluster 8xh100-sxm", r"all-reduce .*nvlink-4"),
    Step("devices template", r"peak_tflops_dense"),
    Step("devices calibrate --smoke --threads 1 --out machine.json", r'"schema_version"', file="machine.json"),
    Step("study study.yaml --out points --workers 1", r"(?m)^ +4 +4 +0 +0 ", extra="study"),
    Step(f"trace {TINY} --out run", r"(?m)^decode .* 0$"),
    Step("graph run --format text", r"DeepseekV2"),
    Step("graph run --format text --only attention", r"(?m)^Only attention, "),
    Step("graph run --out page.html", r"<html", file="page.html"),
    Step("graph run --out picture.svg", r"<svg", file="picture.svg"),
    Step("report run", r"(?m)^total "),
    Step(f"report {TINY} --gpus h100-sxm --out report.html", r"How fast does a server run it", file="report.html"),
    Step("compare run run", r"(?m)^decode .* =$"),
    Step("trace run --device h100-sxm", r"lower bound"),
    Step("advise run --device h100-sxm", r"(?m)^lower bound "),
    Step("trace run --device h100-sxm --rates tables", r"Where kernel times come from", extra="kernels"),
    Step("trace run --device h100-sxm --measured tpot=9ms", r"Corrected by measurement"),
    Step("cost run --sources counted,torch-counter,closed-form", r"FLOPs"),
    Step("sweep deepseek-ocr-tiny --crops 1x1,2x1", r"(?m)^2x1 "),
    Step(f"sweep {TINY} --users 1 --input 1k..2k --traces 12", r"(?m)^decode +1 "),
    Step("serve deepseek-ocr-tiny --page 90x130 --output 8 --users 2 --gpus h100-sxm", r"serves 2 users: TTFT "),
    Step("train meta-llama/Llama-3.2-1B --gpus h100-sxm --recompute full", r"tokens/s .* a step of", has_cache=True),
    Step("cache where", r"llm-perf-opt|off"),
    Step("tables list", r"aiconfigurator-core .* tables|No tables of measured kernels"),
    Step("engines install --help", r"Install the engine"),
    Step("ask points failures --json", r"No point of the study", extra="study"),
    Step("join run recording.json", r"Attributed: 100 %"),
    Step(
        f"export {TINY} --part projector --check export --load-weights random --out parts",
        r"projector\.pt2 .* 0\.0e\+00",
    ),
    Step("trace llama --prompt-tokens 16 --out other", r"(?m)^decode .* 0$", extra="trace"),
    Step("graph run --out picture.png", r"PNG", extra="png", file="picture.png"),
    Step(f"trace {TINY} --tracer torchlens", r"(?m)^decode ", extra="torchlens"),
    Step(
        "trace llama --prompt-tokens 16 --tracer hooks --load-weights llama",
        r"(?m)^decode ",
        extra="weights",
        without=f"trace {TINY} --tracer hooks --load-weights llama",  # the folder itself needs transformers as well
    ),
    Step(
        f"export {TINY} --part projector --check onnx --check onnxruntime",
        r"onnxruntime",
        extra="onnx",
        is_refused=False,
    ),
    Step(
        "train meta-llama/Llama-3.2-1B --method lora:8 --gpus rtx-4090 --recompute full --verbose",
        r"is counted in a weightless step",
        extra="train",
        is_refused=False,
        has_cache=True,
    ),
    Step("cost run --sources counted,fvcore", r"fvcore", extra="fvcore", is_refused=False),
    Step(
        "profile model=deepseek-ocr-tiny workload.image=90x130 run=quick run.folder=timed/",
        r"prefill",
        extra="profile",
    ),
)

FIRST = 1 + next(index for index, step in enumerate(STEPS) if "--out run" in step.command)  # the others read that trace


def prepare(folder: Path) -> None:
    """A folder of a Hugging Face model with weights, all of them 0 in bfloat16, and a recording of eight kernels."""
    (folder / "recording.json").write_text(json.dumps(RECORDING))
    (folder / "study.yaml").write_text(json.dumps(STUDY))  # JSON is YAML
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
    header: dict[str, object] = {}
    end = 0
    for name, shape in llama_tensors():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "llama" / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def llama_tensors() -> list[tuple[str, list[int]]]:
    """Name and shape of every tensor of that model."""
    hidden, inner, words = 64, 128, 1000
    tensors = [("model.embed_tokens.weight", [words, hidden])]
    for layer in range(2):
        path = f"model.layers.{layer}"
        tensors += [(f"{path}.self_attn.{name}_proj.weight", [hidden, hidden]) for name in "qkvo"]
        tensors += [(f"{path}.mlp.{name}_proj.weight", [inner, hidden]) for name in ("gate", "up")]
        tensors += [(f"{path}.mlp.down_proj.weight", [hidden, inner])]
        tensors += [(f"{path}.{name}_layernorm.weight", [hidden]) for name in ("input", "post_attention")]
    return [*tensors, ("model.norm.weight", [hidden]), ("lm_head.weight", [words, hidden])]


def problem_of(
    step: Step, python: str | Path, folder: Path, extras: str, environment: Mapping[str, str] = os.environ
) -> str | None:
    """What the step did wrong, or None."""
    is_without = step.extra is not None and extras == "none"
    asked = step.without if is_without and step.without else step.command
    command = [str(python), "-P", "-m", "llm_perf_opt", *asked.split()]
    if step.has_cache:
        environment = {**environment, "LLM_PERF_OPT_CACHE": str(folder / "cache")}
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LONGEST_S} s"
    said = f"exit code {ran.returncode}: {(ran.stderr or ran.stdout)[-400:].strip()}"
    if "Traceback" in ran.stderr:
        return f"a traceback, {said}"
    if is_without:
        return None if _names_extra(step, ran) else f"should name the extra {step.extra!r}, {said}"
    if ran.returncode != step.code:
        return said
    where, shown = ("stderr", ran.stderr) if step.code else ("stdout", ran.stdout)
    if step.file is not None:
        where, written = step.file, folder / step.file
        shown = written.read_bytes().decode("utf-8", "replace") if written.exists() else ""
    if not re.search(step.shows, shown):
        return f"does not show {step.shows!r} in {where}: {shown[:400]}"
    asks = [name for name in re.findall(r"pip install (\S+)", shown) if name.strip("'\"") not in NOT_OF_ALL]
    return f"asks for {asks[0]}, which is installed" if asks and extras == "all" else None


def _names_extra(step: Step, ran: subprocess.CompletedProcess[str]) -> bool:
    said = " ".join((ran.stdout + ran.stderr).replace('"', "'").split())  # on a terminal a command may be broken
    return ran.returncode == int(step.is_refused) and f"pip install 'llm-perf-opt[{step.extra}]'" in said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", choices=("all", "none"), default="all")
    parser.add_argument("python", nargs="?", default=sys.executable)
    asked = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", NO_COLOR="1", COLUMNS="160")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool, warm_python(asked.python) as warm:
        prepare(Path(name))

        def is_right(step: Step) -> bool:
            began = time.perf_counter()
            python = asked.python if step in STEPS[:FIRST] else str(warm / "python")
            problem = problem_of(step, python, Path(name), asked.extras)
            line = f"   {time.perf_counter() - began:5.1f} s  {step.command}"
            print(line if problem is None else f"{line}\n      FAILED: {problem}", flush=True)
            return problem is None

        right = list(pool.map(is_right, STEPS[:FIRST]))
        right += pool.map(is_right, STEPS[FIRST:-1])
        right.append(is_right(STEPS[-1]))  # the timed one alone, or its times do not add up
    print(f"   {sum(right)} of {len(STEPS)} commands did what they should (extras: {asked.extras}).")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
