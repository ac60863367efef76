"""Births, uses and deaths of memory as they happen, turned into rows of `StorageColumns` when the run is over.

Callers name storages by tokens of their own. During the run a token is only written down; looking all of them up at the
end, in one pass, is what keeps the cost per op small and the same for the first op and the millionth.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import repeat

from llm_perf_opt.callgraph.dtypes import tensor_bytes
from llm_perf_opt.callgraph.records import StorageColumns, TensorMeta

ORIGINS = ("parameter", "buffer", "input", "activation", "external", "scratch")
_CODES = {origin: code for code, origin in enumerate(ORIGINS)}


class StorageLog:
    """Tokens are unique for the life of the log; `clock` is the number of ops that ran before the event."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[int, str]] = {}  # token -> bytes, origin
        self._given: set[int] = set()
        self._tokens = array("q")
        self._bytes = array("q")
        self._born = array("q")
        self._origin = array("b")
        self._freed_tokens = array("q")
        self._freed_at = array("q")

    def declare(self, token: int, size_bytes: int, origin: str) -> None:
        """A storage that existed before the run. Names that share it may see parts of it: the largest is its size."""
        known_bytes, known_origin = self._weights.get(token, (0, origin))
        self._weights[token] = (max(known_bytes, size_bytes), known_origin)

    def give(self, token: int, size_bytes: int) -> None:
        """A storage that was prepared for the run, counted once; a weight that is also handed over stays a weight."""
        if token not in self._weights and token not in self._given:
            self._given.add(token)
            self.allocate(token, size_bytes, "input", 0)

    def allocate(self, token: int, size_bytes: int, origin: str, clock: int) -> None:
        """A storage is born."""
        self._origin.append(_CODES[origin])
        self._tokens.append(token)
        self._bytes.append(size_bytes)
        self._born.append(clock)

    def free(self, token: int, clock: int) -> None:
        """A storage died, if it was one of ours."""
        self._freed_tokens.append(token)
        self._freed_at.append(clock)

    def rows(self, op_count: int) -> StorageRows:
        """Number every storage: declared ones first, then in order of birth."""
        allocated = set(self._tokens)
        weights = [(token, *rest) for token, rest in self._weights.items() if token not in allocated]
        return StorageRows(
            tokens=array("q", [token for token, _, _ in weights]) + self._tokens,
            columns=StorageColumns(
                bytes=array("q", [size_bytes for _, size_bytes, _ in weights]) + self._bytes,
                born_op=array("q", bytes(8 * len(weights))) + self._born,
                freed_op=array("q", [op_count]) * (len(weights) + len(self._tokens)),
                origin=(*(origin for _, _, origin in weights), *map(ORIGINS.__getitem__, self._origin)),
            ),
            freed=zip(self._freed_tokens, self._freed_at, strict=True),
            op_count=op_count,
        )


class StorageRows:
    """From tokens to rows, once the run is over. Works on whole columns, since there may be a million of them."""

    def __init__(
        self, *, tokens: array[int], columns: StorageColumns, freed: Iterable[tuple[int, int]], op_count: int
    ) -> None:
        self._row_of = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(self._row_of) < len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise ValueError(f"storage token {twice} was allocated twice: tokens must be unique over a builder's life")
        self._columns = columns
        self._freed = freed
        self._op_count = op_count
        self._adopted: list[TensorMeta] = []

    def of_token(self, token: int) -> int:
        """The row of a token known to have one."""
        return self._row_of[token]

    def of_tokens(self, tokens: array[int], meta_at: Callable[[int], TensorMeta]) -> array[int]:
        """Rows for a flat column of tokens; a tensor of unknown token is adopted as memory from outside the run."""
        rows = array("q", map(self._row_of.get, tokens, repeat(-1)))
        at = -1
        while True:
            try:
                at = rows.index(-1, at + 1)
            except ValueError:
                return rows
            row = self._row_of.setdefault(tokens[at], len(self._row_of))
            if row == len(self._columns.origin) + len(self._adopted):
                self._adopted.append(meta_at(at))
            rows[at] = row

    def columns(self) -> StorageColumns:
        """The finished table, adopted storages last; to be asked for once, when every use has been looked up."""
        known, adopted = self._columns, self._adopted
        freed_op = known.freed_op + array("q", [self._op_count]) * len(adopted)
        row_of = self._row_of.get
        for token, clock in self._freed:
            row = row_of(token)
            if row is not None:
                freed_op[row] = clock
        return StorageColumns(
            bytes=known.bytes + array("q", map(tensor_bytes, adopted)),
            born_op=known.born_op + array("q", bytes(8 * len(adopted))),
            freed_op=freed_op,
            origin=known.origin + ("external",) * len(adopted),
        )
