"""Module calls as they open and close, turned into `CallColumns` when the run is over."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from llm_perf_opt.callgraph.records import CallColumns, TensorMeta
from llm_perf_opt.callgraph.storage_log import StorageRows


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
        if self._ended_ns:  # a caller whose own end nobody sees lasts at least as long as what it called
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
