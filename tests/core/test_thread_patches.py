"""An attribute replaced in one thread: others see the plain one, and it is put back in whatever order they leave."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from llm_perf_opt.core import thread_patches
from llm_perf_opt.core.thread_patches import ThreadPatches

T = TypeVar("T")


class Base:
    def inherited(self) -> str:
        return "plain"


class Thing(Base):
    def own(self, word: str = "plain") -> str:
        return word

    @property
    def size(self) -> int:
        return 1


def elsewhere(ask: Callable[[], T]) -> T:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def nothing_left() -> Any:
    before = dict(vars(Thing))
    yield
    assert dict(vars(Thing)) == before
    assert not thread_patches._PATCHED


def test_other_threads_see_the_plain_one() -> None:
    with ThreadPatches() as patches:
        patches.replace(Thing, "own", lambda self: "mine")
        patches.replace(Thing, "inherited", lambda self: "mine")
        patches.wrap_property(Thing, "size", lambda plain: lambda thing: plain(thing) + 1)
        assert (Thing().own(), Thing().inherited(), Thing().size) == ("mine", "mine", 2)
        assert elsewhere(lambda: (Thing().own(), Thing().inherited(), Thing().size)) == ("plain", "plain", 1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_layers_leave_in_any_order(order: tuple[int, ...]) -> None:
    def adding(letter: str) -> Callable[[Any], Any]:
        return lambda plain: lambda self: plain(self) + letter

    layers = [ThreadPatches() for _ in range(3)]
    for letter, patches in zip("abc", layers, strict=True):
        patches.wrap(Thing, "own", adding(letter))
    left = set("abc")
    for index in order:
        assert Thing().own() == "plain" + "".join(sorted(left))
        layers[index].close()
        left.remove("abc"[index])
    assert Thing().own() == "plain"


def test_threads_leave_in_any_order() -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[str] = []

    def other() -> None:
        with ThreadPatches() as patches:
            patches.replace(Thing, "own", lambda self: "theirs")
            entered.set()
            leave.wait()
            seen.append(Thing().own())

    thread = threading.Thread(target=other)
    with ThreadPatches() as patches:
        patches.replace(Thing, "own", lambda self: "mine")
        thread.start()
        entered.wait()
        assert Thing().own() == "mine"
    assert Thing().own() == "plain"  # the other one is still inside
    leave.set()
    thread.join()
    assert seen == ["theirs"]


@pytest.mark.skipif(os.name != "posix", reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of forking with threads
def test_a_forked_child_has_nothing_of_other_threads() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with ThreadPatches() as patches:
            patches.replace(Thing, "own", lambda self: "theirs")
            entered.set()
            leave.wait()

    plain = vars(Thing)["own"]
    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with ThreadPatches() as patches:
        patches.replace(Thing, "inherited", lambda self: "mine")
        child = os.fork()
        if child == 0:
            is_right = vars(Thing)["own"] is plain and Thing().inherited() == "mine"
            os._exit(0 if is_right else 1)
        _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_step_that_raises_does_not_keep_the_others(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    patches = ThreadPatches()
    patches.replace(Thing, "own", lambda self: "mine")
    patches.finally_(fails)
    patches.replace(Thing, "inherited", lambda self: "mine")
    with pytest.raises(error):
        patches.close()
    assert (Thing().own(), Thing().inherited()) == ("plain", "plain")


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_a_wrapper_that_cannot_be_made_leaves_nothing(name: str) -> None:
    def fails(plain: object) -> object:
        raise MemoryError

    with pytest.raises(MemoryError), ThreadPatches() as patches:
        patches.wrap(Thing, name, fails)
    assert getattr(Thing(), name)() == "plain"


def test_the_signature_stays_readable() -> None:
    import inspect

    plain = inspect.signature(Thing.own)
    with ThreadPatches() as patches:
        patches.replace(Thing, "own", lambda self: "mine")
        assert inspect.signature(Thing.own) == plain
