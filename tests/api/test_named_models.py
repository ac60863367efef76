"""A model by its name, through the API: the name, the witness of its configuration, and what an engine gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.costs.run_description import run_notes
from llm_perf_opt.models.huggingface.names import NamedModel, find_model
from llm_perf_opt.serving.engine_code import _as_named, _folder_of
from llm_perf_opt.serving.served_model import engine_folder
from llm_perf_opt.sweeps.studies.study import Study
from llm_perf_opt.tracing.origin import find_origin

pytest.importorskip("transformers", reason="a Hugging Face model is run by transformers, an optional extra")
NAME = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def traced() -> lpo.Trace:
    return lpo.trace("all-minilm-l6-v2", prompt_tokens=8)


def test_a_trace_by_name_has_the_name_the_parameters_and_the_witness(traced: lpo.Trace, tmp_path: Path) -> None:
    (graph,) = traced.graphs
    assert traced.name == graph.model == NAME
    assert traced.stages().to_dict()["total"]["parameters"] == 22_713_216
    told = f"Configuration of {NAME}: the catalogue of llm-perf-opt (written by hand from the published"
    assert graph.notes[0].startswith(told)
    traced.save(tmp_path / "run")
    assert lpo.load(tmp_path / "run").graphs[0].notes[0] == graph.notes[0]


def test_the_witness_is_told_once_for_all_phases() -> None:
    told = [note.text for note in run_notes(lpo.trace("HuggingFaceTB/SmolLM2-135M", prompt_tokens=8).graphs)]
    assert [text.split(":")[0] for text in told if "Configuration of" in text] == [
        "Configuration of HuggingFaceTB/SmolLM2-135M"
    ]


def test_a_folder_needs_no_witness(tmp_path: Path) -> None:
    folder = find_model(NAME).folder
    assert folder is not None
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    graph = lpo.trace(tmp_path, prompt_tokens=8).graphs[0]
    assert graph.model == tmp_path.name
    assert not [note for note in graph.notes if "Configuration of" in note]


def test_an_engine_gets_a_folder_of_the_configuration() -> None:
    origin = find_origin("qwen3-0.6b")
    assert origin.name == "Qwen/Qwen3-0.6B"
    with engine_folder(origin, "qwen3-0.6b") as folder:
        assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    assert not folder.exists()


def test_the_code_of_an_engine_runs_the_folder_and_keeps_the_name(traced: lpo.Trace) -> None:
    named = find_model("Qwen/Qwen3-0.6B")
    assert (_folder_of(named) / "config.json").is_file()
    graphs = _as_named(named, (replace(traced.graphs[0], model="Qwen--Qwen3-0.6B", notes=("own",)),) * 2)
    assert [graph.model for graph in graphs] == ["Qwen/Qwen3-0.6B"] * 2
    assert [graph.notes[0].split(":")[0] for graph in graphs] == ["Configuration of Qwen/Qwen3-0.6B"] * 2
    with pytest.raises(UsageError, match=r"a folder with a config\.json"):
        _folder_of(NamedModel(name="deepseek-ocr", registered="deepseek-ocr"))


def test_an_architecture_that_transformers_does_not_have_is_said_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "house_of_2030", "transformers_version": "9.1.0"}))
    with pytest.raises(UsageError, match="does not know the architecture 'house_of_2030'") as refusal:
        lpo.trace(tmp_path)
    assert refusal.value.why == "its configuration was written with transformers 9.1.0"
    assert "pip install -U transformers" in refusal.value.fix


def test_models_are_listed_short_and_searched() -> None:
    overview = lpo.known_models().report()
    assert sum(len(table.rows) for table in overview.tables) < 20
    found = lpo.known_models("qwen3 vl 8b").report()
    assert found.tables[0].rows[0][:3] == ("Qwen/Qwen3-VL-8B-Instruct", "vision-language", 8_767_123_696)
    assert lpo.known_models("no-such-word").report().tables == ()


def test_points_of_a_study_rest_on_the_configuration_of_a_named_model(tmp_path: Path) -> None:
    """Another revision in the cache, or another transformers, is another input: its points are computed again."""
    pytest.importorskip("yaml", reason="a study file is YAML, an optional extra")
    from llm_perf_opt.sweeps.studies.study import read_study
    from llm_perf_opt.sweeps.studies.study_run import installed_versions, named_folders
    from llm_perf_opt.sweeps.studies.tasks import study_tasks

    file = tmp_path / "study.yaml"
    file.write_text(f"name: named\nmodels: [{NAME}, no-such-model]\nworkload: {{users: [1]}}\ngpus: [h100-sxm]\n")
    declared = read_study(file, ())
    folders = named_folders(declared)
    assert folders == {NAME: find_model(NAME).folder}
    versions = installed_versions()
    hashes = [_inputs(declared, known, place) for known, place in ((versions, folders), (versions, {}))]
    hashes.append(_inputs(declared, {**versions, "transformers_version": "0"}, folders))
    hashes.append(_inputs(declared, versions, {NAME: tmp_path}))
    assert len(set(hashes)) == 4
    assert study_tasks(declared, versions, folders)[0].versions["transformers_version"] is not None


def _inputs(declared: Study, versions: dict[str, str | None], folders: dict[str, Path]) -> str:
    from llm_perf_opt.sweeps.studies.tasks import study_tasks

    return study_tasks(declared, versions, folders)[0].deployments[0].inputs_hash
