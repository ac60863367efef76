"""The ways in which a text from outside reaches the terminal, each as a function from the text to what was printed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import llm_perf_opt as lpo
from llm_perf_opt.cli import main, progress
from llm_perf_opt.cli.output import exit_codes
from llm_perf_opt.cli.progress import ProgressBar, log_to_stderr, say, visible_streams
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.harness.quiet import silenced
from scripts.campaigns.foreign_kinds import chrome_trace
from scripts.campaigns.one_kind import small_module

_JOINER = "\u200d"


def unseen_characters(text: str) -> set[str]:
    """Those that a terminal or a browser obeys, hides, or cannot write."""
    if text.isprintable():
        return set()
    return {char for char in set(text) if not char.isprintable() and char not in ("\n", _JOINER)}


def unseen(text: str) -> str:
    """A sentence about such characters on a terminal, where a tab does no harm; empty where there are none."""
    found = unseen_characters(text) - {"\t"}
    return f"holds {', '.join(sorted(map(ascii, found))[:5])}" if found else ""


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    """stdout and stderr of what runs inside."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        yield shown


def _error(name: str) -> str:
    with _printed() as shown, contextlib.suppress(SystemExit), exit_codes():
        raise PerfOptError(f"There is no {name}.", why=name, fix="do this")
    text = shown.getvalue()
    ours = [line for line in text.splitlines() if line.startswith(("error: ", "  why: ", "  fix: "))]
    return text if len(ours) == 3 else f"a line of the name passes for ours \x1b: {text}"


def _log_line(name: str) -> str:
    with _printed() as shown, _own_log():
        logging.getLogger("llm_perf_opt.campaign").warning("%s has no price", name)
    return shown.getvalue()


@contextlib.contextmanager
def _own_log() -> Iterator[None]:
    logger = logging.getLogger("llm_perf_opt")
    before = logger.handlers, logger.propagate, logger.level
    log_to_stderr()
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[1]
        logger.setLevel(before[2])


def _model_print(name: str) -> str:
    with _printed() as shown, _own_log():
        logging.getLogger("llm_perf_opt").setLevel(logging.DEBUG)
        with silenced():
            print(name)
    return shown.getvalue()


def _closing_line(name: str) -> str:
    with _printed() as shown:
        say(f"Wrote {name}")
    return shown.getvalue()


class _Bar:
    """As much of a bar of rich as is asked for; holds what it would draw."""

    def __init__(self) -> None:
        self.tasks = [self]
        self.fields: dict[str, Any] = {}

    def add_task(self, *_: object, **fields: Any) -> int:
        self.fields.update(fields)
        return 0

    def update(self, _: int, **fields: Any) -> None:
        self.fields.update(fields)


def _progress(name: str) -> str:
    bar = _Bar()
    shown = ProgressBar(bar)
    shown.page(name)
    with shown.stage(name):
        return "".join(map(str, bar.fields.values()))


def _library_warning(name: str) -> str:
    with _printed() as shown, visible_streams():
        print(warnings.formatwarning(name, UserWarning, "model.py", 1, name), file=sys.stderr)
    return shown.getvalue()


def _traceback(name: str) -> str:
    """An error that nobody put into words, as Python prints it when the command has ended."""
    with _printed() as shown:
        try:
            with visible_streams(), exit_codes():
                raise RuntimeError(name)
        except RuntimeError as error:
            error.add_note(name)
            sys.__excepthook__(type(error), error, error.__traceback__)
    return shown.getvalue()


class _Silent(Exception):
    """Raises when it is asked for its text."""

    def __str__(self) -> str:
        raise ValueError(self.args[0])

    __repr__ = __str__


def _no_text(name: str) -> str:
    with _printed() as shown, _own_log():
        error = _Silent(name)
        error.add_note(name)
        logging.getLogger("llm_perf_opt.campaign").warning("the model raised %s", error_line(error))
        with contextlib.suppress(SystemExit), exit_codes():
            raise PerfOptError("It failed.", why=error_line(error), fix="x")
    return shown.getvalue()


def _command(*words: str) -> str:
    """The whole command in this process."""
    before = sys.argv
    sys.argv = ["llm-perf-opt", *words]
    try:
        with _printed() as shown, _own_log(), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    return shown.getvalue()


def _model_type(name: str, **more: object) -> str:
    with tempfile.TemporaryDirectory() as folder:
        config = {"model_type": name, **more}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return _command("trace", folder).replace(folder, "")


def _nested_model_type(name: str) -> str:
    return _model_type("llava", text_config={"model_type": name}, transformers_version=name, architectures=[name[:50]])


def _file_name(name: str) -> str:
    """A file of that name, where the system takes it; otherwise one that is not there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / (name.replace("/", "_")[:60] + ".json")
        with contextlib.suppress(OSError, ValueError):
            file.write_text("{", encoding="utf-8")
        return _command("graph", str(file)).replace(folder, "")


def _folder_name(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / (name.replace("/", "_")[:60] or "x")
        with contextlib.suppress(OSError, ValueError):
            place.mkdir()
        return _command("cost", str(place)).replace(folder, "")


def _option(name: str) -> str:
    return _command("cost", "deepseek-ocr", "--image", name) + _command(f"--{name}") + _command(name)


def _device(name: str) -> str:
    return _command("devices", "show", name) + _command("devices", "template", name)


def _hydra(name: str) -> str:
    return _command("profile", "--show-config", f"workload.prompt={name}") + _command("profile", f"model.name={name}")


@functools.cache
def _saved() -> tuple[str, str]:
    """The file of a trace, and that of a recording of the same model; both go when the process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    trace = lpo.trace(small_module(), (torch.zeros(2, 8),), out=Path(folder) / "trace")
    recording = Path(folder) / "recording.json"
    recording.write_text(json.dumps(chrome_trace()), "utf-8")
    return str(trace.files[0]), str(recording)


def _join(name: str) -> str:
    """A recording whose kernels, ops and device have that name; a step, a device and a file of that name."""
    run, recording = _saved()
    renamed = Path(recording).with_name("renamed.json")
    text = json.dumps(name.encode("utf-8", "replace").decode())[1:-1]
    renamed.write_text(json.dumps(chrome_trace()).replace("aten::relu", text).replace("H100", text), "utf-8")
    shown = _command("join", run, str(renamed)) + _command("join", run, recording, f"--step={name}")
    return shown + _command("join", run, name) + _command("join", run, recording, f"--device={name}")


def _filters(name: str) -> str:
    run, _ = _saved()
    shown = _command("graph", run, f"--only={name}") + _command("graph", run, f"--stage={name}", "--ungrouped")
    return shown + _command("graph", run, f"--focus={name}") + _command("graph", run, f"--phase={name}")


def _page_list(name: str) -> str:
    return _command("pages", "deepseek-ocr-tiny", f"--sizes={name}") + _command("pages", name, f"--grids={name}")


def _part(name: str) -> str:
    return _command("export", "deepseek-ocr-tiny", f"--part={name}", "--check=export", f"--load-weights={name}")


def _torchlens_picture(name: str) -> str:
    words = ("--tracer=torchlens", "--prompt-tokens=4", f"--torchlens-picture={name}=layer.svg")
    return _command("trace", "deepseek-ocr-tiny", *words) + _command("trace", "x", f"--torchlens-picture={name}")


def _comparison(name: str) -> str:
    run, _ = _saved()
    return _command("compare", run, run, f"--budget={name}") + _command("compare", run, run, f"--phase={name}")


def _progress_line(name: str) -> str:
    """What is said after two seconds of silence, here at once."""
    first, beat = progress._FIRST_SIGN_S, progress._BEAT_S
    progress._FIRST_SIGN_S, progress._BEAT_S = 0.0, 0.001
    try:
        with _printed() as shown:
            with progress.signs_of_life(name):
                _wait_for(shown, 1)
            with progress.signs_of_life("trace"):
                say(f"Tracing {name}")
                _wait_for(shown, 2)
        return shown.getvalue()
    finally:
        progress._FIRST_SIGN_S, progress._BEAT_S = first, beat


def _wait_for(shown: io.StringIO, count: int) -> None:
    ends = time.monotonic() + 10
    while shown.getvalue().count("still at it after") < count:
        if time.monotonic() > ends:
            raise TimeoutError("no progress line within ten seconds")
        time.sleep(0.001)


PLACES: dict[str, Callable[[str], str]] = {
    "error": _error,
    "log line": _log_line,
    "print of a model": _model_print,
    "closing line": _closing_line,
    "progress bar": _progress,
    "warning of a library": _library_warning,
    "traceback": _traceback,
    "exception without a text": _no_text,
    "model_type": _model_type,
    "model_type of a part": _nested_model_type,
    "file name": _file_name,
    "folder name": _folder_name,
    "option": _option,
    "device": _device,
    "Hydra value": _hydra,
    "progress line": _progress_line,
    "join": _join,
    "filters of a picture": _filters,
    "pages": _page_list,
    "export": _part,
    "picture of TorchLens": _torchlens_picture,
    "compare": _comparison,
}
