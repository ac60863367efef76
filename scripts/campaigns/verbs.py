"""The verbs of the command on a tiny model, run here or in a child process, and what must hold of their files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from llm_perf_opt import __main__ as entry
from llm_perf_opt.cli.app import main
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration
from llm_perf_opt.core.output_files import PREFIX
from llm_perf_opt.core.plugins import CALIBRATORS
from llm_perf_opt.measurements.profile import join

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100,
}  # fmt: skip
VERBS = {
    "trace": "trace tiny --prompt-tokens 4 --out run --force",
    "graph": "graph base --out graph.html --force",
    "cost": "cost base --out cost --force",
    "report": "report base --out report.html --force",
    "trace on a device": "trace base --device h100-sxm --json",
    "compare": "compare base base --json",
    "export": "export tiny --prompt-tokens 4 --part model.layers.0.mlp --check onnx --out export --force",
    "profile": "profile model=tiny run.folder=profile run.repeats=1 run.warmup=0 workload.prompt_tokens=4 "
    "workload.max_new_tokens=2 profiler.with_modules=true",
    "calibrate": "devices calibrate --smoke --out machine.json --force",
    "join": "join base recording.json --out join.html --force",
    "pages": "sweep deepseek-ocr-tiny --crops 1x1,2x1 --out pages.html --force",
    "sweep": "sweep tiny --users 2 --input 16..19 --out sweep.html --csv points.csv "
    "--save-function tiny.function.json --force",
    "serve": "serve tiny --gpus 2xh100-sxm --input 4 --output 2 --users 2 --write deploy --out serve.html --force",
    "train": "train tiny --gpus h100-sxm --seq 64 --micro-batch 1 --recompute full --write launched --force",
    "study": "study study.yaml --out studied --workers 1",
    "export with weights": "export tiny --prompt-tokens 4 --part model.layers.0.mlp --check onnx --load-weights random "
    "--out weighted --force",
    "trace under the profiler": "trace tiny --prompt-tokens 4 --tracer profiler --with-modules --out profiled --force",
    "trace with a picture": "trace tiny --prompt-tokens 4 --tracer torchlens --torchlens-picture "
    "model.layers.0.mlp=mlp.svg --out lens --force",
}
RESUMED = ("study",)  # keeps its finished files, so that it is tried on none of them, and has no --force
STUDY = {
    "name": "tiny",
    "models": ["tiny"],
    "workload": {"users": 2, "input": 4},
    "deployments": {"weights": ["checkpoint", "fp8"]},
    "gpus": ["h100-sxm"],
}
WRITING = tuple(verb for verb in VERBS if verb not in ("trace on a device", "compare"))  # those two only print
RECORDING = {
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_f32f32", "ts": 100 * row, "dur": 40, "pid": 0, "tid": 7}
        for row in range(8)
    ],
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
}
_INPUTS = ("tiny", "base", "tmp", "stored.json", "recording.json", "study.yaml")
_CACHES = (".ses", "torchinductor_")  # names that onnxruntime and torch keep in the system's temporary folder
_PART = re.compile(r"(part-[0-9a-f]{16}-[0-9a-f]{16})-[0-9a-f]{8}-")
_STORED: list[Calibration] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a verb ended: its exit code (minus the signal that ended it), and what it wrote to the streams."""

    code: int
    out: str
    err: str

    @property
    def is_told(self) -> bool:
        """Whether it failed with a message and the code of a failure."""
        return self.code == 1 and all(word in self.err for word in ("error:", "why:", "fix:")) and not self.is_traceback

    @property
    def is_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.err


@contextmanager
def workplace(verbs: Collection[str] = tuple(VERBS)) -> Iterator[Path]:
    """A folder with a tiny model and a trace of it, in which each of these verbs has run once."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        (place / "tmp").mkdir()
        (place / "tiny").mkdir()
        (place / "tiny" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
        (place / "recording.json").write_text(json.dumps(RECORDING), "utf-8")
        (place / "study.yaml").write_text(json.dumps(STUDY), "utf-8")  # JSON is YAML
        # A profile refuses passes that were interrupted for long, which is no finding here.
        is_busy = mock.patch.object(join, "_GAP_NS", 10**12)
        own_scratch = mock.patch.dict(os.environ, TMPDIR=str(place / "tmp"))
        with own_scratch, mock.patch.object(tempfile, "tempdir", None), _calibrated_once(place), is_busy:
            _expect_success(VERBS["trace"].replace("--out run", "--out base"), place)
            for verb in verbs:
                _expect_success(VERBS[verb], place)
            yield place


@contextmanager
def _calibrated_once(place: Path) -> Iterator[None]:
    """The machine is measured once, and the figures are written again each time."""
    _expect_success(VERBS["calibrate"].replace("machine.json", "stored.json"), place)
    _STORED[:] = [read_calibration(place / "stored.json")]
    with mock.patch.dict(CALIBRATORS._entries, torch=f"{__name__}:stored_calibration"):
        yield


def stored_calibration(**options: object) -> Calibration:
    return _STORED[0]


def _expect_success(words: str, place: Path) -> None:
    ended = run_here(words, place)
    if ended.code != 0:
        raise RuntimeError(f"{words} ended with {ended.code}: {ended.err[-600:]}")


def run_here(words: str, place: Path) -> Ended:
    """In this process. What is neither an exit nor an interrupt is a traceback, as Python would print it."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["llm-perf-opt", *words.split()])
    with argv, contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except KeyboardInterrupt:
            code = entry.EXIT_CODE
        except BaseException:  # noqa: BLE001  a finding
            err.write(traceback.format_exc())
            code = 1
    return Ended(code=code, out=out.getvalue(), err=err.getvalue())


def start_child(words: str, place: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """The whole command in a fork of this process, in which torch is loaded already; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name in ("stdout", "stderr"):  # there also for a child that is killed before it opens them
        (place / "tmp" / name).write_bytes(b"")
    if (pid := os.fork()) != 0:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(place)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(place / "tmp" / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        sys.argv = ["llm-perf-opt", *words.split()]
        if (display := sys.modules.get("torchlens.utils.display")) is not None:
            vars(display)["_WARN_PARALLEL_IMPORT_PID"] = os.getpid()  # by which it knows forks, and refuses them
        prepare()
        entry.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001  a finding
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for(pid: int, place: Path) -> Ended:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    out, err = ((place / "tmp" / name).read_text("utf-8", errors="replace") for name in ("stdout", "stderr"))
    return Ended(code=code, out=out, err=err)


def seconds_of_child(words: str, place: Path) -> float:
    """How long the whole command takes in a child, where it must succeed."""
    started = time.perf_counter()
    ended = wait_for(start_child(words, place), place)
    if ended.code != 0:
        raise RuntimeError(f"in a child process, {words} ended with {ended.code}: {ended.err[-600:]}")
    return time.perf_counter() - started


def results(place: Path) -> dict[str, bytes]:
    """The files that verbs have written, by name; which run wrote a part of a study is left out of its name."""
    contents = {
        _PART.sub(r"\1-00000000-", str(file.relative_to(place))): file for file in place.rglob("*") if file.is_file()
    }
    return {
        name: file.read_bytes()
        for name, file in sorted(contents.items())
        if name.partition("/")[0] not in _INPUTS and PREFIX not in name and file.name != ".lock"
    }


def is_of(words: str, name: str) -> bool:
    """Whether the verb that is called with these words writes the file."""
    return any(word.rpartition("=")[2] == name.partition("/")[0] for word in words.split()[1:])


def begun_anew(words: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files without those that the verb writes."""
    return {name: content for name, content in files.items() if not is_of(words, name)}


def restore(place: Path, files: Mapping[str, bytes]) -> None:
    """Have these files and no other results, and nothing temporary."""
    for path in place.iterdir():
        if path.name not in _INPUTS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (place / "tmp").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)


def half_files(place: Path, *allowed: Mapping[str, bytes]) -> Iterator[str]:
    """Results that are neither one of the allowed files nor, where each run writes another, whole."""
    for name, content in results(place).items():
        if not any(files.get(name) == content for files in allowed) and not is_whole(name, content):
            yield f"{name} is half a file of {len(content)} bytes"


def is_whole(name: str, content: bytes) -> bool:
    """By its format: a file that is cut off anywhere is none of that format any more."""
    if name.endswith(".json"):
        try:
            json.loads(content)
        except ValueError:
            return False
        return True
    if name.endswith(".parquet"):
        return len(content) > 12 and content[:4] == content[-4:] == b"PAR1"
    if name.endswith(".pt2"):
        return zipfile.is_zipfile(io.BytesIO(content))
    if name.endswith((".html", ".svg")):
        return content.rstrip().endswith(b"</html>" if name.endswith(".html") else b"</svg>")
    return bool(content) and content.endswith(b"\n")


def temporaries(place: Path) -> list[str]:
    """Whatever is there besides inputs and results."""
    ours = list(place.rglob(f"{PREFIX}*"))
    known = ("stdout", "stderr", *_CACHES)
    others = [path for path in (place / "tmp").iterdir() if not path.name.startswith(known) and path not in ours]
    return sorted(str(path.relative_to(place)) for path in (*ours, *others))
