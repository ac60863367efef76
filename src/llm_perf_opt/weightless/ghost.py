"""The ghost: a tensor that answers for its shape, dtype and device and has no storage.

It is a wrapper subclass *without an inner tensor*: all that exists is the C++ header (size, stride, dtype, device
`cpu`) and two Python slots. Methods that read values without passing the dispatcher are overridden here; everything
else reaches the engine as a dispatched op.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from llm_perf_opt.weightless.spec import FLOAT_DTYPES, Spec, contiguous_spec, is_contiguous, spec_of_tensor
from llm_perf_opt.weightless.storage import Storage, Uniform

_make_wrapper = torch.Tensor._make_wrapper_subclass
_CPU = torch.device("cpu")
_STRIDED = torch.strided


class AnswersForGhosts(Protocol):
    """What a ghost asks of the engine: to run an op on it, and to invent its values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any: ...

    def materialise(self, tensor: torch.Tensor, why: str) -> torch.Tensor:
        """A real tensor in place of a ghost, where code needs values."""
        ...

    def new_block(self, tensor: Ghost) -> None:
        """The ghost has memory under a new number."""
        ...


class _OfThread(threading.local):
    """The engines of one thread: those that are open, innermost last, and the one that ran last."""

    def __init__(self) -> None:
        self.open: list[AnswersForGhosts] = []
        self.latest: AnswersForGhosts | None = None


ENGINES = _OfThread()
_STANDBY: list[Callable[[], AnswersForGhosts]] = []  # makes an engine for a thread that has none


def stands_by(make: Callable[[], AnswersForGhosts]) -> None:
    """How to make an engine for ghosts that were handed to a thread in which none ever ran."""
    _STANDBY[:] = [make]


def active_engine() -> AnswersForGhosts:
    """The engine that answers for a ghost in this thread: the innermost open one, else the one that ran last here.

    Never one of another thread: that one may be recording.
    """
    if ENGINES.open:
        return ENGINES.open[-1]
    if ENGINES.latest is None:
        ENGINES.latest = _STANDBY[0]()
    return ENGINES.latest


class Ghost(torch.Tensor):
    """A tensor without storage. Made by `new_ghost`; the engine tests `type(x) is Ghost`, so it is never subclassed."""

    # Slots, not attributes: no instance dictionary is created for the thousands of short-lived activations.
    __slots__ = ("memory", "spec")

    spec: Spec
    memory: Storage

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached only outside an engine, for instance when a result is printed after the run."""
        return active_engine().__torch_dispatch__(func, types, args, kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Ghost({self.spec!r})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self) if self.ndim else format(self.item(), spec)

    def tolist(self) -> Any:
        return active_engine().materialise(self, "tolist").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        return active_engine().materialise(self, "numpy").numpy(force=force)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = active_engine().materialise(self, "numpy").numpy(force=True)
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return active_engine().materialise(self, "dlpack").__dlpack__()

    def data_ptr(self) -> int:
        return self.memory.number

    def share_memory_(self) -> Ghost:
        return self

    def pin_memory(self, *args: Any, **kwargs: Any) -> Ghost:
        return self

    def cuda(self, *args: Any, **kwargs: Any) -> Ghost:
        return self

    def cpu(self, *args: Any, **kwargs: Any) -> Ghost:
        return self

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Ghost:
        # Answered here when nothing would be copied: torch's C++ shortcut does the same before it dispatches.
        if memory_format is torch.contiguous_format and is_contiguous(self.spec):
            return self
        return torch.Tensor.contiguous(self, memory_format=memory_format)  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> Ghost:
        twin = new_ghost(self.spec, Storage(self.memory.uniform))
        twin.requires_grad_(self.requires_grad)
        twin.__dict__.update(self.__dict__)  # `_is_param` and whatever the model hung on its parameter
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_rebuild, (tuple(self.spec.shape), self.spec.dtype))

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        # `Module.to` assigns `.data`, which rewrites the C++ header: the spec must follow.
        source = value if type(value) is Ghost else new_ghost(spec_of_tensor(value))
        torch.Tensor.data.__set__(self, source)  # type: ignore[attr-defined]
        self.spec = source.spec
        self.memory = source.memory


def new_ghost(spec: Spec, storage: Storage | None = None) -> Ghost:
    """A ghost with fresh memory, or with a share in `storage` (a view)."""
    ghost: Ghost = _make_wrapper(Ghost, spec.shape, spec.stride, None, None, spec.dtype, _STRIDED, _CPU)
    ghost.spec = spec
    ghost.memory = storage if storage is not None else Storage()
    return ghost


def uniform_ghost(spec: Spec, value: Uniform) -> Ghost:
    """A ghost with every element known to be `value`; `None` makes it an ordinary one."""
    return new_ghost(spec, Storage(value))


def known_counts(tensor: torch.Tensor) -> torch.Tensor | None:
    """How often each expert is chosen, of a ghost that is the whole one-hot table of a choice; None: not known."""
    if type(tensor) is not Ghost or (known := tensor.memory.counts) is None:
        return None
    spec, counts = known
    return counts if spec is tensor.spec else None


def choice_counts(tensor: torch.Tensor) -> torch.Tensor | None:
    """How often each expert is chosen, of a ghost that holds a whole choice in any shape; None: not known.

    Every element of a choice names an expert: a view of a part has fewer elements than were chosen.
    """
    if type(tensor) is not Ghost or (chosen := tensor.memory.chosen) is None:
        return None
    return chosen if is_contiguous(tensor.spec) and int(chosen.sum()) == tensor.spec.numel else None


def choice_of(counts: torch.Tensor, spec: Spec) -> torch.Tensor:
    """A choice with such counts. No row has an expert twice: an expert fills no more than one whole column."""
    in_order = torch.repeat_interleave(torch.arange(len(counts)), counts)
    by_column = in_order if len(spec.shape) < 2 else in_order.view(spec.shape[-1], -1).t().reshape(spec.shape)
    return by_column.to(spec.dtype)


def _rebuild(shape: tuple[int, ...], dtype: torch.dtype) -> Ghost:
    return new_ghost(contiguous_spec(shape, dtype))


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor that is spread over several, as a DTensor is; any other tensor is itself."""
    if type(tensor) is Ghost:
        return tensor
    held = getattr(tensor, "_local_tensor", None)
    return held if isinstance(held, torch.Tensor) else tensor


T = TypeVar("T")


def adopt_module(module: T) -> T:
    """Replace float parameters and meta buffers by ghosts, in place; tied tensors stay tied.

    Real buffers keep their values. A meta *integer* buffer has lost its own: one that counts positions is rebuilt,
    any other becomes zeros, which is why building under the engine is better than building on meta.
    """
    adopted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the original is kept, or its id could be reused
    for owner in module.modules():  # type: ignore[attr-defined]
        for table, is_parameter in ((owner._parameters, True), (owner._buffers, False)):
            for name, tensor in table.items():
                if tensor is None or type(tensor) is Ghost:
                    continue
                if (held := local_tensor(tensor)) is not tensor:  # sharded: its wrapper knows the layout
                    if held.is_meta:
                        tensor._local_tensor = new_ghost(spec_of_tensor(held))
                    continue
                if id(tensor) not in adopted:
                    adopted[id(tensor)] = (tensor, _adopt(tensor, is_parameter))
                table[name] = adopted[id(tensor)][1]
    return module


def _adopt(tensor: torch.Tensor, is_parameter: bool) -> torch.Tensor:
    is_meta = tensor.is_meta
    replacement: Any = tensor
    if tensor.dtype in FLOAT_DTYPES:
        if is_meta or is_parameter:
            replacement = new_ghost(spec_of_tensor(tensor))
    elif is_meta:
        replacement = torch.zeros(tensor.shape, dtype=tensor.dtype)
        if tensor.dtype == torch.long and 1 <= tensor.ndim <= 2 and tensor.numel() > 1:
            replacement = torch.arange(tensor.shape[-1]).expand(tensor.shape)
    if replacement is tensor or not is_parameter:
        return replacement  # type: ignore[no-any-return]
    return torch.nn.Parameter(replacement, requires_grad=tensor.requires_grad and tensor.dtype in FLOAT_DTYPES)
