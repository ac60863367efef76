"""The analyzer as a script uses it: one session in, figures of every stage and three files out."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest

import llm_perf_opt
from llm_perf_opt import (
    AnalysisConfig,
    DeepSeekOCRSession,
    DeepseekOCRStaticAnalyzer,
    StageAnalysisResult,
    StaticAnalyzer,
    StaticComputeReport,
    write_static_compute_fvcore_table,
    write_static_compute_json,
    write_static_compute_markdown,
)
from llm_perf_opt import costs as cost
from llm_perf_opt.api.cost import QUICK_SOURCES, cost_of
from llm_perf_opt.api.static_analysis import isolated_only, report_of_run, without_fallback
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.source_figures import Method
from llm_perf_opt.costs.static_figures import StageCompute
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.tracing.origin import Origin, find_adapter
from tests.models.huggingface.folders import LLAMA, write_folder

STAGES = ["sam", "clip", "projector", "prefill", "decode"]
CONFIG = AnalysisConfig(130, 90, base_size=64, image_size=40, patch_size=4, seq_len=6)
SCHEMA = Path(cost.__file__).parent / "static_compute.schema.json"


@pytest.fixture(scope="module")
def session() -> DeepSeekOCRSession:
    return DeepSeekOCRSession.from_blueprint(DeepSeekOcrConfig.tiny())


@pytest.fixture(scope="module")
def analyzer(session: DeepSeekOCRSession) -> DeepseekOCRStaticAnalyzer:
    return DeepseekOCRStaticAnalyzer(session)


@pytest.fixture(scope="module")
def report(analyzer: DeepseekOCRStaticAnalyzer) -> StaticComputeReport:
    return analyzer.generate_report(CONFIG)


def test_every_stage_has_all_its_figures(report: StaticComputeReport) -> None:
    assert list(report.stages) == STAGES
    for stage in report.stages.values():
        assert stage.flops == stage.extracted_flops == stage.analytic_flops
        assert stage.flops is not None
        assert stage.macs == stage.flops // 2
        assert sum(operator.flops or 0 for operator in stage.operators) == stage.flops
        assert stage.params
        assert stage.activations
        assert {source.source for source in stage.sources} == set(QUICK_SOURCES)


def test_a_report_is_subscripted_like_the_dict_that_it_was(report: StaticComputeReport) -> None:
    assert report["total"]["params"] == report.total.params
    assert report["stages"]["sam"]["flops"] == report.stages["sam"].flops
    assert report["stages"]["clip"]["analytic_flops"] == report.stages["clip"].analytic_flops
    operators = report["stages"]["sam"]["operators"]
    assert sum(operator["flops"] for operator in operators) == report["stages"]["sam"]["flops"]
    analysis = report["metadata"]["analysis"]
    assert (analysis["seq_len"], analysis["base_size"]) == (6, 64)
    assert list(report["stages"]) == ["sam", "clip", "projector", "prefill", "decode"]
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    with pytest.raises(KeyError):
        report["nothing"]


def test_closed_forms_and_fvcore_count_the_same_activations(report: StaticComputeReport) -> None:
    for stage in report.stages.values():
        told = {source.source: source.activations for source in stage.sources}
        assert told["closed-form"] == told["fvcore"]


def test_no_two_sources_differ_in_any_figure_without_a_cause(report: StaticComputeReport) -> None:
    ledger = report.run.static.ledger
    assert ledger.unexplained == ()
    compared = {(entry.stage, entry.figure): {entry.left, entry.right} for entry in ledger.figures}
    for stage in STAGES:
        for figure in ("parameters", "active_parameters", "activations"):
            assert (stage, figure) in compared
    for figure in ("weight_bytes", "kv_cache_bytes", "kv_bytes_per_token"):
        assert compared["decode", figure] == {"counted", "closed-form"}


def test_what_an_isolated_figure_leaves_out_is_in_the_notes(report: StaticComputeReport) -> None:
    for stage in report.stages.values():
        by_fvcore = next(source for source in stage.sources if source.source == "fvcore")
        spots = by_fvcore.blind_spots
        assert by_fvcore.flops is not None
        gap = sum(-(spot.flops or 0) if spot.adds else spot.flops or 0 for spot in spots)
        assert by_fvcore.flops + gap == stage.flops
        told = [note for note in stage.notes if note.startswith(("fvcore leaves out", "fvcore adds"))]
        assert len(told) == len(spots)
    assert any("fvcore leaves out" in note for note in report.stages["sam"].notes)


def test_an_isolated_figure_is_one_that_left_nothing_out_here_and_in_the_file(report: StaticComputeReport) -> None:
    stages = json.loads(report.run.to_json())["stages"]
    in_file = {name: stage["isolated_flops"] for name, stage in stages.items()}
    assert {name: stage.isolated_flops for name, stage in report.stages.items()} == in_file
    assert in_file == {name: stage.flops for name, stage in report.stages.items()}
    by_fvcore = [without(stage, "torch-counter") for stage in report.run.static.stages]
    alone = {stage.name: stage.by_method(Method.ISOLATED) for stage in by_fvcore}
    assert (alone["sam"], alone["projector"]) == (None, report.stages["projector"].flops)


def without(stage: StageCompute, source: str) -> StageCompute:
    return replace(stage, sources=tuple(told for told in stage.sources if told.source != source))


def test_a_source_that_is_registered_is_asked_unless_it_exports_or_is_of_an_engine() -> None:
    assert set(QUICK_SOURCES) == {"counted", *SOURCES.names()} - {"exported", "vllm-estimate"}


def test_the_total_is_the_sum_of_the_stages_and_weights_count_once(report: StaticComputeReport) -> None:
    total, stages = report.total, report.stages
    assert total.flops == sum(stage.flops or 0 for stage in stages.values())
    assert sum(operator.flops or 0 for operator in total.operators) == total.flops
    assert total.params == sum(stages[name].params or 0 for name in STAGES[:4])


def test_the_whole_model_is_counted_in_one_trace(
    analyzer: DeepseekOCRStaticAnalyzer, report: StaticComputeReport
) -> None:
    full = analyzer.analyze_full_model()
    assert isinstance(full, StageAnalysisResult)
    assert (full.flops, full.params) == (report.total.flops, report.total.params)
    assert {source.method for source in full.sources} == {Method.EXTRACTED}


def test_the_whole_model_is_counted_by_fvcore_too(
    analyzer: DeepseekOCRStaticAnalyzer, report: StaticComputeReport
) -> None:
    full = analyzer.analyze_full_model(source="fvcore")
    prefill, decode = full.sources
    assert {source.method for source in full.sources} == {Method.WHOLE_RUN}
    assert (prefill.completed_flops or 0) + (decode.completed_flops or 0) == report.total.flops
    assert full.params == report.total.params
    assert full.flops is None  # fused attention of the encoders
    assert 0 < (full.flops_at_least or 0) < (report.total.flops or 0)
    assert {"", "model.sam_model", "model.layers.0.self_attn.q_proj"} <= {module.path for module in prefill.modules}
    assert any("with formulas of ours for aten::scaled_dot_product_attention" in note for note in full.notes)
    with pytest.raises(UsageError, match="takes no whole model"):
        analyzer.analyze_full_model(source="exported")  # type: ignore[arg-type]


def test_fvcore_and_its_version_are_in_every_file(report: StaticComputeReport, tmp_path: Path) -> None:
    document = json.loads(report.run.to_json())
    assert document["metadata"]["library_versions"]["fvcore"] == version("fvcore")
    prefill, decode = document["whole_runs"]["fvcore"]
    assert (prefill["flops"], decode["flops"]) == (None, report.stages["decode"].flops)
    assert prefill["completed_flops"] == sum(stage.flops or 0 for stage in report.stages.values()) - decode["flops"]
    modules = {row["path"]: row for row in prefill["modules"]}
    sam = modules["model.sam_model"]
    assert sam["counted_macs"] * 2 == sam["counted_flops"] == sum(sam["operators"].values())
    assert set(sam["operators"]) == {"linear", "conv", "einsum", "layer_norm"}
    text = write_static_compute_markdown(report, tmp_path / "static_compute.md").read_text()
    fvcore = text.partition("## fvcore\n")[2]
    for heading in ("Whole phases", "By operator", "By module", "By module and operator"):
        assert f"### {heading}\n" in fvcore
    fenced = fvcore.partition("```text\n")[2].partition("\n```")[0]
    assert fenced == prefill_table(report)
    assert f"fvcore {version('fvcore')}" in text
    assert fenced in report.run.fvcore_table()


def prefill_table(report: StaticComputeReport) -> str | None:
    return next(run.own_table for run in report.run.whole_runs if run.phase == "prefill")


def test_a_stage_by_itself_is_seen_by_torch_and_by_fvcore(session: DeepSeekOCRSession) -> None:
    config = AnalysisConfig(130, 90, base_size=32, crop_mode=False, patch_size=4, seq_len=2, decode_steps=0)
    sam = DeepseekOCRStaticAnalyzer(session).analyze_stage_isolated("sam", config)
    by_torch, by_fvcore = sam.sources
    assert (by_torch.source, by_fvcore.source) == ("torch-counter", "fvcore")
    assert (by_torch.is_complete, by_fvcore.is_complete) == (True, False)  # fvcore leaves fused attention out
    assert by_fvcore.flops is not None
    assert by_fvcore.flops < sam.flops == sam.isolated_flops == sam.flops_at_least == by_torch.flops
    assert (sam.extracted_flops, sam.analytic_flops) == (None, None)


def test_a_partial_count_is_no_figure_of_a_stage(report: StaticComputeReport) -> None:
    """With fvcore alone, which leaves the attention of the encoder out."""
    (sam,) = (stage for stage in report.run.static.stages if stage.name == "sam")
    (by_fvcore,) = (source for source in sam.sources if source.source == "fvcore")
    alone = isolated_only(replace(sam, sources=(by_fvcore,)))
    assert (alone.flops, alone.macs) == (None, None)
    assert alone.isolated_flops == report.stages["sam"].flops
    assert alone.isolated_by == "fvcore with formulas of ours for aten::scaled_dot_product_attention"
    assert alone.flops_at_least == by_fvcore.at_least_flops
    assert report.stages["sam"].flops is not None
    assert 0 < (alone.flops_at_least or 0) < report.stages["sam"].flops


def test_what_was_asked_is_not_asked_again(analyzer: DeepseekOCRStaticAnalyzer, report: StaticComputeReport) -> None:
    assert analyzer.generate_report().run is report.run
    assert analyzer.analyze_all_stages() == report.stages
    alone = analyzer.analyze_stage_isolated("clip")
    assert set(alone.sources) < set(report.stages["clip"].sources)
    with pytest.raises(UsageError, match="No stage 'ear' ran"):
        analyzer.analyze_stage_isolated("ear")


def test_the_same_analysis_takes_a_text_model_from_a_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="a folder is run by transformers, an optional extra")
    folder = Folder(find_adapter(str(write_folder(tmp_path, LLAMA)), trust_remote_code=False))
    report = StaticAnalyzer(folder).generate_report(AnalysisConfig(seq_len=24, decode_steps=0))
    width, inner, layers, words = (
        LLAMA[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    )
    matrices = layers * (4 * width**2 + 3 * width * inner)
    head = 2 * width * words  # on the last position alone
    # Before version 5 the angles of the rotary embedding are a matmul of frequencies and positions.
    is_older = int(transformers.__version__.split(".")[0]) < 5
    angles = 2 * 24 * (width // LLAMA["num_attention_heads"] // 2) if is_older else 0
    prefill = report.stages["prefill"]
    assert prefill.flops == 2 * 24 * matrices + head + layers * 4 * 24**2 * width + angles
    assert prefill.analytic_flops is None
    assert list(report.stages) == ["prefill"]
    missing = [reason for source, *_, reason in report.run.static.ledger.missing if source == "closed-form"]
    assert len(missing) == 1
    assert "no closed forms are known for LlamaForCausalLM" in missing[0]


@dataclass(frozen=True)
class Folder:
    adapter: ModelAdapter


def test_nothing_in_the_session_changes(session: DeepSeekOCRSession) -> None:
    before = dict(vars(session))
    config = AnalysisConfig(130, 90, base_size=48, image_size=32, patch_size=4, seq_len=2)
    DeepseekOCRStaticAnalyzer(session).analyze_full_model(config)
    assert vars(session) == before
    assert session.config == DeepSeekOcrConfig.tiny()


def test_the_json_file_follows_the_schema(report: StaticComputeReport, tmp_path: Path) -> None:
    file = write_static_compute_json(report, tmp_path / "static_compute.json")
    document = json.loads(file.read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["total"]["flops"] == report.total.flops
    assert list(document["stages"]) == STAGES


def test_the_markdown_file_has_a_section_per_stage(report: StaticComputeReport, tmp_path: Path) -> None:
    text = write_static_compute_markdown(report, str(tmp_path / "static_compute.md")).read_text()
    assert [name for name in STAGES if f"# {name}" not in text] == []


def test_the_table_of_fvcore_is_its_own(report: StaticComputeReport, tmp_path: Path) -> None:
    text = write_static_compute_fvcore_table(report, tmp_path / "fvcore.txt").read_text()
    assert "#flops" in text
    assert "blocks.0" in text


def test_without_fvcore_there_is_no_table(report: StaticComputeReport, tmp_path: Path) -> None:
    inputs = report.inputs
    run = cost_of(Origin(name="tiny", source=inputs.adapter, workload=inputs.workload), ("closed-form",))
    with pytest.raises(PerfOptError, match="no table of fvcore"):
        write_static_compute_fvcore_table(report_of_run(inputs, run), tmp_path / "fvcore.txt")
    assert not (tmp_path / "fvcore.txt").exists()


def test_a_closed_form_stands_in_only_where_it_may(report: StaticComputeReport) -> None:
    inputs = report.inputs
    run = cost_of(Origin(name="tiny", source=inputs.adapter, workload=inputs.workload), ("closed-form",))
    allowed, refused = report_of_run(inputs, run), report_of_run(inputs, without_fallback(run))
    assert allowed.stages["sam"].flops == allowed.stages["sam"].analytic_flops
    assert allowed.total.flops is not None
    assert refused.stages["sam"].flops is None
    assert refused.total.flops is None
    assert any("only a closed form is known" in note for note in refused.notes)


def test_every_name_is_exported_and_none_is_loaded_before_it_is_asked_for() -> None:
    names = [name for name in llm_perf_opt.__all__ if name != "__version__"]
    assert [name for name in names if not hasattr(llm_perf_opt, name)] == []
    assert set(names) <= set(dir(llm_perf_opt))
    code = "import sys, llm_perf_opt; print([n for n in sys.modules if n.startswith('llm_perf_opt.') or n == 'torch'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        importlib.import_module("llm_perf_opt").nonsense  # noqa: B018  the access is what is tested
