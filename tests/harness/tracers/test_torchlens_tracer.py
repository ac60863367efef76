"""What only the torchlens tracer does: count ops by module, and refuse versions it cannot read."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from shutil import which

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torchlens", reason="an optional extra")

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.protocols import ModulePicture
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.torchlens_tracer import TorchLensTracer
from tests.harness.tracers.hard_cases import CASES


class Block(nn.Module):
    """Four ops of its own around one layer; `chunk` gives two results and is one op."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.layer(x * 2).chunk(2, dim=-1)
        return torch.cat([left, right + 1], dim=-1)


def traced(model: nn.Module) -> Target:
    return Target(model="m", phase="p", workload={}, build=lambda: model, invoke=lambda m: m(torch.ones(2, 4)))


def test_ops_are_counted_in_the_module_that_runs_them() -> None:
    graph = TorchLensTracer().trace(traced(Block()))
    assert graph.op_call_counts == {"": 4, "layer": 1}
    assert graph.coverage is not None
    assert graph.coverage.ops == 6  # and `ones`, outside the model
    assert graph.ops is None


def test_an_edge_counts_calls_and_not_ops() -> None:
    graph = TorchLensTracer().trace(traced(nn.Sequential(Block(), Block())))
    assert graph.edges == {"->0": 1, "0->0.layer": 1, "->1": 1, "1->1.layer": 1}
    assert graph.op_call_counts["0"] == 4


def test_no_activation_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    tracer = TorchLensTracer()
    original = tracer._torchlens.trace

    def spy(*args: object, **kwargs: object) -> object:
        kept.append(original(*args, **kwargs))
        return kept[-1]

    monkeypatch.setattr(tracer._torchlens, "trace", spy)
    tracer.trace(CASES["tied weights"].target())
    assert kept[0].num_saved_ops == 0
    assert all(op.out is None for op in kept[0].ops)


def test_the_forward_runs_once() -> None:
    runs = []
    inputs = torch.ones(2, 4)  # made outside the run, which TorchLens would look into by running again
    model = nn.Linear(4, 4)
    TorchLensTracer().trace(
        Target(model="m", phase="p", workload={}, build=lambda: model, invoke=lambda m: (runs.append(1), m(inputs))[1])
    )
    assert runs == [1]


@pytest.mark.parametrize("version", ["1.7.0", "2.0.0", "2.34.1", "2.37.0", "3.0"])
def test_another_version_is_refused_with_the_one_that_works(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(PerfOptError, match=f"TorchLens {version}") as refused:
        TorchLensTracer()
    assert "torchlens>=2.35,<2.37" in refused.value.fix


def test_a_missing_library_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(PerfOptError, match="not installed") as refused:
        TorchLensTracer()
    assert refused.value.fix == "pip install 'llm-perf-opt[torchlens]'"


needs_dot = pytest.mark.skipif(which("dot") is None, reason="TorchLens draws with Graphviz's dot")


class Repeating(nn.Module):
    """One layer, used three times; its own `forward` is called directly by the model around it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.relu(self.cell(x))
        return x


class Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Repeating()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.forward(x * 2)


@needs_dot
def test_the_picture_of_a_module_below_a_container(tmp_path: Path) -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()])})
    target = Target(
        model="m", phase="p", workload={}, build=lambda: model, invoke=lambda m: m["blocks"][1](torch.ones(2, 4))
    )
    tracer = TorchLensTracer()
    tracer.draw(target, ModulePicture(module="blocks.1", file=tmp_path / "block.svg"))
    drawn = (tmp_path / "block.svg").read_text()
    assert all(op in drawn for op in ("linear", "chunk", "cat"))
    assert [file.name for file in tmp_path.iterdir()] == ["block.svg"]
    for path in ("blocks.0", "blocks.7"):
        with pytest.raises(UsageError, match=re.escape(path)):
            tracer.draw(target, ModulePicture(module=path, file=tmp_path / "other.svg"))
    assert "forward" not in vars(model["blocks"][1])


@needs_dot
@pytest.mark.parametrize("module", ["", "inner"])
def test_rolled_an_op_that_runs_again_is_one_node(module: str, tmp_path: Path) -> None:
    nodes = {}
    for is_rolled in (False, True):
        picture = ModulePicture(module=module, file=tmp_path / f"{is_rolled}.svg", is_rolled=is_rolled)
        TorchLensTracer().draw(traced(Direct()), picture)
        nodes[is_rolled] = len(re.findall(r"@(?:inner\.)?cell", picture.file.read_text()))
    assert nodes == {False: 3, True: 1}
    assert "(x3)" in (tmp_path / "True.svg").read_text()


@needs_dot
def test_the_suffix_is_the_format(tmp_path: Path) -> None:
    for suffix, start in ((".pdf", b"%PDF"), (".png", b"\x89PNG")):
        TorchLensTracer().draw(traced(Block()), ModulePicture(file=tmp_path / f"m{suffix}"))
        assert (tmp_path / f"m{suffix}").read_bytes().startswith(start)


def test_what_cannot_be_drawn_is_refused_before_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def target() -> Target:
        return Target(model="m", phase="p", workload={}, build=Direct, invoke=lambda m: runs.append(m))

    tracer = TorchLensTracer()
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    tracer.require_drawable(target(), [ModulePicture(file=Path("m.svg"), module="inner.cell")])
    with pytest.raises(UsageError, match=r"no module 'iner\.cell'") as unknown:
        tracer.require_drawable(target(), [ModulePicture(file=Path("m.svg"), module="iner.cell")])
    assert "'inner.cell'" in unknown.value.fix
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(PerfOptError, match="Graphviz is not installed"):
        tracer.require_drawable(target(), [ModulePicture(file=Path("m.svg"))])
    assert runs == []
