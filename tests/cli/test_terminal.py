"""What the command prints cannot drive a terminal, wherever the text comes from."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from llm_perf_opt.cli.progress import VisibleStream, message_of, plain_stderr, visible_streams
from llm_perf_opt.core.errors import PerfOptError, UsageError

HOSTILE = "\x1b]0;evil\x07\x1b[2J\u202e\x9b1m"
SHOWN = r"\x1b]0;evil\x07\x1b[2J\u202e\x9b1m"


def test_an_error_of_ours_cannot_be_imitated() -> None:
    error = UsageError(f"There is no {HOSTILE}.", why="first\n  fix: rm -rf /", fix="give a name:\n\n[devices.x]")
    assert message_of(error) == (
        f"There is no {SHOWN}.\n  why: first\n         fix: rm -rf /\n  fix: give a name:\n\n[devices.x]"
    )


def test_a_message_without_lines_is_as_it_was() -> None:
    error = PerfOptError("It failed.", why="no room", fix="make room")
    assert message_of(error) == str(error)


def test_what_others_write_to_stderr_is_visible(capsys: pytest.CaptureFixture[str]) -> None:
    with visible_streams():
        print(warnings.formatwarning(HOSTILE, UserWarning, "model.py", 1, ""), file=sys.stderr)
        print("50 %\r100 %\r\nbold \x1b[1m", file=sys.stderr)
        sys.stderr.writelines(iter(["a", "b\n"]))
    err = capsys.readouterr().err
    assert SHOWN in err
    assert "50 %\n100 %\nbold \\x1b[1m\nab\n" in err
    assert "\x1b" not in err


def test_the_stream_is_put_back_and_never_doubled() -> None:
    before = sys.stderr
    with visible_streams(), visible_streams():
        assert isinstance(sys.stderr, VisibleStream)
        assert plain_stderr() is before
        assert sys.stderr.isatty() is before.isatty()
    assert sys.stderr is before
    with pytest.raises(SystemExit), visible_streams():
        raise SystemExit(1)
    assert sys.stderr is before


def test_an_error_that_nobody_put_into_words_is_printed_visibly_too() -> None:
    """The command has ended by then, and Python prints."""
    program = (
        "import sys\n"
        "from llm_perf_opt.cli import app\n"
        "class E(Exception): pass\n"
        f"def verb(**_): raise E({HOSTILE!r})\n"
        "app.app = verb\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert SHOWN.encode() in done.stderr
    assert b"\x1b" not in done.stderr


def test_a_file_name_of_escape_codes(tmp_path: Path) -> None:
    file = tmp_path / f"{HOSTILE}.json"
    file.write_text("{")
    done = subprocess.run([sys.executable, "-m", "llm_perf_opt", "graph", file], capture_output=True, check=False)
    assert done.returncode != 0
    assert SHOWN.encode() in done.stderr
    assert b"\x1b" not in done.stderr


def test_an_encoding_that_cannot_write_a_name_ends_in_no_traceback(tmp_path: Path) -> None:
    """Markdown keeps letters of any language; a terminal in ASCII gets them spelled out."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    words = ["cost", "deepseek-ocr", "--sources", "closed-form", "--format", "markdown"]
    program = (
        "import sys\n"
        "from llm_perf_opt.formats import markdown_format\n"
        "plain = markdown_format.MarkdownReport.render\n"
        "markdown_format.MarkdownReport.render = lambda self, report: plain(self, report) + 'caf\\u00e9'\n"
        "from llm_perf_opt.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout[-7:]) == (0, rb"caf\xe9"), done.stderr[-300:]


def test_a_stream_that_is_no_file_is_taken_too() -> None:
    stream = VisibleStream(io.StringIO())
    assert stream.write("a\x1bb") == 3
    assert stream.getvalue() == r"a\x1bb"
