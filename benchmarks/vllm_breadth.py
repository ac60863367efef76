"""How many of vLLM's architectures run without weights at full size, and what stops the others.

    python -m benchmarks.vllm_breadth [NAME ...|stopped]    # resumes docs/data/vllm_breadth.json; tries these again
    python -m benchmarks.vllm_breadth --page                # writes docs/evidence/vllm-breadth.md from that file

Every architecture in vLLM's registry is tried once: one prefill and one decode step of text on one rank. Configurations
are the defaults of transformers' configuration class for that architecture, or one of the configurations among the
facts. A model whose encoder reads images or sound is built whole, and fed with text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, FACTS, table, write_atomically
from benchmarks.vllm_code import Case, figures_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import scratch_folder, write_whole
from llm_perf_opt.core.units import format_count
from llm_perf_opt.serving.engine_process.environment import EngineEnvironment, find
from llm_perf_opt.serving.engine_process.process import EngineProcess

FILE, PAGE = DOCS / "data" / "vllm_breadth.json", DOCS / "evidence" / "vllm-breadth.md"
# A word of the reason -> what it is; the first that is found decides.
KINDS = (
    ("no configuration", "no configuration: neither transformers nor the facts have one under that name"),
    ("has no stand-in", "a GPU kernel without a stand-in"),
    ("triton", "a Triton kernel outside any op"),
    ("DeepGEMM", "a library of GPU kernels that its constructor asks for"),
    ("cutlass", "a library of GPU kernels that its constructor asks for"),
    ("torch.cuda.Stream", "a CUDA stream of its own"),
    ("ended with code", "the process ended: it took longer than three minutes, or more memory than there is"),
    ("image processor", "it reads a processor's files while it is built"),
    ("has no attribute", "the default configuration lacks what vLLM reads"),
    ("", "the default configuration does not fit vLLM's class, or another error while it is built or run"),
)

RAN = ("architecture", "parameters", "prefill, FLOPs", "decode, FLOPs", "vLLM's estimate", "cache, B per token")
RAN += ("unpriced ops",)


def kind_of(reason: str) -> str:
    """What sort of obstacle a reason is."""
    return next(kind for word, kind in KINDS if word in reason)


def page(data: dict[str, Any]) -> str:
    models: dict[str, dict[str, Any]] = data["models"]
    ran = {name: model for name, model in models.items() if "stopped_by" not in model}
    stopped = {name: model["stopped_by"] for name, model in models.items() if "stopped_by" in model}
    told = sum("configuration" in model for model in models.values())
    whole = sum(not any(model["unpriced_ops"].values()) for model in ran.values())
    equal = sum(model["flops"] == model["estimate_flops"] for model in ran.values())
    lines = [
        "# Which of vLLM's models run weightless?",
        "",
        f"**{len(ran)} of the {data['architectures']} architectures of {data['engine']} run at full size**, of "
        f"{told} for which a configuration is known. In {whole} of them every op has a price. In {equal} the matrix "
        "FLOPs of prefill and decode equal vLLM's own estimate to the last one.",
        "",
        "Each is built whole on one rank, and runs a prefill of 128 text tokens and one decode step with "
        "`--code vllm`. Encoders of images and sound are built and not fed. Configurations are the defaults of "
        "transformers' class for the architecture, or those among the facts of the tests. Data: "
        "[`vllm_breadth.json`](../data/vllm_breadth.json), made by `python -m benchmarks.vllm_breadth`.",
        "",
        "## What stops the others",
        "",
        table(("obstacle", "architectures", "for example"), _obstacles(stopped), "lrl"),
        "",
        "## What ran",
        "",
        table(RAN, (_row(name, model) for name, model in ran.items()), "lrrrlr"),
        "",
    ]
    return "\n".join(lines)


def _obstacles(stopped: dict[str, str]) -> Iterator[tuple[object, ...]]:
    by_kind: dict[str, list[str]] = {}
    for name, reason in stopped.items():
        by_kind.setdefault(kind_of(reason), []).append(name)
    for kind, names in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        yield kind, len(names), ", ".join(f"`{name}`" for name in names[:3])


def _row(name: str, model: dict[str, Any]) -> tuple[object, ...]:
    flops, told = model["flops"], model["estimate_flops"]
    verdict = "none" if not any(told.values()) else "equal" if flops == told else "differs"
    counts = [format_count(flops[phase]) if phase in flops else "" for phase in ("prefill", "decode")]
    unpriced = sum(model["unpriced_ops"].values()) or ""
    cache = format_count(model["cache_bytes_per_token"])
    return f"`{name}`", format_count(model["parameters"]), *counts, verdict, cache, unpriced


_LIST = "import json, vllm.model_executor.models.registry as r; print(json.dumps(sorted(r._VLLM_MODELS)))"
_LONGEST_S = 180.0
_PROMPT_TOKENS = 128
_NO_CONFIGURATION = "no configuration: transformers has no class of that name, and the facts have no such folder"


def architectures(environment: EngineEnvironment) -> list[str]:
    """Every name in vLLM's registry."""
    said = subprocess.run([str(environment.python), "-c", _LIST], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(said.stdout.strip().splitlines()[-1])
    return names


def fact_configurations() -> dict[str, Path]:
    """Architecture -> a folder with a real configuration of it."""
    folders: dict[str, Path] = {}
    for file in sorted(FACTS.glob("*/configs/*/config.json")):
        stored = json.loads(file.read_text())
        for name in stored.get("architectures") or ():
            if "quantization_config" not in stored:
                folders.setdefault(name, file.parent)
    return folders


def default_configuration(name: str) -> dict[str, Any] | None:
    """Defaults of the class that transformers names for an architecture; None: it has none."""
    import transformers

    model = getattr(transformers, name, None)
    config = getattr(model, "config_class", None)
    if config is None:
        return None
    stored: dict[str, Any] = config().to_dict()
    return {**stored, "architectures": [name], "model_type": config.model_type}


class Breadth:
    """Tries architectures one after another in one process of vLLM, which is opened again when it ends."""

    def __init__(self, environment: EngineEnvironment) -> None:
        self._environment = environment
        self._process: EngineProcess | None = None
        self._facts = fact_configurations()

    def close(self) -> None:
        if self._process is not None:
            self._process.__exit__(None, None, None)
            self._process = None

    def tried(self, name: str) -> dict[str, Any]:
        """The figures of an architecture, or what stops it."""
        with scratch_folder() as scratch:
            folder = self._folder(name, scratch)
            if folder is None:
                return {"stopped_by": _NO_CONFIGURATION}
            origin = "facts" if folder.parent != scratch else "defaults of transformers"
            try:
                return {"configuration": origin, **self._traced(folder, scratch)}
            except PerfOptError as error:
                return {"configuration": origin, "stopped_by": _reason(error)}

    def _folder(self, name: str, scratch: Path) -> Path | None:
        if name in self._facts:
            return self._facts[name]
        stored = default_configuration(name)
        if stored is None:
            return None
        folder = scratch / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(stored, default=str))
        return folder

    def _traced(self, folder: Path, scratch: Path) -> dict[str, Any]:
        if self._process is None:
            self._process = EngineProcess(self._environment).__enter__()
        guard = threading.Timer(_LONGEST_S, self._process._process.kill)
        guard.start()
        try:
            case = Case(name=folder.name, folder=folder, batch=1, prompt_tokens=_PROMPT_TOKENS)
            answer, graphs = case.traced(self._process, scratch)
        except PerfOptError as error:
            if "ended with code" in error.what:
                self.close()
            raise
        finally:
            guard.cancel()
        figures = {graph.phase: figures_of(graph) for graph in graphs}
        first = next(iter(figures.values()))
        return {
            "parameters": first["parameters"],
            "flops": {phase: sum(figures_of_phase["flops"].values()) for phase, figures_of_phase in figures.items()},
            "estimate_flops": {
                phase: sum(figures_of_phase["estimate_flops"].values()) for phase, figures_of_phase in figures.items()
            },
            "cache_bytes_per_token": first["cache"]["bytes_per_token"],
            "unpriced_ops": {phase: figures_of_phase["unpriced_ops"] for phase, figures_of_phase in figures.items()},
            "seconds": round(answer.configure_s + answer.run_s, 2),
        }


def _reason(error: PerfOptError) -> str:
    """One line without paths and addresses, so that like reasons are equal."""
    text = f"{error.what} {error.why or ''}" if "could not do" not in error.what else str(error.why)
    text = re.sub(r"1 validation error for \S+\s+Value error, |\[type=.*", "", text)
    text = re.sub(r"(/[\w.+-]+){2,}/", "", text)
    return re.sub(r"\s+", " ", text).strip()[:300]


def main() -> None:
    """Try what has no result yet, and those that are named; or write the page."""
    if sys.argv[1:] == ["--page"]:
        write_atomically(PAGE, page(json.loads(FILE.read_text())))
        return
    environment = find()
    kept: dict[str, Any] = json.loads(FILE.read_text())["models"] if FILE.exists() else {}
    again = set(sys.argv[1:])
    if "stopped" in again:
        again |= {name for name, model in kept.items() if "configuration" in model and "stopped_by" in model}
    names = architectures(environment)
    breadth = Breadth(environment)
    try:
        for name in names:
            if name in kept and name not in again:
                continue
            kept[name] = breadth.tried(name)
            sys.stderr.write(f"{name}: {kept[name].get('stopped_by', 'runs')[:150]}\n")
            _write(environment, names, kept)
    finally:
        breadth.close()
    _write(environment, names, kept)


def _write(environment: EngineEnvironment, names: list[str], kept: dict[str, Any]) -> None:
    ran = sum("stopped_by" not in model for model in kept.values())
    head = {"engine": f"vllm {environment.version}", "architectures": len(names), "tried": len(kept), "ran": ran}
    document = {**head, "models": {name: kept[name] for name in names if name in kept}}
    write_whole(FILE, [json.dumps(document, indent=1).encode(), b"\n"])


if __name__ == "__main__":
    main()
