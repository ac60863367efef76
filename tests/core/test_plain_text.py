"""Text from outside can be seen, and an error that has no text is still an error with a name."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.plain_text import error_line, error_notes, error_text, visible, visible_ascii, visible_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0", "layers.0"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("gone\rOK", r"gone\rOK"),
        ("a\x00b", r"a\x00b"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("half\ud800", r"half\ud800"),
        ("\ufeffbom", r"\ufeffbom"),
        ("two\nlines\t", r"two\nlines\t"),
        ("caf\u00e9 \u4e2d", "caf\u00e9 \u4e2d"),
        ("\U0001f9d1\u200d\U0001f680", "\U0001f9d1\u200d\U0001f680"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown
    shown.encode("utf-8")


def test_lines_stay_lines_where_there_may_be_several() -> None:
    assert visible_lines("a\n\tb\x1b[2J\r") == "a\n\tb\\x1b[2J\\r"


def test_in_ascii_the_rest_is_written_out_too() -> None:
    assert visible_ascii("caf\u00e9\x07") == r"caf\xe9\x07"


class NoTextError(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")

    __repr__ = __str__


class OddTextError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


def test_an_error_without_a_text_has_its_name() -> None:
    assert error_line(NoTextError()) == "NoTextError: (its text cannot be read): its __str__ raised KeyError"
    assert error_line(OddTextError()) == "OddTextError: (its text cannot be read): its __str__ raised TypeError"


def test_an_error_in_one_line() -> None:
    assert error_line(ValueError("\n  first\nsecond")) == "ValueError: first"
    assert error_line(ValueError("x" * 999), 10) == "ValueError: xxxxxxxxxx"
    assert error_line(ValueError()) == "ValueError: "
    assert error_text(KeyError("a")) == "'a'"


def test_notes_that_are_texts() -> None:
    error = ValueError("x")
    assert error_notes(error) == ()
    error.add_note("where")
    error.__notes__.append(7)  # type: ignore[arg-type]
    assert error_notes(error) == ("where",)
    error.__notes__ = 7  # type: ignore[assignment]
    assert error_notes(error) == ()


def test_an_error_that_interrupts_is_not_swallowed() -> None:
    class InterruptedError_(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        error_text(InterruptedError_())
