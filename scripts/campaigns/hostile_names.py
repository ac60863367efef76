"""Names that nobody wants to meet: escape codes, markup of every output language, formulas, odd characters."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import llm_perf_opt as lpo
from llm_perf_opt.cli import main, progress
from llm_perf_opt.cli.output import exit_codes
from llm_perf_opt.cli.progress import ProgressBar, log_to_stderr, message_of, say, visible_streams
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.harness.quiet import silenced
from scripts.campaigns.file_kinds import small_module
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.named_outputs import OUTPUTS, PLAIN, Made, outputs, shape_of
from scripts.campaigns.other_kinds import chrome_trace
from scripts.campaigns.rows import Row

CONTROLS = (
    "\x1b[2J\x1b[H", "\x1b[31mred", "\x1b]0;title\x07", "\x1b]8;;https://evil.invalid\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\", "\x1b[?1049h", "\x1b[6n", "\x1bc", "\x9b31m", "\x9d0;t\x9c", "\x90q\x9c", "\x85next",
    "gone\rOK", "ab\b\b\bxy", "\x00", "nul\x00nul", "bell\x07", "\x0e\x0f", "\x7f", "tab\tbed", "two\nlines",
    "a\x0bb\x0c", "error: it works\n  why: x\n  fix: rm -rf /", "\n\nWrote evil.json", "\x1b[1A\x1b[2Kwarning",
)  # fmt: skip
INVISIBLE = (
    "\u202egpj.exe", "\u2066abc\u2069", "\u200fabc\u200e", "zero\u200bwidth", "\ufeffbom", "\u2028line", "\u2029para",
    "\u061cmark", "\u00adsoft", "\u3164", "\U000e0041\U000e0042", "\ufff9a\ufffab\ufffb", "\ufffe", "\U0010ffff",
    "\ud800", "high\ud83d", "\udc00low", "\udcff\udcfe", "\ue000private", "a\u0300\u0301\u0302" * 40, "\u115f",
)  # fmt: skip
MARKUP = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--", "-->", "]]>", "<![CDATA[",
    "&#x3c;b&gt;", '" onload="alert(1)', "' onclick='x", "javascript:alert(1)", "</title><svg/onload=x>",
    "<style>*{}</style>", "{{7*7}}", "{% raw %}", "${jndi:ldap://x}", "`code`", "```", "| cell | cell |",
    "[x](javascript:alert(1))", "![i](http://x)", "# heading", "* item", "~~~", "$$x$$", "\\", "\\\\",
    "%%{init: {}}%%", 'click A "javascript:x"', "end", "subgraph x", "A-->B", "x; y --> z", '"]; A -> B; "',
    "\\N\\G\\L", "digraph {", "<b>bold</b>", "<<table>>", "graph;node",
)  # fmt: skip
FORMULAS = (
    "=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x")', "=cmd|'/c calc'!A1", "\t=1", "\r=1", ";=1", ",=1",
    '"=1', "%s%n%x", "%(name)s", "{0}", "{path!r}", "../../etc/passwd", "/", "a/b", "C:\\x", "con", "__proto__",
    "constructor", "toString", "null", "NaN", "true", "0", "-0", "1e999", " ", "   ", "a;b;c", "a:b", "0-11",
    "[0-11]", "for 3", "->", "x->y",
)  # fmt: skip
LONG = (
    "x" * 5_000, "\u4e2d" * 3_000, "\x1b" * 1_000, "<" * 2_000, "\U0001f9d1\u200d\U0001f680" * 300, "ab " * 900,
    "." * 30,
)  # fmt: skip
CRAFTED = (*CONTROLS, *INVISIBLE, *MARKUP, *FORMULAS, *LONG)


def hostile_names(count: int, seed: int) -> list[str]:
    """The crafted ones in another order for each seed, and then mixtures of them; no two alike."""
    draw = random.Random(f"names {seed}")
    names = dict.fromkeys(draw.sample(CRAFTED, len(CRAFTED)))
    while len(names) < count:
        parts = draw.sample(CRAFTED, draw.randint(2, 3))
        names["".join(part[: draw.randint(1, 30)] for part in parts)] = None
    return list(names)[:count]


_JOINER = "\u200d"


def unseen_characters(text: str) -> set[str]:
    """Those that a terminal or a browser obeys, hides, or cannot write."""
    if text.isprintable():
        return set()
    return {char for char in set(text) if not char.isprintable() and char not in ("\n", _JOINER)}


def unseen(text: str) -> str:
    """A sentence about such characters on a terminal, where a tab does no harm; empty where there are none."""
    signs = unseen_characters(text) - {"\t"}
    return f"holds {', '.join(sorted(map(ascii, signs))[:5])}" if signs else ""


LOG = logging.getLogger("llm_perf_opt.campaign")


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


def printed(work: Callable[[str], object]) -> Callable[[str], str]:
    """What it prints on either stream, with the log there as the command has it; it may end the program."""

    @functools.wraps(work)
    def shown(name: str) -> str:
        text = io.StringIO()
        streams = contextlib.redirect_stdout(text), contextlib.redirect_stderr(text)
        with streams[0], streams[1], _own_log(), contextlib.suppress(SystemExit):
            work(name)
        return text.getvalue()

    return shown


@printed
def _raised_by_us(name: str) -> None:
    with exit_codes():
        raise PerfOptError(f"There is no {name}.", why=name, fix="do this")


def _error(name: str) -> str:
    text = _raised_by_us(name)
    ours = [line for line in text.splitlines() if line.startswith(("error: ", "  why: ", "  fix: "))]
    return text if len(ours) == 3 else f"a line of the name passes for ours \x1b: {text}"


@printed
def _model_print(name: str) -> None:
    logging.getLogger("llm_perf_opt").setLevel(logging.DEBUG)
    with silenced():
        print(name)


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


@printed
def _library_warning(name: str) -> None:
    with visible_streams():
        print(warnings.formatwarning(name, UserWarning, "model.py", 1, name), file=sys.stderr)


@printed
def _traceback(name: str) -> None:
    """An error that nobody put into words, as Python prints it when the command has ended."""
    try:
        with visible_streams(), exit_codes():
            raise RuntimeError(name)
    except RuntimeError as error:
        error.add_note(name)
        sys.__excepthook__(type(error), error, error.__traceback__)


class _Silent(Exception):
    """Raises when it is asked for its text."""

    def __str__(self) -> str:
        raise ValueError(self.args[0])

    __repr__ = __str__


@printed
def _no_text(name: str) -> None:
    error = _Silent(name)
    error.add_note(name)
    LOG.warning("the model raised %s", error_line(error))
    with exit_codes():
        raise PerfOptError("It failed.", why=error_line(error), fix="x")


def _commands(*lines: tuple[str, ...]) -> str:
    """Whole commands in this process."""
    return "".join(printed(functools.partial(_main, words))("") for words in lines)


def _main(words: tuple[str, ...], _: str) -> None:
    with mock.patch.object(sys, "argv", ["llm-perf-opt", *words]):
        main()


def _model_type(name: str, **more: object) -> str:
    with tempfile.TemporaryDirectory() as folder:
        config = {"model_type": name, **more}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return _commands(("trace", folder)).replace(folder, "")


def _nested_model_type(name: str) -> str:
    return _model_type("llava", text_config={"model_type": name}, transformers_version=name, architectures=[name[:50]])


def _path_name(name: str, make: Callable[[Path], object], *words: str) -> str:
    """A command on a file or folder of that name, where the system takes it; otherwise on one that is not there."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with contextlib.suppress(OSError, ValueError):
            make(path)
        return _commands((*words, str(path))).replace(folder, "")


@functools.cache
def _saved() -> tuple[str, str]:
    """The file of a trace, and the file of a recording of the same model; both go when the process ends."""
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
    options = ((recording, f"--step={name}"), (name,), (recording, f"--device={name}"))
    return _commands(("join", run, str(renamed)), *(("join", run, *words) for words in options))


def _progress_line(name: str) -> str:
    """What is said after two seconds of silence, here at once."""
    shown = io.StringIO()
    streams = contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown)
    with mock.patch.multiple(progress, _FIRST_SIGN_S=0.0, _BEAT_S=0.001), streams[0], streams[1]:
        with progress.signs_of_life(name):
            _wait_for(shown, 1)
        with progress.signs_of_life("trace"):
            say(f"Tracing {name}")
            _wait_for(shown, 2)
    return shown.getvalue()


def _wait_for(shown: io.StringIO, count: int) -> None:
    ends = time.monotonic() + 10
    while shown.getvalue().count("still running (") < count:
        if time.monotonic() > ends:
            raise TimeoutError("no progress line within ten seconds")
        time.sleep(0.001)


LENS = ("--tracer=torchlens", "--prompt-tokens=4")
PLACES: dict[str, Callable[[str], str]] = {
    "error": _error,
    "log line": printed(lambda name: LOG.warning("%s has no price", name)),
    "print of a model": _model_print,
    "closing line": printed(lambda name: say(f"Wrote {name}")),
    "progress bar": _progress,
    "warning of a library": _library_warning,
    "traceback": _traceback,
    "exception without a text": _no_text,
    "model_type": _model_type,
    "model_type of a part": _nested_model_type,
    "file name": lambda name: _path_name(
        name.replace("/", "_")[:60] + ".json", lambda file: file.write_text("{", encoding="utf-8"), "graph"
    ),
    "folder name": lambda name: _path_name(name.replace("/", "_")[:60] or "x", Path.mkdir, "cost"),
    "option": lambda name: _commands(("cost", "deepseek-ocr", "--image", name), (f"--{name}",), (name,)),
    "device": lambda name: _commands(("devices", "show", name), ("devices", "template", name)),
    "Hydra value": lambda name: _commands(
        ("profile", "--show-config", f"workload.prompt={name}"), ("profile", f"model.name={name}")
    ),
    "progress line": _progress_line,
    "join": _join,
    "filters of a picture": lambda name: _commands(
        ("graph", _saved()[0], f"--only={name}"),
        ("graph", _saved()[0], f"--stage={name}", "--ungrouped"),
        ("graph", _saved()[0], f"--focus={name}"),
        ("graph", _saved()[0], f"--phase={name}"),
    ),
    "pages": lambda name: _commands(
        ("sweep", "deepseek-ocr-tiny", f"--page={name}"), ("sweep", name, f"--crops={name}")
    ),
    "export": lambda name: _commands(
        ("export", "deepseek-ocr-tiny", f"--part={name}", "--check=export", f"--load-weights={name}")
    ),
    "picture of TorchLens": lambda name: _commands(
        ("trace", "deepseek-ocr-tiny", *LENS, f"--torchlens-picture={name}=layer.svg"),
        ("trace", "x", f"--torchlens-picture={name}"),
    ),
    "compare": lambda name: _commands(
        *(("compare", _saved()[0], _saved()[0], f"--{option}={name}") for option in ("budget", "phase"))
    ),
}


FULL, QUICK = 200, 8
_MAY_REFUSE = "TorchLens picture"  # Graphviz takes no control characters


def campaign_hostile_names(*, quick: bool, seed: int) -> list[Row]:
    """A row for every output, and one for every kind of text on the terminal."""
    names = hostile_names(QUICK if quick else FULL, seed)
    return [*output_rows(names), *terminal_rows(names)]


def output_rows(names: list[str]) -> list[Row]:
    """Every drawing, picture and report, and the files of a trace."""
    findings: dict[str, list[str]] = {output: [] for output in OUTPUTS}
    with tempfile.TemporaryDirectory() as folder, quiet():
        plain = {output: _seen(output, made) for output, made in outputs(PLAIN, Path(folder))}
        for name in names:
            for output, made in outputs(name, Path(folder)):
                findings[output] += [f"{ascii(name)[:80]}: {fault}" for fault in _faults(output, made, plain[output])]
    return [
        Row(group, len(names) * len(kinds), [x for kind in kinds for x in kind])
        for group, kinds in _grouped(findings).items()
    ]


def _grouped(findings: dict[str, list[str]]) -> dict[str, list[list[str]]]:
    """Outputs that differ in their format alone as one row: `drawing in 12 formats`."""
    groups: dict[str, dict[str, list[str]]] = {}
    for output, texts in findings.items():
        title, _, form = output.rpartition(" ")
        groups.setdefault(title, {})[form] = texts
    return {
        f"{title} in {len(forms)} formats: {', '.join(forms)}" if len(forms) > 1 else f"{title} {next(iter(forms))}": [
            *forms.values()
        ]
        for title, forms in groups.items()
    }


def terminal_rows(names: list[str]) -> list[Row]:
    """What the command prints: errors, log lines, closing lines, progress, tracebacks."""
    rows = []
    for place, shown in PLACES.items():
        findings = []
        for name in names:
            try:
                problem = unseen(shown(name))
            except Exception as error:  # noqa: BLE001  whatever comes out is a finding
                problem = _raised(error)
            if problem:
                findings.append(f"{ascii(name)[:80]}: {problem}")
        rows.append(Row(f"terminal: {place}", len(names), findings))
    return rows


def _seen(output: str, made: Made) -> tuple[set[str], object]:
    """Characters that cannot be seen, as the scripts of a page have some, and what a reader of the language finds."""
    if isinstance(made, Exception):
        raise made
    return unseen_characters(made) if isinstance(made, str) else set(), shape_of(output, made)


def _faults(output: str, made: Made, plain: tuple[set[str], object]) -> Iterator[str]:
    if isinstance(made, PerfOptError) and output.startswith(_MAY_REFUSE):
        if not (made.what and made.why and made.fix) or unseen(message_of(made)):
            yield f"{output}: {_raised(made)}"
        return
    if isinstance(made, Exception):
        yield f"{output}: {_raised(made)}"
        return
    try:
        characters, shape = _seen(output, made)
    except Exception as error:  # noqa: BLE001  a reader of that language gave up
        yield f"{output} cannot be read: {_raised(error)}"
        return
    if more := characters - plain[0]:
        yield f"{output} holds {', '.join(sorted(map(ascii, more))[:5])}"
    if shape != plain[1]:
        yield f"{output} is read as {str(shape)[:150]}, with a plain name as {str(plain[1])[:150]}"


def _raised(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {ascii(str(error))[:120]}"
