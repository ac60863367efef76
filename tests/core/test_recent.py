"""A bounded memory: what was asked for last is there, what was not asked for longest is made again."""

from __future__ import annotations

from llm_perf_opt.core.recent import Recent


def test_the_one_that_was_not_asked_for_longest_leaves() -> None:
    recent, made = Recent[str, str](2), list[str]()

    def ask(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key.upper()

        return recent.of(key, make)

    assert [ask(key) for key in "abacab"] == list("ABACAB")
    assert made == list("abcb")  # a was asked for again before c came, so b left
    assert len(recent) == 2


def test_a_value_that_is_none_is_made_once() -> None:
    recent, made = Recent[int, None](1), list[int]()
    for _ in range(3):
        assert recent.of(7, lambda: made.append(1)) is None
    assert made == [1]
