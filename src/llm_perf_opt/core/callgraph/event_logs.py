"""Module calls and memory as they happen, turned into columns when the run is over.

Callers name storages by tokens of their own. During the run a token is only written down; looking all of them up at the
end, in one pass, is what keeps the cost per op small and the same for the first op and the millionth.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat

from llm_perf_opt.core.callgraph.records import CallColumns, StorageColumns, TensorMeta
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.tensor_formats import tensor_bytes

ORIGINS = ("parameter", "buffer", "input", "activation", "external", "scratch")
_LARGEST = 2**63 - 1
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
        if size_bytes > _LARGEST:
            raise PerfOptError(
                f"A {origin} would take {size_bytes:,} bytes.",
                why="no machine can address that much memory",
                fix="check the sizes in the configuration of the model",
            )
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

    def row_of(self, token: int) -> int | None:
        """The row of a token that was declared or allocated; None for any other."""
        return self._row_of.get(token)

    def of_tokens(self, tokens: array[int], meta_at: Callable[[int], TensorMeta]) -> array[int]:
        """Rows for a flat column of tokens; a tensor of unknown token is adopted as memory from outside the run.

        Nobody said how large that memory is: as large as the largest tensor of the column that is in it, at least.
        """
        rows = array("q", map(self._row_of.get, tokens, repeat(-1)))
        at = -1
        while True:
            try:
                at = rows.index(-1, at + 1)
            except ValueError:
                return rows
            row = self._row_of.setdefault(tokens[at], len(self._row_of))
            meta, place = meta_at(at), row - len(self._columns.origin)
            if place == len(self._adopted):
                self._adopted.append(meta)
            elif tensor_bytes(meta) > tensor_bytes(self._adopted[place]):
                self._adopted[place] = meta
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


class CallLog:
    """A stack of open calls above a table of all of them, in the order of entry."""

    def __init__(self) -> None:
        self._path_rows: dict[str, int] = {}
        self._open: list[int] = []
        self._open_paths: list[str] = []
        self._path = array("q")
        self._parent = array("q")
        self._first_op = array("q")
        self._end_op = array("q")
        self._input_count = array("q")
        self._input_metas = array("q")
        self._input_tokens = array("q")
        self._left = array("q")  # calls in the order of exit: the outputs below are in that order too
        self._output_count = array("q")
        self._output_metas = array("q")
        self._output_tokens = array("q")
        self._started_ns = array("q")
        self._ended_ns = array("q")

    @property
    def current_path(self) -> str | None:
        """The innermost open module, or None."""
        return self._open_paths[-1] if self._open_paths else None

    def enter(self, path: str, metas: list[int], tokens: list[int], clock: int) -> int:
        """Open a call and return its row."""
        call = len(self._path)
        self._path.append(self._path_rows.setdefault(path, len(self._path_rows)))
        self._parent.append(self._open[-1] if self._open else -1)
        self._first_op.append(clock)
        self._end_op.append(clock)
        self._input_count.append(len(metas))
        self._input_metas.fromlist(metas)
        self._input_tokens.fromlist(tokens)
        self._open.append(call)
        self._open_paths.append(path)
        return call

    def started(self, time_ns: int) -> None:
        """The call opened last began at this time."""
        self._started_ns.append(time_ns)
        self._ended_ns.append(time_ns)

    def ended(self, time_ns: int) -> None:
        """The innermost open call ended at this time; said before it is closed."""
        self._ended_ns[self._open[-1]] = time_ns

    def leave(self, metas: list[int], tokens: list[int], clock: int) -> int:
        """Close the innermost call and return the row of the one around it, or -1."""
        if not self._open:
            raise ValueError("leave() without a matching enter()")
        call = self._open.pop()
        self._open_paths.pop()
        self._end_op[call] = clock
        self._left.append(call)
        self._output_count.append(len(metas))
        self._output_metas.fromlist(metas)
        self._output_tokens.fromlist(tokens)
        if not self._open:
            return -1
        parent = self._open[-1]
        if self._ended_ns:  # nobody may see a caller's own end: it lasts at least as long as what it called
            self._ended_ns[parent] = max(self._ended_ns[parent], self._ended_ns[call])
        return parent

    def paths(self) -> tuple[str, ...]:
        """Every module that was called, by row."""
        return tuple(self._path_rows)

    def columns(self, storages: StorageRows, metas: Sequence[TensorMeta]) -> CallColumns:
        """The finished table; needs every call closed."""
        output_count, output_metas, output_tokens = self._outputs_by_call()
        if self._started_ns and len(self._started_ns) != len(self._path):
            raise ValueError(f"{len(self._started_ns)} of {len(self._path)} calls have a time: all of them, or none")
        return CallColumns(
            path=self._path,
            parent=self._parent,
            first_op=self._first_op,
            end_op=self._end_op,
            input_count=self._input_count,
            output_count=output_count,
            input_metas=self._input_metas,
            input_storages=storages.of_tokens(self._input_tokens, lambda at: metas[self._input_metas[at]]),
            output_metas=output_metas,
            output_storages=storages.of_tokens(output_tokens, lambda at: metas[output_metas[at]]),
            started_ns=self._started_ns,
            ended_ns=self._ended_ns,
        )

    def _outputs_by_call(self) -> tuple[array[int], array[int], array[int]]:
        """Counts, metas and tokens from the order of exit to the order of entry."""
        counts = array("q", bytes(8 * len(self._left)))
        starts = array("q", bytes(8 * len(self._left)))
        for call, count, end in zip(self._left, self._output_count, accumulate(self._output_count), strict=True):
            counts[call] = count
            starts[call] = end - count
        metas, tokens = array("q"), array("q")
        for start, count in zip(starts, counts, strict=True):
            metas.extend(self._output_metas[start : start + count])
            tokens.extend(self._output_tokens[start : start + count])
        return counts, metas, tokens
