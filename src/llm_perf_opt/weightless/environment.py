"""What happens above the dispatcher: the torch functions that must behave differently without weights.

They are marked "not to be compiled" by a wrapper that asks dynamo to disable itself and remembers the answer on the
function. Where dynamo is not loaded there is nothing to disable: the function itself is the answer.

Each replacement is undone on every way out. They are needed because they decide in Python, before any op is dispatched.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType
from typing import Any

import torch
import torch._compile
import torch._decomp.decompositions
import torch._library.simple_registry
import torch._refs.nn.functional
import torch._refs.special
import torch.nn.init
from torch._decomp import global_decomposition_table
from torch.distributions import Distribution

from llm_perf_opt.weightless.ghost import Ghost

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


_ABSENT = object()


class Disguise:
    """The device that model code sees. Inside the engine (`inside` above 0) every tensor tells the truth: `cpu`.

    A tensor whose C++ device is `cuda` cannot be used in a CPU-only build of torch: `contiguous()`, fused attention and
    mask indexing ask for a CUDA device guard. So ghosts live on the CPU and only say otherwise in Python.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device("cuda:0" if device == "cuda" else device)
        self.shown = str(self.device)
        self.is_cuda = self.device.type == "cuda"
        self.inside = 0


class Patches:
    """Attributes replaced for the time of a run."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; remember whether the owner had one of its own, as opposed to an inherited one."""
        before = owner.__dict__.get(name, _ABSENT) if isinstance(owner, type) else getattr(owner, name, _ABSENT)
        self.finally_(functools.partial(_restore, owner, name, before))
        setattr(owner, name, value)

    def finally_(self, undo: Callable[[], object]) -> None:
        """Run `undo` when the patches are taken back, last in first out."""
        self._undo.callback(undo)

    def close(self) -> None:
        """Put everything back."""
        self._undo.close()


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


@contextmanager
def environment(disguise: Disguise) -> Iterator[None]:
    """Everything the engine needs changed outside the dispatcher, undone at the end."""
    patches = Patches()
    try:
        _run_compiled_code_eagerly(patches)
        _keep_autocast(patches)
        _ignore_cuda_calls(patches)
        if disguise.is_cuda:
            _show_cuda(patches, disguise)
        _skip_initialisation_of_ghosts(patches)
        _skip_slow_or_nested_paths(patches)
        yield
    finally:
        patches.close()


def _run_compiled_code_eagerly(patches: Patches) -> None:
    def compile_nothing(model: Any = None, **options: Any) -> Any:
        return model if model is not None else (lambda function: function)

    patches.replace(torch, "compile", compile_nothing)
    # A function compiled before has loaded dynamo; loading it for nothing would take a second.
    dynamo_config = sys.modules.get("torch._dynamo.config")
    if dynamo_config is not None:
        patches.replace(dynamo_config, "disable", True)


def _keep_autocast(patches: Patches) -> None:
    """`autocast("cuda")` acts as `autocast("cpu")` with CUDA's default dtype: ghosts carry the CPU's autocast keys."""
    original = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if device_type in ("cuda", "meta"):
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        original(self, device_type, dtype, *args, **kwargs)

    patches.replace(torch.autocast, "__init__", init)


def _ignore_cuda_calls(patches: Patches) -> None:
    for name in ("synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all"):
        patches.replace(torch.cuda, name, lambda *args, **kwargs: None)
    patches.replace(torch.cuda, "is_current_stream_capturing", lambda: False)
    for owner, name in ((torch.nn.Module, "cuda"), (torch.Tensor, "cuda"), (torch.Tensor, "pin_memory")):
        patches.replace(owner, name, lambda self, *args, **kwargs: self)
    # Without this, torch.tensor(..., device="cuda") asks for a CUDA device after it has built the values on the CPU.
    torch._C._ensureCUDADeviceGuardSet()
    lifts_only_cpu = torch._C._only_lift_cpu_tensors()
    patches.finally_(lambda: torch._C._set_only_lift_cpu_tensors(lifts_only_cpu))
    torch._C._set_only_lift_cpu_tensors(True)


def _show_cuda(patches: Patches, disguise: Disguise) -> None:
    true_device = torch._C.TensorBase.device
    shown = disguise.device

    def device(tensor: torch.Tensor) -> torch.device:
        actual: torch.device = true_device.__get__(tensor)
        return actual if disguise.inside or actual.type == "meta" else shown

    patches.replace(torch.Tensor, "device", property(device))
    patches.replace(torch.Tensor, "is_cuda", property(lambda tensor: not disguise.inside))
    patches.replace(torch.Tensor, "is_cpu", property(lambda tensor: bool(disguise.inside)))
    patches.replace(torch.Tensor, "get_device", lambda tensor: shown.index)
    answers: dict[str, Any] = {
        "is_available": True,
        "current_device": shown.index,
        "device_count": 1 + (shown.index or 0),
        "is_bf16_supported": True,
        "get_device_capability": (9, 0),
        "get_device_name": "weightless",
        "_lazy_init": None,
    }
    for name, answer in answers.items():
        patches.replace(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)


def _skip_initialisation_of_ghosts(patches: Patches) -> None:
    """A ghost has nothing to initialise; `trunc_normal_` rejects samples in a loop and would never end on one."""
    for name, function in list(vars(torch.nn.init).items()):
        if name.endswith("_") and not name.startswith("__") and callable(function):
            patches.replace(torch.nn.init, name, _unless_ghost(function))


def _unless_ghost(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def initialise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if type(tensor) is Ghost else function(tensor, *args, **kwargs)

    return initialise


def _skip_slow_or_nested_paths(patches: Patches) -> None:
    for function in functions_that_load_dynamo():
        patches.replace(function, ANSWER, function)
    # C++ asks this Python function before every dispatched op (2 microseconds); no op here has such a rule.
    patches.replace(torch._library.simple_registry, "find_torch_dispatch_rule", lambda op, kind: None)
    # The fast path of nn.TransformerEncoder builds nested tensors, which have no strided layout.
    fast_path = torch.backends.mha.get_fastpath_enabled()
    patches.finally_(lambda: torch.backends.mha.set_fastpath_enabled(fast_path))
    torch.backends.mha.set_fastpath_enabled(False)
    # Argument validation compares parameter values, which are not there.
    patches.replace(Distribution, "_validate_args", False)
