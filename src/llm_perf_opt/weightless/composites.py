"""What a composite op is made of: its primitive ops, and the memory it holds only while it runs.

The engine takes composites whole, so their temporaries are no tensors of the run. They do occupy memory, though, and
sometimes make the peak: a matmul of two transposed matrices first copies both. Each distinct op is decomposed once, on
meta tensors, and the largest sum of temporaries alive at once is what every occurrence of it is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.callgraph import OpKind
from llm_perf_opt.ops.attention import flash_scratch_bytes
from llm_perf_opt.ops.table import op_table
from llm_perf_opt.weightless.fallbacks import is_composite
from llm_perf_opt.weightless.propagation import meta_arguments, overloads
from llm_perf_opt.weightless.recording import OpRecorder, flat_tensors, is_mutating, is_pointwise, is_view
from llm_perf_opt.weightless.rules.attention import AttentionKernel, attention_kernel
from llm_perf_opt.weightless.rules.registry import argument
from llm_perf_opt.weightless.spec import is_contiguous, spec_of_tensor

# Composites that every counter prices as one op: their parts would only make the file larger.
_RECORDED_WHOLE = overloads(*(name.removeprefix("aten.") for name, op in op_table().items() if op.is_recorded_whole))
_MATMUL = overloads("matmul")
# What is one op under another name; on real tensors it is recorded without parts too. A mask that is real when it is
# small and a ghost when it is large would otherwise change the ops of a run with its length.
_OTHER_NAMES = overloads(
    "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "where.Scalar", "where.ScalarOther", "where.ScalarSelf"
)


class _PartCollector(TorchDispatchMode):
    """Decomposes composites and keeps the kind of every primitive op."""

    def __init__(self, recorder: OpRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kinds: list[OpKind] = []
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would load dynamo, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
        if not is_view(func):
            self.kinds.append(self._recorder.kind(func, args, kwargs, list(flat_tensors(output))))
        return output


def composite_parts(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: OpRecorder
) -> tuple[OpKind, ...]:
    """The primitive ops of a composite; empty for a primitive one, or where the decomposition needs values.

    `matmul` is recorded whole unless it copies an operand first: those copies are launches of their own.
    """
    if func in _MATMUL:
        parts = _parts(func, args, kwargs, recorder)
        return parts if len(parts) > 1 else ()
    if func in _RECORDED_WHOLE or func in _OTHER_NAMES or is_view(func) or is_pointwise(func) or not is_composite(func):
        return ()
    return _parts(func, args, kwargs, recorder)


def _parts(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: OpRecorder) -> tuple[OpKind, ...]:
    twins = meta_arguments(args, kwargs)
    collector = _PartCollector(recorder)
    try:
        with collector:
            func(*twins.args, **twins.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return ()
    return tuple(collector.kinds)


# Composites that write their result, or give their argument back, and hold nothing else.
_WITHOUT_SCRATCH = overloads(*(name.removeprefix("aten.") for name, op in op_table().items() if not op.has_scratch))
_LINEAR = overloads("linear")
_ATTENTION = overloads("scaled_dot_product_attention")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def scratch_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_cuda: bool) -> int:
    """Bytes of temporaries beyond the result, at the widest moment inside the op; 0 for a primitive op."""
    if func in _ATTENTION:
        return _attention_scratch(args, kwargs, is_cuda=is_cuda)
    if func in _WITHOUT_SCRATCH or func in _OTHER_NAMES or is_view(func) or is_pointwise(func):
        return 0
    if not _is_composite(func):
        return 0
    if func in _LINEAR and is_contiguous(spec_of_tensor(args[0])):
        return 0  # rows are flattened and multiplied as they are: the common case, not worth a decomposition
    return 0 if is_mutating(func) else _decomposed(func, args, kwargs)


def _decomposed(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], handed_on: Callable[[Any], Any] = lambda output: output
) -> int:
    """Temporaries of a composite; `handed_on` picks the outputs that go to the caller."""
    twins = meta_arguments(args, kwargs)
    temporaries = _Temporaries((*twins.args, *twins.kwargs.values()))
    try:
        with temporaries:
            output = func(*twins.args, **twins.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return 0  # it decomposes only with values, and then the engine does so op by op
    return temporaries.beyond(handed_on(output))


def _attention_scratch(args: Sequence[Any], kwargs: Mapping[str, Any], *, is_cuda: bool) -> int:
    """What the kernel keeps per row of queries, and a mask of booleans in the dtype of the queries."""
    query, mask = args[0], argument(args, kwargs, 3, "attn_mask", None)
    is_converted = mask is not None and mask.dtype is torch.bool
    converted = int(mask.numel() * query.dtype.itemsize) if is_converted else 0
    match attention_kernel(args, kwargs, is_cuda=is_cuda):
        case AttentionKernel.FLASH:
            return converted + flash_scratch_bytes(query.shape)
        case AttentionKernel.MEMORY_EFFICIENT:
            return converted
    return _decomposed(torch.ops.aten._scaled_dot_product_attention_math.default, args, kwargs, _first)


def _first(outputs: Sequence[Any]) -> Any:
    return outputs[0]


def _is_composite(func: Any) -> bool:
    """Whether torch's own kernels define the op by other ops; decompositions written for compilers do not count."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE))


class _Temporaries(TorchDispatchMode):
    """Decomposes composites and follows the memory of what their primitive ops return."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {storage._cdata for storage in _storages(given)}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._peak_bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would load dynamo, which takes a second

    def beyond(self, output: Any) -> int:
        """The peak without what the op returns in memory of its own."""
        returned = {storage._cdata: storage.nbytes() for storage in _storages(output)}
        fresh = sum(size for address, size in returned.items() if address not in self._given)
        return max(self._peak_bytes - fresh, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        output = func(*args, **kwargs)
        for storage in _storages(output):
            if storage._cdata not in self._given and storage._cdata not in self._live:
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        for address in [address for address, (reference, _) in self._live.items() if reference.expired()]:
            del self._live[address]
        self._peak_bytes = max(self._peak_bytes, sum(size for _, size in self._live.values()))
        return output


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in flat_tensors(value))
