"""Meta kernels without the compiler: torch's Python shape functions load dynamo at their first call, for a second.

They are marked "not to be compiled" by a wrapper that asks dynamo to disable itself and remembers the answer on the
function. Where dynamo is not loaded there is nothing to disable: the function itself is the answer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch._compile
import torch._decomp.decompositions
import torch._refs.nn.functional
import torch._refs.special
from torch._decomp import global_decomposition_table

ANSWER = "__dynamo_disable"
_ROOMS = (torch._refs, torch._refs.special, torch._refs.nn.functional, torch._decomp.decompositions)


def functions_that_load_dynamo() -> tuple[Callable[..., Any], ...]:
    """Shape functions whose answer is still missing; none once dynamo is loaded."""
    if "torch._dynamo" in sys.modules:
        return ()
    return tuple(function for function in _wrapped_functions() if not hasattr(function, ANSWER))


@functools.cache
def _wrapped_functions() -> tuple[Callable[..., Any], ...]:
    """Every function under torch's mark, found through the closures of the decorators around it."""
    waiting = [function for table in global_decomposition_table.values() for function in table.values()]
    waiting += [function for room in _ROOMS for function in vars(room).values()]
    seen: set[int] = set()
    marked = []
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        inside = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        waiting += inside
        if function.__code__.co_filename == torch._compile.__file__:
            marked += [inner for inner in inside if isinstance(inner, FunctionType)]
    return tuple(marked)


def _is_filled(cell: CellType) -> bool:
    """Whether a closure's variable has been assigned; reading an empty one raises."""
    return cell != CellType()
