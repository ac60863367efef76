"""What was asked for last, in memory and bounded: a process that answers for days does not grow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values by their keys. The one that was not asked for longest leaves, and is made again."""

    def __init__(self, most: int) -> None:
        self._most, self._values = most, OrderedDict[K, V]()

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key; two threads that ask at once may both make it."""
        value = self._values.get(key)
        if value is None and key not in self._values:
            value = self._values[key] = make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
            return value
        with suppress(KeyError):  # another thread made it leave
            self._values.move_to_end(key)
        return cast(V, value)

    def __len__(self) -> int:
        return len(self._values)
