"""How a picture of a module is named on the command line, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import ModulePicture, as_pictures, require_modules


@pytest.mark.parametrize(
    ("text", "module", "file", "is_rolled"),
    [
        ("model.layers.0=layer.svg", "model.layers.0", "layer.svg", False),
        ("model.layers.0=out/layer.pdf:rolled", "model.layers.0", "out/layer.pdf", True),
        ("layer.png:unrolled", "", "layer.png", False),
        ("model.svg", "", "model.svg", False),
        ("a=b=c.svg", "a=b", "c.svg", False),
    ],
)
def test_a_picture_is_a_module_a_file_and_a_view(text: str, module: str, file: str, is_rolled: bool) -> None:
    assert ModulePicture.parse(text) == ModulePicture(module=module, file=Path(file), is_rolled=is_rolled)


@pytest.mark.parametrize("text", ["layer", "head=layer.txt", "head=", "", "layer.svg:both", ":rolled"])
def test_a_file_without_a_format_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"\.svg, \.pdf, \.png"):
        ModulePicture.parse(text)


def test_two_pictures_cannot_share_a_file() -> None:
    given = ["a=x.svg", ModulePicture(module="b", file=Path("y.svg")), "x.svg:rolled"]
    with pytest.raises(UsageError, match=r"2 pictures would be written to x\.svg"):
        as_pictures(given)
    assert [picture.module for picture in as_pictures(given[:2])] == ["a", "b"]


def test_an_unknown_module_is_refused_with_the_nearest() -> None:
    pictures = as_pictures(["x.svg", "layers.1.mlp=y.svg"])
    require_modules(pictures, {"", "layers", "layers.1", "layers.1.mlp"})
    with pytest.raises(UsageError, match=r"no module 'layers\.1\.mlp'") as refused:
        require_modules(pictures, {"", "layer.1.mlp"})
    assert refused.value.fix == "did you mean 'layer.1.mlp'?"
