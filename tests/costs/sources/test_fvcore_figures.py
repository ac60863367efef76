"""fvcore as its users know it: whole phases, by operator, by module, its own table; and what our handles complete."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis, flop_count_table
from torch import Tensor, nn

from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.sources import fvcore_counter
from llm_perf_opt.costs.sources.fvcore_counter import FvcoreCounter
from llm_perf_opt.costs.sources.fvcore_reading import _table
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import Ghost, Limits
from tests.costs.sources.one_module import OneModule
from tests.costs.sources.traps import CUSTOM_OP

TINY = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny())
PAGE = DeepSeekOcrWorkload(image="1240x1754", crops=(2, 1), decode_steps=2)

PIXELS, PATCH, WIDTH, HEADS, LATENTS, WORDS = 24, 4, 32, 4, 12, 7
PATCHES = (PIXELS // PATCH) ** 2


class Reader(nn.Module):
    """Latents look at the patches of an image: attention with fewer queries than keys, and values that are wider."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.head = nn.Linear(2 * WIDTH, WORDS)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.latents = nn.Parameter(torch.zeros(1, LATENTS, WIDTH))

    def forward(self, image: Tensor) -> Tensor:
        patches = self.norm(self.stem(image).flatten(2).transpose(1, 2))
        query, key, value = self.query(self.latents), self.key(patches), self.value(patches)
        query, key, value = (x.view(1, x.shape[1], HEADS, -1).transpose(1, 2) for x in (query, key, value))
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.head(seen.transpose(1, 2).reshape(1, LATENTS, 2 * WIDTH))


BY_HAND = {  # multiply-adds
    "stem": PATCHES * WIDTH * 3 * PATCH * PATCH,
    "query": LATENTS * WIDTH * WIDTH,
    "key": PATCHES * WIDTH * WIDTH,
    "value": PATCHES * WIDTH * 2 * WIDTH,
    "head": LATENTS * 2 * WIDTH * WORDS,
}
NORM = 5 * PATCHES * WIDTH  # fvcore's figure for a norm with weights, per element
ATTENTION = LATENTS * PATCHES * (WIDTH + 2 * WIDTH)
READER = OneModule(Reader, lambda: (torch.zeros(1, 3, PIXELS, PIXELS),))


def whole(adapter: OneModule) -> SourceFigures:
    (run,) = FvcoreCounter().whole_runs(adapter, Workload())
    return run


def test_a_model_counted_by_hand() -> None:
    for figures in (whole(READER), *FvcoreCounter().figures(READER, Workload())):
        assert figures.flops == 2 * (sum(BY_HAND.values()) + NORM)
        assert figures.at_least_flops == 2 * sum(BY_HAND.values())
        assert figures.completed_flops == 2 * (sum(BY_HAND.values()) + ATTENTION)
        assert (figures.is_complete, figures.left_out_ops) == (False, 1)
        assert figures.completed_with == ("aten::scaled_dot_product_attention",)
        assert figures.uncalled_modules == ("unused",)
        modules = {module.path: module for module in figures.modules}
        assert {path: modules[path].macs for path in BY_HAND} == BY_HAND
        assert modules[""].completed_flops == figures.completed_flops
        assert (figures.version, figures.unit, figures.tensors) == ("0.1.5.post20221221", "mac", "weightless")


def test_the_figures_are_those_of_fvcore_on_real_tensors() -> None:
    """Asked as its documentation asks: by operator, by module, by module and operator, and activations."""
    module, inputs = Reader(), (torch.zeros(1, 3, PIXELS, PIXELS),)
    flops = FlopCountAnalysis(module, inputs).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    activations = ActivationCountAnalysis(module, inputs).unsupported_ops_warnings(False)
    run = whole(READER)
    assert run.method is Method.WHOLE_RUN
    assert {operator.name: operator.flops for operator in run.operators} == _doubled(flops.by_operator())
    told = {found.path: found for found in run.modules}
    by_module, by_both = flops.by_module(), flops.by_module_and_operator()
    assert {path: found.flops for path, found in told.items()} == _doubled(
        {path: macs for path, macs in by_module.items() if macs}
    )
    assert {path: dict(found.operators) for path, found in told.items()} == {
        path: _doubled(by_both[path]) for path in told
    }
    assert run.activations == activations.total()
    assert {path: found.activations for path, found in told.items()} == {
        path: activations.by_module()[path] for path in told
    }
    assert run.parameters == sum(parameter.numel() for parameter in module.parameters())


def _doubled(macs: dict[str, float]) -> dict[str, int]:
    return {name: round(2 * count) for name, count in macs.items()}


def test_the_table_is_that_of_fvcore_row_for_row() -> None:
    """Ours replaces one of its searches, which takes minutes on thousands of modules."""
    module = nn.Sequential(Reader(), nn.Sequential(nn.Linear(WORDS, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3))))
    flops = FlopCountAnalysis(module, (torch.zeros(1, 3, PIXELS, PIXELS),)).uncalled_modules_warnings(False)
    activations = ActivationCountAnalysis(module, (torch.zeros(1, 3, PIXELS, PIXELS),))
    for depth in (1, 3):
        assert _table(flops, activations, depth) == flop_count_table(flops, max_depth=depth, activations=activations)
    assert "head" in (whole(READER).own_table or "")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_whole_phase_completed_is_what_the_closed_forms_of_its_stages_add_up_to(attention: str) -> None:
    """Also of a decode, which returns its cache alone: work whose result is not returned is counted all the same."""
    page = DeepSeekOcrWorkload(image="1240x1754", crops=(2, 1), decode_steps=2, attention=attention)
    formulas = TINY.closed_forms(page)
    runs = FvcoreCounter().whole_runs(TINY, page)
    assert [run.phase for run in runs] == ["prefill", "decode"]
    for run in runs:
        assert run.completed_flops == sum(stage.flops or 0 for stage in formulas if stage.phase == run.phase)
        paths = {module.path: module.completed_flops for module in run.modules}
        assert paths[""] == run.completed_flops
        assert paths["lm_head"] == 2 * _head_rows(run) * 32 * 160  # hidden size and vocabulary of the small decoder
    by_stage = {stage.stage: stage.flops for stage in formulas}
    sam = {module.path: module.completed_flops for module in runs[0].modules}["model.sam_model"]
    assert sam == by_stage["sam"]


def _head_rows(run: SourceFigures) -> int:
    context = TINY.describe(PAGE)["context_tokens"]
    return int(context) if run.phase == "prefill" else PAGE.decode_steps


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_stage_by_itself_has_a_completed_figure(attention: str) -> None:
    page = DeepSeekOcrWorkload(image="1240x1754", crops=(2, 1), attention=attention)
    formulas = {(stage.phase, stage.stage): stage.flops for stage in TINY.closed_forms(page)}
    found = {(stage.phase, stage.stage): stage.completed_flops for stage in FvcoreCounter().figures(TINY, page)}
    assert found == formulas


def test_an_op_that_nobody_can_price_leaves_no_completed_figure() -> None:
    for figures in (whole(CUSTOM_OP.adapter), *FvcoreCounter().figures(CUSTOM_OP.adapter, Workload())):
        assert (figures.is_complete, figures.completed_flops, figures.left_out_ops) == (False, None, 1)


@torch.jit.script
def _scripted_activation(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@torch.jit.script
def _scripted_matmul(x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(x, y)


class Scripted(nn.Module):
    def __init__(self, *, multiplies: bool) -> None:
        super().__init__()
        self.layer, self.multiplies = nn.Linear(8, 8), multiplies

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x)
        return _scripted_matmul(rows, x) if self.multiplies else _scripted_activation(rows)


def test_a_scripted_function_is_looked_into() -> None:
    """One call in the trace: an activation leaves nothing out, and a matmul is of unknown size."""
    harmless = whole(OneModule(lambda: Scripted(multiplies=False), lambda: (torch.zeros(8, 8),)))
    assert (harmless.flops, harmless.is_complete) == (2 * 8 * 8 * 8, True)
    matmul = whole(OneModule(lambda: Scripted(multiplies=True), lambda: (torch.zeros(8, 8),)))
    assert (matmul.is_complete, matmul.completed_flops) == (False, None)


_LIBRARY = torch.library.Library("llm_perf_opt_opaque", "DEF")
_LIBRARY.define("twice(Tensor rows) -> Tensor")
_LIBRARY.impl("twice", lambda rows: rows + rows, "CPU")  # and no rule for its shapes


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.ops.llm_perf_opt_opaque.twice(self.layer(rows))  # type: ignore[no-any-return]


def refused() -> SourceFigures:
    """By an engine that invents no values for a kernel without shapes."""
    counter = FvcoreCounter()
    counter._engine.limits = Limits(stand_in=4)
    (run,) = counter.whole_runs(OneModule(Opaque, lambda: (torch.zeros(4, 8),)), Workload())
    return run


def test_what_refuses_weightless_tensors_runs_on_real_ones() -> None:
    run = refused()
    assert (run.failure, run.tensors, run.flops) == (None, "real", 2 * 4 * 8 * 16)
    assert "real tensors with random weights, because weightless ones were refused" in run.notes[0]
    assert [(spot.operator, spot.flops) for spot in run.blind_spots] == [("llm_perf_opt_opaque::twice", None)]
    assert not run.is_complete


def test_real_weights_that_do_not_fit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fvcore_counter, "free_memory_bytes", lambda: 1000)
    run = refused()
    assert (run.flops, run.tensors) == (None, None)
    assert "real weights take 512 B, more than 50% of the 1,000 B that is free" in (run.failure or "")


class TracedOnRealAlone(nn.Module):
    """Runs on ghosts, and cannot be traced on them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.layer(rows)
        if torch.jit.is_tracing() and isinstance(out, Ghost):
            raise RuntimeError("no ghosts in a trace")
        return out


def test_a_stage_that_refuses_a_weightless_trace_is_traced_on_real_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = OneModule(TracedOnRealAlone, lambda: (torch.zeros(4, 8),))
    (stage,) = FvcoreCounter().figures(adapter, Workload())
    assert (stage.flops, stage.tensors, stage.is_complete) == (2 * 4 * 8 * 16, "real", True)
    assert any("weightless ones were refused: RuntimeError: no ghosts in a trace" in note for note in stage.notes)
    monkeypatch.setattr(fvcore_counter, "free_memory_bytes", lambda: None)
    (stage,) = FvcoreCounter().figures(adapter, Workload())
    assert "no ghosts in a trace" in (stage.failure or "")
    assert "an unknown amount" in (stage.failure or "")


def test_without_fvcore_a_whole_phase_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'llm-perf-opt[fvcore]'" in (whole(READER).failure or "")
