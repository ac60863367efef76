"""A trace of an earlier run: equal to a fresh one, and found by nothing but the same question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core import store
from llm_perf_opt.core.callgraph import to_json_dict
from llm_perf_opt.sweeps.function import phase_function
from llm_perf_opt.sweeps.function.figures.needs import NeedForms
from llm_perf_opt.sweeps.function.figures.rebuilding import Rebuilt
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.stored_traces import trace_ingredients
from tests.models.huggingface.folders import LLAMA, write_folder

TINY = "deepseek-ocr-tiny"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


def traces() -> list[store.StoredEntry]:
    return [entry for entry in store.entries() if entry.kind == "traces"]


@pytest.mark.parametrize(
    "asked",
    [{}, {"tp": 2}, {"weights": "int4-g128", "cache": "fp8"}, {"device": "h100-sxm", "batch": 3}, {"decode_steps": 0}],
    ids=str,
)
def test_a_stored_trace_equals_a_fresh_one(tmp_path: Path, asked: dict[str, Any]) -> None:
    model = write_folder(tmp_path, LLAMA)
    fresh, stored = lpo.trace(model, **asked), lpo.trace(model, **asked)
    assert len(traces()) == len(fresh.ranks)
    for one, other in zip(fresh.ranks, stored.ranks, strict=True):
        assert list(map(to_json_dict, other.graphs)) == list(map(to_json_dict, one.graphs))
    assert repr(stored.stages()) == repr(fresh.stages())


def test_files_and_events_of_a_stored_trace_are_those_of_a_fresh_one(tmp_path: Path) -> None:
    fresh = lpo.trace(TINY, out=tmp_path / "fresh", events=True)
    stored = lpo.trace(TINY, out=tmp_path / "stored", events=True)
    assert [file.name for file in stored.files] == [file.name for file in fresh.files]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(stored.files, fresh.files, strict=True))


def test_serve_answers_alike_from_the_store_and_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_folder(tmp_path, LLAMA)

    def answer(users: int) -> dict[str, Any]:
        return lpo.serve(model, "l4,mi300x", input=40, output=8, users=users).to_dict()

    first, again, other = answer(4), answer(4), answer(9)
    monkeypatch.setenv(store.VARIABLE, store.OFF)
    assert first == again == answer(4)
    assert other == answer(9)


def test_sweep_answers_alike_from_the_store_and_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_folder(tmp_path, LLAMA)

    def answer(inputs: str) -> dict[str, Any]:
        return lpo.sweep(model, users="1..3", input=inputs, points=3, gpus="l4").to_dict()

    first, again, other = answer("4..16"), answer("4..16"), answer("4..24")
    assert len([entry for entry in store.entries() if entry.kind == "functions"]) == 2
    monkeypatch.setenv(store.VARIABLE, store.OFF)
    assert first == again == answer("4..16")
    assert other == answer("4..24")


def test_a_function_is_found_once_for_all_devices_and_formats_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_folder(tmp_path, LLAMA)

    def answer(gpus: str | None, **formats: str) -> dict[str, Any]:
        return lpo.sweep(model, users="1..3", input="4..16", points=3, gpus=gpus, **formats).to_dict()  # type: ignore[arg-type]

    def functions() -> int:
        return len([entry for entry in store.entries() if entry.kind == "functions"])

    asked: list[tuple[str | None, dict[str, str]]] = [("l4", {}), ("h100-sxm", {}), (None, {}), ("l4,h100-sxm", {})]
    stored = [answer(gpus, **formats) for gpus, formats in asked]
    assert functions() == 1
    asked.append(("l4", {"weights": "fp8"}))
    stored.append(answer("l4", weights="fp8"))
    assert functions() == 2
    monkeypatch.setenv(store.VARIABLE, store.OFF)
    assert stored == [answer(gpus, **formats) for gpus, formats in asked]


def test_forms_of_a_function_are_fitted_once_for_each_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_folder(tmp_path, LLAMA)

    def answer(inputs: str) -> lpo.SweepAnswer:
        return lpo.sweep(model, users="1..3", input=inputs, points=3)

    def needs() -> int:
        return len([entry for entry in store.entries() if entry.kind == "forms" and entry.about.endswith("needs")])

    first = answer("4..16")
    assert needs() == len(first.cells)
    other = answer("4..24")
    assert needs() == len(first.cells) + len(other.cells)

    def refuse(rebuilt: Rebuilt) -> NeedForms:
        raise AssertionError("the forms are in the store")

    monkeypatch.setattr(phase_function, "need_forms", refuse)
    assert answer("4..16").to_dict() == first.to_dict()


def test_a_stored_question_loads_neither_torch_nor_transformers_nor_duckdb(tmp_path: Path) -> None:
    model = write_folder(tmp_path, LLAMA)
    lpo.serve(model, "l4", input=40, output=8, users=4)
    lpo.trace(model)
    lpo.sweep(model, users=2, input="4..16", points=3)
    script = f"""
import sys, llm_perf_opt as lpo
lpo.serve({str(model)!r}, "l4", input=40, output=8, users=4)
lpo.trace({str(model)!r}).stages()
lpo.sweep({str(model)!r}, users=2, input="4..16", points=3).to_dict()
print([name for name in ("torch", "transformers", "duckdb") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"


def model_folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return write_folder(tmp_path / "model", LLAMA)


def key_of(origin: Origin) -> str | None:
    found = trace_ingredients(origin)
    return None if found is None else store.entry_key("traces", found)


def asked_again(tmp_path: Path, **asked: Any) -> str | None:
    return key_of(find_origin(tmp_path / "model", **asked))


OTHER_QUESTIONS: tuple[dict[str, Any], ...] = (
    {"prompt_tokens": 7},
    {"batch": 2},
    {"decode_steps": 2},
    {"new_tokens": 4},
    {"dtype": "float32"},
    {"attention": "eager"},
    {"device": "l4"},
    {"weights": "fp8"},
    {"cache": "fp8"},
    {"routing": "balanced"},
    {"torch_device": "cpu"},
    {"pp": 2},
    {"pp": 2, "rank": 1},
    {"copies_key_heads": True},
    {"trust_remote_code": True},
)


def test_each_option_of_a_trace_has_a_key_of_its_own(tmp_path: Path) -> None:
    model_folder(tmp_path)
    keys = [asked_again(tmp_path, **asked) for asked in ({}, *OTHER_QUESTIONS)]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_each_file_of_the_model_is_part_of_the_key(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    keys = [asked_again(tmp_path), asked_again(tmp_path, trust_remote_code=True)]
    (folder / "modeling.py").write_text("x = 1\n")
    assert asked_again(tmp_path) == keys[0], "code that is not trusted does not run"
    keys.append(asked_again(tmp_path, trust_remote_code=True))
    (folder / "hf_quant_config.json").write_text("{}")
    keys.append(asked_again(tmp_path))
    (folder / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 48}))
    keys.append(asked_again(tmp_path))
    assert len(set(keys)) == len(keys)


def test_a_file_that_the_workload_names_is_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(b"one")
    keys = [key_of(find_origin(TINY, image=str(tmp_path / "page.png")))]
    (tmp_path / "page.png").write_bytes(b"two")
    keys.append(key_of(find_origin(TINY, image=str(tmp_path / "page.png"))))
    (tmp_path / "rules.toml").write_text('[vision]\nviews = "split"\n')
    keys.append(key_of(find_origin(TINY, tp=2, plan=tmp_path / "rules.toml")))
    (tmp_path / "rules.toml").write_text('[vision]\nviews = "replicated"\n')
    keys.append(key_of(find_origin(TINY, tp=2, plan=tmp_path / "rules.toml")))
    assert len(set(keys)) == 4


def not_kept(tmp_path: Path) -> list[Origin]:
    import torch

    folder = write_folder(tmp_path, LLAMA | {"auto_map": {"AutoModel": "org/other--modeling.Model"}})
    return [
        find_origin(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)),
        find_origin(TINY, routing="replay:counts.json"),
        find_origin(folder, trust_remote_code=True),
    ]


def test_what_nobody_can_name_by_a_key_is_not_kept(tmp_path: Path) -> None:
    assert [trace_ingredients(origin) for origin in not_kept(tmp_path)] == [None] * 3


def test_a_run_that_stopped_half_way_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = find_origin(TINY)
    whole = lpo.trace(TINY)
    store.clear()
    from llm_perf_opt.tracing.stored_traces import keep_graphs

    keep_graphs(origin, [replace(graph, stopped_in="model") for graph in whole.graphs])
    assert traces() == []
