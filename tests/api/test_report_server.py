"""A report with GPUs begins with what `serve` says of the same model, GPUs, formats and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.serving import served_model
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin
from tests.api.test_answers import two_matmuls
from tests.api.tiny_folders import TOKENS, llama_folder, mixtral_folder

CODE = "The traced code, eager PyTorch: "


@pytest.fixture(autouse=True)
def _one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.api.whole_report.QUICK_SOURCES", ("counted",))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {  # GPUs, how it is traced, asked, output
    "as it comes": ("l4", {}, {"input": 128, "users": 1}, 500),
    "users and tokens": ("l4,h100-sxm", {"prompt_tokens": TOKENS, "batch": 4}, {"input": TOKENS, "users": 4}, 40),
    "stored formats": ("l4", {"weights": "fp8", "cache": "fp8"}, {"input": 128, "users": 1}, 500),
    "one GPU and no more": ("1x l4", {}, {"input": 128, "users": 1}, 500),
    "a plan": ("2x h100-sxm", {"tp": 2}, {"input": 128, "users": 1, "tp": 2}, 500),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_lines_are_those_of_serve(name: str, llama: Path) -> None:
    gpus, traced, asked, output = CASES[name]
    formats = {key: value for key, value in traced.items() if key in ("weights", "cache")}
    served = lpo.serve(llama, gpus, output=output, **asked, **formats)
    page = lpo.trace(llama, **traced).report(device=gpus, output=output)
    assert page.server is not None
    assert page.server.to_dict() == served.to_dict()
    *first, last = page.answer
    assert tuple(first) == served.answer[:2]
    assert last.startswith(CODE[:-2])
    assert last.endswith(f" {served.answer[2]}")
    chapter = next(chapter for chapter in page.report().chapters if chapter.title == "How fast does a server run it?")
    assert chapter.tables == served.report().tables


def test_a_page_is_read_by_the_server_too() -> None:
    served = lpo.serve("deepseek-ocr-tiny", "l4", page="640x480", users=2)
    page = lpo.trace("deepseek-ocr-tiny", image="640x480", batch=2).report(device="l4")
    assert page.answer[:2] == served.answer[:2]


def test_the_times_of_the_code_stand_next_to_it(llama: Path) -> None:
    trace = lpo.trace(llama)
    tpot = trace.predict("l4").answer[1].split("TPOT ")[1].split(",")[0]
    assert trace.report(device="l4").answer[2].startswith(CODE)
    assert f"TPOT {tpot}," in trace.report(device="l4").answer[2]
    fused = trace.report(device="l4", execution="fused").answer
    assert fused[:2] == trace.report(device="l4").answer[:2]
    assert fused[2].startswith("The traced code, engine kernels (fused, CUDA graphs): ")


def test_a_trace_of_one_request_is_not_made_again(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(origin: Any, *args: Any, **options: Any) -> TracedRun:
        made.append(origin.name)
        return trace_origin(origin, *args, **options)

    monkeypatch.setattr(served_model, "trace_origin", counted)
    lpo.serve(lpo.trace(llama), "l4", input=64)
    assert made == []
    lpo.serve(lpo.trace(llama, batch=2), "l4", input=64)
    assert len(made) == 1
    with pytest.raises(UsageError, match="weights is as the trace has it"):
        lpo.serve(lpo.trace(llama), "l4", input=64, weights="fp8")


def test_a_saved_trace_says_why_there_is_no_server(llama: Path, tmp_path: Path) -> None:
    lpo.trace(llama).save(tmp_path / "run")
    page = lpo.load(tmp_path / "run").report(device="l4")
    assert page.server is None
    assert page.answer[0].startswith("The traced code: tiny-llama on l4, eager PyTorch, ")
    assert page.answer[2] == (
        "No server figure. A saved trace holds no model to serve. Name the model in place of its trace."
    )


def test_a_module_and_a_plan_without_servers_say_so(tmp_path: Path) -> None:
    assert "generates nothing" in two_matmuls(3).report(device="l4").answer[-1]
    shared = lpo.trace(mixtral_folder(tmp_path / "mixtral"), fsdp=2).report(device="2x h100-sxm")
    assert shared.answer[-1].startswith("No server figure. Servers are found for the model's own code, without --fsdp.")


def test_what_fits_nowhere_is_the_first_line_and_the_rest_stands(tmp_path: Path) -> None:
    """Three layers of 3 x 16,384 x 2^20 values in 2 bytes: 288 GiB and more."""
    wide = llama_folder(tmp_path / "wide", hidden_size=2**14, intermediate_size=2**20)
    page = lpo.trace(wide).report(device="1x l4")
    assert page.answer[0] == "wide does not fit on 1x l4: the weights alone are too large."
    assert page.answer[1].startswith(f"{CODE}does not fit; if it fit, ")
    assert page.cost.flops
    json.dumps(page.to_dict())


def test_without_gpus_there_is_no_word_of_servers(llama: Path) -> None:
    page = lpo.trace(llama).report()
    assert (page.server, page.why_no_server) == (None, None)
    assert page.answer == page.cost.answer
