"""What happens above the dispatcher: the torch functions that must behave differently without weights.

They are marked "not to be compiled" by a wrapper that asks dynamo to disable itself and remembers the answer on the
function. Where dynamo is not loaded there is nothing to disable: the function itself is the answer.

Each replacement holds in the thread of the run alone, and is undone on every way out. They are needed because they
decide in Python, before any op is dispatched.

FSDP2 runs without memory to take away and without streams. It keeps the tensor of a weight and resizes its storage to
0, and a ghost has none: memory that is taken away is told to the record, memory that comes back is a new block under
a new number, which every view of the tensor shares. It asks the mesh for its device, which in a fake world is the
CPU, and compares it with the device of the weights: so it gets the device that model code sees. That device has no
streams here: CPU streams, which do nothing, take their place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import CellType, FunctionType, ModuleType
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
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.interrupts import puts_back
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.weightless.ghost import Ghost, active_engine
from llm_perf_opt.weightless.storage import Storage, next_number

ANSWER = "__dynamo_disable"
_ROOMS = (torch._refs, torch._refs.special, torch._refs.nn.functional, torch._decomp.decompositions)

# Model code, torch and our own dispatch use these. Each changes something and then returns: an interrupt in between
# would leave it changed for good.
_MODES = (torch.autocast, torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode)
for _mode in (*_MODES, TorchDispatchMode, TorchFunctionMode):
    puts_back(_mode.__enter__)
    puts_back(_mode.__exit__)

_FSDP = "torch.distributed.fsdp._fully_shard."
_FILES = ("_fully_shard", "_fsdp_collectives", "_fsdp_init", "_fsdp_param", "_fsdp_param_group", "_fsdp_state")


def functions_that_load_dynamo() -> tuple[Callable[..., Any], ...]:
    """Shape functions that have no answer yet; none once dynamo is loaded."""
    if "torch._dynamo" in sys.modules:
        return ()
    return tuple(function for function in _wrapped_functions() if not hasattr(function, ANSWER))


@functools.cache
def _wrapped_functions() -> tuple[Callable[..., Any], ...]:
    """Every function under torch's mark, found through the closures of the decorators around it."""
    # torch keeps no list of what it has wrapped: only the closures lead from a public function to the marked one.
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


class Disguise:
    """The device that model code sees. Inside the engine (`inside` above 0) every tensor tells the truth: `cpu`.

    A tensor with `cuda` as its C++ device cannot be used in a CPU-only build of torch: `contiguous()`, fused attention
    and mask indexing ask for a CUDA device guard. So ghosts live on the CPU and only say otherwise in Python.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device("cuda:0" if device == "cuda" else device)
        self.shown = str(self.device)
        self.is_cuda = self.device.type == "cuda"
        self.inside = 0


class Environment(ThreadPatches):
    """Everything the engine needs changed outside the dispatcher, in the thread that opens it, until it is closed."""

    def __init__(self, disguise: Disguise) -> None:
        super().__init__()
        self._disguise = disguise

    def __enter__(self) -> Environment:
        with ExitStack() as opening:
            opening.callback(self.close)
            _run_compiled_code_eagerly(self)
            _keep_autocast(self)
            _ignore_cuda_calls(self)
            if self._disguise.is_cuda:
                _show_cuda(self, self._disguise)
            _skip_initialisation_of_ghosts(self)
            _skip_slow_or_nested_paths(self)
            run_fully_sharded(self, self._disguise.device)
            opening.pop_all()
        return self


def _run_compiled_code_eagerly(patches: ThreadPatches) -> None:
    def compile_nothing(model: Any = None, **options: Any) -> Any:
        return model if model is not None else (lambda function: function)

    patches.replace(torch, "compile", compile_nothing)
    # A function compiled before has loaded dynamo; loading it for nothing would take a second.
    compiled_calls = sys.modules.get("torch._dynamo.eval_frame")
    if compiled_calls is not None:
        patches.replace(compiled_calls, "_callback_from_stance", lambda callback: None)


def _keep_autocast(patches: ThreadPatches) -> None:
    """`autocast("cuda")` acts as `autocast("cpu")` with CUDA's default dtype: ghosts carry the CPU's autocast keys.

    torch casts the operands of the `bmm` inside an einsum; the engine takes an einsum whole, so they are cast before.
    """

    def on_the_cpu(plain: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
            if device_type in ("cuda", "meta"):
                device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
            plain(self, device_type, dtype, *args, **kwargs)

        return init

    def with_operands_cast(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def einsum(equation: str, operands: Sequence[torch.Tensor], **path: Any) -> torch.Tensor:
            if torch.is_autocast_enabled("cpu") and _has_products_to_sum(equation, operands):
                dtype, narrow = torch.get_autocast_dtype("cpu"), (torch.float32, torch.bfloat16, torch.float16)
                operands = [operand.to(dtype) if operand.dtype in narrow else operand for operand in operands]
            return plain(equation, operands, **path)

        return einsum

    patches.wrap(torch.autocast, "__init__", on_the_cpu)
    patches.wrap(torch._VF, "einsum", with_operands_cast)


def _has_products_to_sum(equation: str, operands: Sequence[torch.Tensor]) -> bool:
    """Whether an einsum is a matmul: with no index to sum over it only multiplies, which autocast leaves alone."""
    inputs, arrow, output = equation.partition("->")
    labels = [label for label in inputs if label.isalpha()]
    is_summed = set(labels) - set(output) if arrow else len(set(labels)) < len(labels)
    return len(operands) > 1 and bool(is_summed)


def _ignore_cuda_calls(patches: ThreadPatches) -> None:
    for name in ("synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all"):
        patches.replace(torch.cuda, name, lambda *args, **kwargs: None)
    patches.replace(torch.cuda, "is_current_stream_capturing", lambda: False)
    for owner, name in ((torch.nn.Module, "cuda"), (torch.Tensor, "cuda"), (torch.Tensor, "pin_memory")):
        patches.replace(owner, name, lambda self, *args, **kwargs: self)
    # Without this, torch.tensor(..., device="cuda") asks for a CUDA device after it has built the values on the CPU.
    # It holds for all threads, and changes no result: values are made on the CPU first and moved afterwards.
    torch._C._ensureCUDADeviceGuardSet()
    lifts_only_cpu = torch._C._only_lift_cpu_tensors()
    patches.finally_(lambda: torch._C._set_only_lift_cpu_tensors(lifts_only_cpu))
    torch._C._set_only_lift_cpu_tensors(True)


def _show_cuda(patches: ThreadPatches, disguise: Disguise) -> None:
    shown = disguise.device

    def shown_device(plain: Callable[[torch.Tensor], torch.device]) -> Callable[[torch.Tensor], torch.device]:
        def device(tensor: torch.Tensor) -> torch.device:
            actual = plain(tensor)
            return actual if disguise.inside or actual.type == "meta" else shown

        return device

    patches.wrap_property(torch.Tensor, "device", shown_device)
    patches.wrap_property(torch.Tensor, "is_cuda", lambda plain: lambda tensor: not disguise.inside)
    patches.wrap_property(torch.Tensor, "is_cpu", lambda plain: lambda tensor: bool(disguise.inside))
    patches.replace(torch.Tensor, "get_device", lambda tensor: shown.index)
    answers: dict[str, object] = {
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


def _skip_initialisation_of_ghosts(patches: ThreadPatches) -> None:
    """A ghost has nothing to initialise; `trunc_normal_` rejects samples in a loop and would never end on one."""
    for name, function in list(vars(torch.nn.init).items()):
        if name.endswith("_") and not name.startswith("__") and callable(function):
            patches.wrap(torch.nn.init, name, _unless_ghost)


def _unless_ghost(function: Callable[..., Any]) -> Callable[..., Any]:
    def initialise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if type(tensor) is Ghost else function(tensor, *args, **kwargs)

    return initialise


def _skip_slow_or_nested_paths(patches: ThreadPatches) -> None:
    for function in functions_that_load_dynamo():
        # For all threads: what the mark remembers is the function itself, which does the same.
        patches.finally_(functools.partial(_forget_answer, function))
        setattr(function, ANSWER, function)
    # C++ asks this Python function before every dispatched op (2 microseconds); no op here has such a rule.
    patches.replace(torch._library.simple_registry, "find_torch_dispatch_rule", lambda op, kind: None)
    # The fast path of nn.TransformerEncoder builds nested tensors, which have no strided layout.
    patches.replace(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    # Argument validation compares parameter values, which are not there.
    patches.wrap(Distribution, "__init__", _unvalidated)


def _forget_answer(function: Callable[..., Any]) -> None:
    if vars(function).get(ANSWER) is function:
        delattr(function, ANSWER)


def _unvalidated(plain: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        plain(self, torch.Size(batch_shape), torch.Size(event_shape), validate_args=False)

    return init


def run_fully_sharded(patches: ThreadPatches, shown: torch.device) -> None:
    """Only where FSDP2 is loaded: who spreads a model so has imported it before it runs."""
    files = [module for name in _FILES if (module := sys.modules.get(_FSDP + name)) is not None]
    if not files:
        return
    memory = _Memory(sys.modules[_FSDP + "_fsdp_param"])
    _replace(patches, files, "free_storage", memory.free)
    _replace(patches, files, "alloc_storage", memory.allocate)
    _replace(patches, files, "_get_device_from_mesh", lambda mesh: shown)
    _replace(patches, files, "_get_device_handle", lambda *device_type: torch.cpu)


def _replace(patches: ThreadPatches, files: list[ModuleType], name: str, function: Callable[..., Any]) -> None:
    for module in files:
        if name in vars(module):
            patches.replace(module, name, function)


class _Memory:
    """The two helpers that take the memory of a tensor away and give it back."""

    def __init__(self, real: Any) -> None:
        self._free_real, self._allocate_real = real.free_storage, real.alloc_storage
        self._freed: set[int] = set()  # numbers of blocks that are gone while their tensors live

    def free(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not Ghost:
            self._free_real(tensor)
        elif tensor.memory.number not in self._freed:
            self._freed.add(tensor.memory.number)
            if Storage.on_free is not None:
                Storage.on_free(tensor.memory.number)

    def allocate(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not Ghost:
            self._allocate_real(tensor)
        elif tensor.memory.number in self._freed:
            self._freed.discard(tensor.memory.number)
            tensor.memory.number = next_number()
            active_engine().new_block(tensor)
