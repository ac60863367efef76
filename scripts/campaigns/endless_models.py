"""Models that never end, each in a way of its own; also as a folder with code, for the command line."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 4
_EXPERTS, _LAYERS, _LEVELS = 10**7, 10**6, 60


class Ops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        while True:
            values = self.layer(values)


class Loop(nn.Module):
    """A loop that no op interrupts."""

    def forward(self, values: Tensor) -> Tensor:
        while True:
            pass


class Objects(nn.Module):
    """Memory without end, none of it a tensor's."""

    def forward(self, values: Tensor) -> Tensor:
        held = []
        while True:
            held.append(bytearray(b"x") * (1 << 20))


class Tensors(nn.Module):
    """Memory without end, of tensors that hold numbers also where floats do not."""

    def forward(self, values: Tensor) -> Tensor:
        held = []
        while True:
            held.append(torch.full((1 << 16,), 7))


class Doubling(nn.Module):
    """Calls its child twice, which calls its own twice: 2^60 calls."""

    def __init__(self, levels: int = _LEVELS) -> None:
        super().__init__()
        self.below: nn.Module = Doubling(levels - 1) if levels else nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.below(self.below(values))
        return result


class Experts(nn.Module):
    """Ten million experts, each a module."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList()
        for _ in range(_EXPERTS):
            self.experts.append(nn.Linear(WIDTH, WIDTH))


class Layers(nn.Module):
    """A million layers, which no configuration counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(_LAYERS):
            self.layers.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)))


RUNNING: dict[str, type[nn.Module]] = {
    "ops": Ops,
    "a Python loop": Loop,
    "Python objects": Objects,
    "tensors": Tensors,
    "exponential recursion of modules": Doubling,
}
BUILDING: dict[str, type[nn.Module]] = {"10^7 experts": Experts, "10^6 layers": Layers}
ALL = RUNNING | BUILDING

_CODE = """
import torch
from scripts.campaigns.endless_models import ALL, WIDTH
from transformers import PretrainedConfig, PreTrainedModel


class Config(PretrainedConfig):
    model_type = "endless"

    def __init__(self, way="ops", only_for_real=False, **others):
        super().__init__(**others)
        self.way, self.only_for_real, self.vocab_size = way, only_for_real, 16


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(16, WIDTH)
        self.inner = ALL[config.way]()
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids=None):
        values = self.embed(input_ids)
        if self.config.only_for_real and type(values) is not torch.Tensor:
            return values
        return self.inner(values)
"""


def write_folder(folder: Path, way: str, *, only_for_real: bool = False) -> Path:
    """A model folder with code of its own. `only_for_real`: it ends on tensors without values, and on others not."""
    folder.mkdir(parents=True)
    fields = {
        "model_type": "endless",
        "architectures": ["Model"],
        "auto_map": {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"},
        "way": way,
        "only_for_real": only_for_real,
    }
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    (folder / "modeling.py").write_text(_CODE, "utf-8")
    return folder
