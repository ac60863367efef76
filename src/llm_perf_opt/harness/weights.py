"""Weights of a real model: released safetensors by name, or random ones made at the speed of memory.

Which files of a folder hold its weights, an index may say. It comes from outside: it may name files of its own folder
and no others, and what it names is checked before anything is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, read_foreign_json, require_own_files
from llm_perf_opt.core.thread_patches import is_alone

_INDEX = "*.safetensors.index.json"
WEIGHTS_INDEX = FileKind(name="index of weights", fix="fetch the file again", stays_in_folder=True, error=UsageError)
_MOST_FILES = 10_000

_NAMES_SHOWN = 8


def find_index(folder: Path) -> Path | None:
    """The index of the folder's weights; None where there is none."""
    return next(iter(sorted(folder.glob(_INDEX))), None)


def read_weight_map(index: Path) -> dict[str, str]:
    """Name of a tensor -> name of the file that holds it, a file of the folder that the index lies in."""
    document = read_foreign_json(index, WEIGHTS_INDEX)
    shards = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _refused(index, 'it has no object "weight_map" of file names')
    names = set(shards.values())
    if len(names) > _MOST_FILES:
        raise _refused(index, f"it names {len(names):,} files, more than {_MOST_FILES:,}")
    for name in sorted(names):
        if not _is_inside(name):
            raise _refused(index, f"it names {name[:200]!r}, which is no file of its own folder")
    return shards


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    is_plain = name.isprintable() and len(name) <= 255 and ":" not in name
    return is_plain and name.endswith(".safetensors") and not path.is_absolute() and ".." not in path.parts


def _refused(index: Path, why: str) -> UsageError:
    return UsageError(f"{index} is not a valid index of weights.", why=why, fix=WEIGHTS_INDEX.fix)


@torch.no_grad()
def load_weights(model: torch.nn.Module, folder: Path) -> None:
    """Copy every tensor of the folder into the model, in the model's dtype.

    Every name must have a place and every weight a name; of tied weights one name is enough.
    """
    places = model.state_dict(keep_vars=True)
    loaded: set[str] = set()
    unexpected: list[str] = []
    for file in _files(folder):
        for name, tensor in _tensors(file):
            if name not in places:
                unexpected.append(name)
                continue
            _copy(places[name], tensor, name, file)
            loaded.add(name)
    filled = {_memory(places[name]) for name in loaded}
    missing = [name for name, place in places.items() if name not in loaded and _memory(place) not in filled]
    if missing or unexpected:
        raise PerfOptError(
            f"The weights in {folder} belong to another model.",
            why=_differences(missing, unexpected),
            fix="check that folder and model belong together, in this version of the model's code",
        )


@torch.no_grad()
def load_some_weights(places: Mapping[str, torch.Tensor], folder: Path, under: Sequence[str]) -> None:
    """Copy those tensors of the folder that belong to some modules of a model, and read no others.

    `places` are the weights to fill, a tied one under each of its names, of which one is enough. `under` are the paths
    of the modules: the folder must have each weight below them, and nothing there that the model does not have.
    """
    filled: set[int] = set()
    unexpected: list[str] = []
    for file, names in _named_tensors(folder).items():
        inside = [name for name in names if name in places or _is_below(name, under)]
        unexpected += [name for name in inside if name not in places]
        for name, tensor in _tensors(file, [name for name in inside if name in places]):
            _copy(places[name], tensor, name, file)
            filled.add(id(places[name]))
    missing = [name for name, place in places.items() if id(place) not in filled]
    if missing or unexpected:
        raise PerfOptError(
            f"The weights in {folder} do not fit {', '.join(path or 'the model' for path in under)}.",
            why=_differences(missing, unexpected),
            fix="check that folder and model belong together, in this version of the model's code",
        )


def _is_below(name: str, paths: Sequence[str]) -> bool:
    return any(not path or name.startswith(f"{path}.") for path in paths)


def _named_tensors(folder: Path) -> dict[Path, list[str]]:
    """The names in each file: by the index where there is one, so that a file nobody needs is not even opened."""
    index = find_index(folder)
    if index is None:
        return {file: _names_in(file) for file in _files(folder)}
    by_file: dict[Path, list[str]] = {}
    for name, file in read_weight_map(index).items():
        by_file.setdefault(folder / file, []).append(name)
    require_own_files(folder, [file for file in by_file if file.exists()])
    return by_file


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Equal for tied weights; a tensor without elements has no memory and is only equal to itself."""
    return tensor.data_ptr() or id(tensor), tensor.numel()


def _files(folder: Path) -> list[Path]:
    """The shards that the index names, or every safetensors file where there is no index."""
    index = find_index(folder)
    if index is None:
        files = sorted(folder.glob("*.safetensors"))
    else:
        files = [folder / name for name in sorted(set(read_weight_map(index).values()))]
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        raise UsageError(
            f"{folder} holds no weights." if not files else f"{folder} lacks {', '.join(absent)}.",
            why="weights are read from every *.safetensors file that the index names",
            fix="point --load-weights at the folder with the released files, or use --load-weights random",
        )
    require_own_files(folder, files)
    return files


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A file of tensors, of which nothing is read yet."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise PerfOptError(
            "safetensors is not installed.",
            why="released weights are read with it",
            fix="pip install 'llm-perf-opt[weights]'",
        ) from error
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (SafetensorError, FileNotFoundError) as error:
        raise PerfOptError(f"{file} cannot be read.", why=str(error)[:300], fix="fetch the file again") from error


def _names_in(file: Path) -> list[str]:
    with _opened(file) as opened:
        return list(opened.keys())


def _tensors(file: Path, names: Sequence[str] | None = None) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors of one file, one at a time; default: all of them."""
    if names is not None and not names:
        return
    with _opened(file) as opened:
        for name in opened.keys() if names is None else names:
            yield name, opened.get_tensor(name)


def _copy(place: torch.Tensor, tensor: torch.Tensor, name: str, file: Path) -> None:
    if place.shape != tensor.shape:
        raise PerfOptError(
            f"{name} in {file.name} has the wrong shape.",
            why=f"the file has {list(tensor.shape)}, and the model {list(place.shape)}",
            fix="use the weights and the configuration of the same release",
        )
    if place.is_floating_point() != tensor.is_floating_point():
        raise PerfOptError(
            f"{name} in {file.name} has the wrong type.",
            why=f"the file has {str(tensor.dtype)[6:]}, and the model {str(place.dtype)[6:]}",
            fix="use weights that are not quantised, of the same release as the configuration",
        )
    place.copy_(tensor)


def _differences(missing: list[str], unexpected: list[str]) -> str:
    parts = []
    for words, names in (("missing", missing), ("without a place in the model", unexpected)):
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            parts.append(f"{len(names)} {words}: {', '.join(sorted(names)[:_NAMES_SHOWN])}{more}")
    return "; ".join(parts)


_STANDARD_DEVIATION = 0.02
_NOISE_VALUES = 1_048_583  # a prime, so that no row of a matrix meets the same noise as the row before it
_LARGE = 1 << 16
_RANDOM_FILLS = frozenset(
    {
        torch.Tensor.uniform_,
        torch.Tensor.normal_,
        torch.Tensor.bernoulli_,
        torch.Tensor.random_,
        torch.Tensor.exponential_,
        init.uniform_,
        init.normal_,
        init.trunc_normal_,
        init.kaiming_uniform_,
        init.kaiming_normal_,
        init.xavier_uniform_,
        init.xavier_normal_,
        init.orthogonal_,
    }
)
_DRAWS = frozenset({torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli})


class _OwnNumbers(TorchFunctionMode):
    """Lets random in-place fills of large tensors pass without doing anything; small ones draw numbers of their own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        is_fill = func in _RANDOM_FILLS
        # torch.nn.init asks a mode before it does anything, and hands its tensor over by name
        tensor: Any = args[0] if args else given.get("tensor")
        if (is_fill or func is torch.Tensor.erfinv_) and tensor.numel() >= _LARGE and tensor.is_floating_point():
            return tensor
        if func is torch.rand_like or func is torch.randn_like:
            made = torch.empty_like(*args, **given)
            fill = made.uniform_ if func is torch.rand_like else made.normal_
            return fill(generator=self._generator)
        device = tensor.device if is_fill else given.get("device") or "cpu"
        if (is_fill or func in _DRAWS) and given.get("generator") is None and torch.device(device).type == "cpu":
            given["generator"] = self._generator
        return func(*args, **given)


@contextmanager
def same_random_numbers(seed: int = 0) -> Iterator[None]:
    """Build a model with the same random numbers each time; buffers and constant fills are as ever.

    Billions of numbers are not drawn. The few that are come from a generator of their own, since torch's is of the
    whole process: another thread would draw from it in between. With no other thread torch's has the seed too, for
    whatever takes no generator, and is put back.
    """
    with ExitStack() as undo:
        if is_alone():
            undo.enter_context(torch.random.fork_rng(devices=()))
            torch.manual_seed(seed)
        undo.enter_context(_OwnNumbers(seed))
        yield


@torch.no_grad()
def fill_with_noise(model: torch.nn.Module) -> None:
    """Give every matrix the same kind of noise, whatever its constructor did; the same model gets the same values.

    Vectors (biases, scales of norms) keep what the constructor gave them, unless that was no finite number.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(_NOISE_VALUES, generator=generator) * _STANDARD_DEVIATION
    by_dtype: dict[torch.dtype, torch.Tensor] = {}
    start = 0
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim < 2:
            torch.nan_to_num_(parameter, nan=0.0, posinf=0.0, neginf=0.0)
            continue
        if parameter.dtype not in by_dtype:
            by_dtype[parameter.dtype] = noise.to(parameter.dtype)
        _tile(parameter, by_dtype[parameter.dtype], start)
        start = (start + parameter.numel()) % _NOISE_VALUES


def _tile(parameter: torch.Tensor, noise: torch.Tensor, start: int) -> None:
    """Copy `noise` over and over, beginning at `start`."""
    if not parameter.is_contiguous():
        repeats = math.ceil((start + parameter.numel()) / len(noise))
        parameter.copy_(noise.repeat(repeats)[start : start + parameter.numel()].view(parameter.shape))
        return
    flat = parameter.view(-1)
    done = 0
    while done < len(flat):
        piece = noise[start : start + len(flat) - done]
        flat[done : done + len(piece)].copy_(piece)
        done, start = done + len(piece), 0
