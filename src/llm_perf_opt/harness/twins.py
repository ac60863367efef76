"""Tensors inside whatever a module takes or returns, and the same module and arguments on other tensors."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from llm_perf_opt.core.callgraph import CallGraphBuilder, TensorMeta
from llm_perf_opt.weightless import Ghost
from llm_perf_opt.weightless.ghost import new_ghost
from llm_perf_opt.weightless.spec import spec_of_tensor


class RealTensors:
    """Numbers every storage, so that data flow can be followed from one module to the next.

    A storage that was written into in place gets a new number: what it holds now may depend on the calls in between.
    The weak reference keeps the address of a freed storage from being given to another one, and nothing else alive.
    """

    def __init__(self, builder: CallGraphBuilder) -> None:
        self._builder = builder
        self._metas: dict[Any, TensorMeta] = {}
        self._storages: dict[int, tuple[StorageWeakRef, dict[int, int]]] = {}  # by address: version -> token
        self._next_token = itertools.count().__next__

    def pairs(self, tensors: Sequence[torch.Tensor]) -> list[tuple[TensorMeta, int]]:
        """Metas with storage tokens, as the builder takes them."""
        return [(self.meta(tensor), self._token(tensor)) for tensor in tensors]

    def described(self, tensor: torch.Tensor) -> tuple[TensorMeta, int, int]:
        """A weight, buffer or input: meta, storage token, bytes. Tied weights share a token."""
        tokens = self._tokens(tensor)
        token = next(iter(tokens.values()), None)
        tokens[_version(tensor)] = self._next_token() if token is None else token
        return self.meta(tensor), self._token(tensor), tensor.untyped_storage().nbytes()

    def meta(self, tensor: torch.Tensor) -> TensorMeta:
        """The one meta of this shape, dtype and device."""
        key = (tensor.shape, tensor.dtype, tensor.device)
        meta = self._metas.get(key)
        if meta is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            meta = self._metas[key] = self._builder.meta(tuple(tensor.shape), dtype, tensor.device.type)
        return meta

    def _token(self, tensor: torch.Tensor) -> int:
        """The number of the memory behind a tensor, as it is now; views share it."""
        tokens, version = self._tokens(tensor), _version(tensor)
        token = tokens.get(version)
        if token is None:
            token = tokens[version] = self._next_token()
        return token

    def _tokens(self, tensor: torch.Tensor) -> dict[int, int]:
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None or known[0].expired():
            known = self._storages[storage._cdata] = (StorageWeakRef(storage), {})
        return known[1]


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was written into in place; torch does not count it for tensors of inference mode."""
    return 0 if tensor.is_inference() else tensor._version


T = TypeVar("T")
_LEAVES = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)
_DEPTH = 12  # a cache of two caches, each an object with a list of layers with two tensors; no argument is deeper


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in `value`, in the order of appearance; a tensor that appears twice is listed twice."""
    tensors: list[torch.Tensor] = []
    _collect(value, tensors, _DEPTH)
    return tensors


def distinct_tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in `value` once, in the order of appearance."""
    return list({id(tensor): tensor for tensor in tensors_in(value)}.values())


def with_tensors(arguments: T, others: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> T:
    """A copy of `arguments` with the second tensor of each pair in the places of the first; a cache in it is new."""
    return copy.deepcopy(arguments, {id(tensor): other for tensor, other in others})


def _collect(value: Any, tensors: list[torch.Tensor], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif isinstance(value, _LEAVES) or depth == 0:
        return
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, tensors, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, tensors, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name), tensors, depth - 1)
    elif is_cache(value):
        _collect(vars(value), tensors, depth - 1)


def is_cache(value: Any) -> bool:
    """Caches are ordinary objects of many libraries; what they share is their name, or their base class's name."""
    return hasattr(value, "__dict__") and any("Cache" in base.__name__ for base in type(value).__mro__)


_STANDARD_DEVIATION = 0.02


def meta_twin(value: T) -> T:
    """A copy with every tensor on the meta device: shapes and nothing else."""
    return _twin(
        value, lambda tensor: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    )


def ghost_twin(value: T) -> T:
    """A copy with a ghost in place of every float tensor; integer and bool tensors stay as they are."""
    return _twin(value, lambda tensor: new_ghost(spec_of_tensor(tensor)) if tensor.is_floating_point() else tensor)


def training_twin(arguments: dict[str, T]) -> dict[str, T]:
    """Copies on ghosts that train: weights have gradients as before, and an optimizer among them holds the copies."""
    memo: dict[int, Any] = {}
    for argument in arguments.values():
        for tensor in _tensors_of(argument):
            if id(tensor) not in memo:
                made = new_ghost(spec_of_tensor(tensor)) if tensor.is_floating_point() else tensor
                is_weight = _is_parameter(tensor)
                memo[id(tensor)] = torch.nn.Parameter(made, tensor.requires_grad) if is_weight else made
    return copy.deepcopy(arguments, memo)


def twin(value: T) -> T:
    """A copy on tensors of the same kind: new ghosts for ghosts, the same values where there are any."""
    return _twin(value, _same_kind)


def _same_kind(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor.data, Ghost):
        return copy.deepcopy(tensor)
    with _disable_current_modes():  # an open engine would make a ghost of it
        return tensor.detach().clone()


def real_twin(value: T, seed: int = 0) -> T:
    """A copy with small random values in place of every ghost; what was real stays as it is."""
    generator = torch.Generator().manual_seed(seed)

    def made(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor.data, Ghost):
            return tensor.detach().clone()
        noise = torch.randn(tensor.shape, generator=generator) * _STANDARD_DEVIATION
        return noise.to(tensor.dtype)

    return _twin(value, made)


def _twin(value: T, make: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """A deep copy in which `make` replaces every tensor; one tensor in two places stays one."""
    memo: dict[int, Any] = {}
    for tensor in _tensors_of(value):
        if id(tensor) not in memo:
            made = make(tensor)
            memo[id(tensor)] = torch.nn.Parameter(made, requires_grad=False) if _is_parameter(tensor) else made
    return copy.deepcopy(value, memo)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.optim.Optimizer):
        return tensors_in(list(map(dict, value.state.values())))
    if not isinstance(value, torch.nn.Module):
        return tensors_in(value)
    tensors: list[torch.Tensor] = [*value.parameters(), *value.buffers()]
    for module in value.modules():
        tensors += tensors_in({name: item for name, item in vars(module).items() if not name.startswith("_")})
    return tensors


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or getattr(tensor, "_is_param", False)
