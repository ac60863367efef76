"""The API as a script or a notebook uses it: names, folders and modules, shown, saved and read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from llm_perf_opt.api.trace import Trace
from llm_perf_opt.api.tracing import load, trace
from llm_perf_opt.core.errors import PerfOptError, UsageError


class Shared(nn.Module):
    """One matmul used twice, an embedding with a tied head, keyword-only arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.mix = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, *, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = self.mix(self.mix(self.embed(ids))) * scale
        if ids.max() > 3:
            hidden = hidden + 1
        logits: torch.Tensor = self.head(hidden)
        return logits


@pytest.fixture(scope="module")
def module() -> Shared:
    return Shared()


@pytest.fixture(scope="module")
def traced(module: Shared) -> Trace:
    return trace(module, kwargs={"ids": torch.arange(6).view(2, 3), "scale": torch.ones(8)})


def test_a_module_is_counted(traced: Trace) -> None:
    frame = traced.to_pandas()
    assert frame["FLOPs"].tolist() == [2 * (2 * 6 * 8 * 8) + 2 * 6 * 8 * 50]
    assert frame["parameters"].tolist() == [50 * 8 + 8 * 8]  # the head is tied


def test_the_module_keeps_its_weights_and_its_methods(module: Shared, traced: Trace) -> None:
    assert all(type(parameter) is nn.Parameter for parameter in module.parameters())
    assert "forward" not in vars(module.mix)
    assert module(ids=torch.tensor([[1]]), scale=torch.ones(8)).shape == (1, 1, 50)


def test_it_shows_itself_as_text_and_as_html(traced: Trace) -> None:
    assert "Cost by stage" in repr(traced)
    assert traced._repr_html_().startswith("<iframe srcdoc=")
    assert "Shared @ (root)" in repr(traced.graph())
    assert "<svg" in traced.graph()._repr_html_()
    assert "Stages" in traced.cost().tables


def test_hostile_names_stay_text_in_a_notebook() -> None:
    class Evil(nn.Linear):
        pass

    Evil.__name__ = Evil.__qualname__ = '</iframe><script>alert("x")</script>'
    shown = trace(Evil(2, 2), (torch.ones(1, 2),))
    assert "<script>alert" not in shown._repr_html_()
    assert "<script>alert" not in shown.graph()._repr_html_()


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.json", "report.csv", "report.txt"])
def test_a_report_is_saved_in_the_format_of_its_suffix(traced: Trace, tmp_path: Path, name: str) -> None:
    assert traced.stages().save(tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("name", ["graph.html", "graph.svg", "graph.dot"])
def test_a_picture_is_saved_in_the_format_of_its_suffix(traced: Trace, tmp_path: Path, name: str) -> None:
    assert traced.graph().save(tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("name", ["report.md", "graph.svg"])
def test_nothing_is_saved_over_a_file_unasked_and_folders_are_made(traced: Trace, tmp_path: Path, name: str) -> None:
    shown = traced.graph() if name.startswith("graph") else traced.stages()
    path = shown.save(tmp_path / "new" / name)
    written = path.read_text()
    path.write_text("mine")
    with pytest.raises(PerfOptError, match="force=True"):
        shown.save(path)
    assert path.read_text() == "mine"
    assert shown.save(path, force=True).read_text() == written
    with pytest.raises(PerfOptError, match="Cannot make the folder"):
        shown.save(path / name)


def test_a_trace_is_not_written_over_another_unasked(traced: Trace, tmp_path: Path) -> None:
    traced.save(tmp_path)
    with pytest.raises(PerfOptError, match="Would overwrite"):
        traced.save(tmp_path)
    assert traced.save(tmp_path, force=True)


def test_an_unknown_suffix_table_phase_or_option_is_refused_with_the_known_ones(traced: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="suffix"):
        traced.stages().save(tmp_path / "report.docx")
    with pytest.raises(UsageError, match="Cost by stage"):
        traced.to_pandas("Costs")
    with pytest.raises(UsageError, match="forward"):
        traced.graph("decode")
    with pytest.raises(UsageError, match="image"):
        trace(nn.Linear(2, 2), (torch.ones(1, 2),), image="10x10")
    with pytest.raises(UsageError, match="only for a torch module"):
        trace("deepseek-ocr", (1,))


def test_a_trace_is_written_and_read_again(traced: Trace, tmp_path: Path) -> None:
    traced.save(tmp_path)
    assert repr(load(tmp_path)) == repr(traced)


def test_a_trace_is_saved_as_a_folder_and_not_as_a_page(traced: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trace\.report\(\)\.save"):
        traced.save(tmp_path / "run.html")


def test_a_registered_model_takes_its_workload_by_name() -> None:
    traced = trace("deepseek-ocr", image="640x640", mode="tiny", decode_steps=0)
    assert traced.phases == ("prefill",)
    assert traced.graphs[0].workload["mode"] == "tiny"


def test_a_module_says_the_batch_and_the_type_that_its_call_shows() -> None:
    module = torch.nn.Linear(8, 4).to(torch.bfloat16)
    traced = trace(module, (torch.zeros(2, 8, dtype=torch.bfloat16),))
    told = {"inputs": ["2x8 bfloat16"], "batch": 2, "dtype": "bfloat16"}
    assert told.items() <= traced.graphs[0].workload.items()
    assert "batch 2, bfloat16" in traced.predict("l4").answer[0]


def test_inputs_that_begin_differently_show_no_batch() -> None:
    traced = trace(torch.nn.Bilinear(4, 4, 2), (torch.zeros(1, 4), torch.zeros(1, 4)))
    assert traced.graphs[0].workload["batch"] == 1
    mixed = trace(torch.nn.MultiheadAttention(8, 2), (torch.zeros(3, 8), torch.zeros(5, 8), torch.zeros(5, 8)))
    assert "batch" not in mixed.graphs[0].workload
