"""Released weights: safetensors files in a folder, by the names of the state dict."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch

from llm_perf_opt.errors import PerfOptError, UsageError

_INDEX = "*.safetensors.index.json"
_NAMES_SHOWN = 8


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
            f"The weights in {folder} are not those of this model.",
            why=_differences(missing, unexpected),
            fix="check that folder and model belong together, in this version of the model's code",
        )


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Equal for tied weights; a tensor without elements has no memory and is only equal to itself."""
    return tensor.data_ptr() or id(tensor), tensor.numel()


def _files(folder: Path) -> list[Path]:
    """The shards that the index names, or every safetensors file where there is no index."""
    index = next(iter(sorted(folder.glob(_INDEX))), None)
    if index is None:
        files = sorted(folder.glob("*.safetensors"))
    else:
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PerfOptError(
                f"{index} is no index of weights.", why=f"{type(error).__name__}: {error}", fix="fetch the file again"
            ) from error
    absent = [file.name for file in files if not file.is_file()]
    if absent or not files:
        raise UsageError(
            f"{folder} holds no weights." if not files else f"{folder} lacks {', '.join(absent)}.",
            why="weights are read from *.safetensors files, all those that the index names",
            fix="point --load-weights at the folder with the released files, or use --load-weights random",
        )
    return files


def _tensors(file: Path) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors of one file, one at a time."""
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
            for name in opened.keys():  # noqa: SIM118  not a dictionary
                yield name, opened.get_tensor(name)
    except SafetensorError as error:
        raise PerfOptError(f"{file} cannot be read.", why=str(error)[:300], fix="fetch the file again") from error


def _copy(place: torch.Tensor, tensor: torch.Tensor, name: str, file: Path) -> None:
    if place.shape != tensor.shape:
        raise PerfOptError(
            f"{name} in {file.name} has the wrong shape.",
            why=f"it is {list(tensor.shape)} there and {list(place.shape)} in the model",
            fix="use the weights and the configuration of the same release",
        )
    place.copy_(tensor)


def _differences(missing: list[str], unexpected: list[str]) -> str:
    parts = []
    for words, names in (("missing", missing), ("without a place in the model", unexpected)):
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            parts.append(f"{len(names)} {words}: {', '.join(sorted(names)[:_NAMES_SHOWN])}{more}")
    return "; ".join(parts)
