"""The 13 groups of calls that the original plan makes, as its scripts make them, on the blueprint in miniature."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.patches.dsocr_torchlens import (
    GPU_HEAVY_CLASSES,
    LOG,
    DsocrCallgraph,
    apply_runtime_patches,
    attach_tensor_io_hooks,
    collect_constructor_params,
    is_gpu_heavy,
    load_callgraph_json,
    load_runtime_metadata,
    log_forward_pass,
    write_runtime_log,
)
from llm_perf_opt.profiling.export import write_static_compute_json, write_static_compute_markdown
from llm_perf_opt.runners.dsocr_analyzer import AnalysisConfig, DeepseekOCRStaticAnalyzer
from llm_perf_opt.runners.dsocr_session import DeepSeekOCRSession
from tests.api.plan_calls import DEVICE, PlanRun, released_run, stored_folder, tiny_run, write_events
from tests.end_to_end.released_folders import needs_released_code

PARTS = ("sam_model", "vision_model", "projector", "layers")


RUNS = {
    "blueprint": tiny_run,
    "released, its own code": partial(released_run, trusts=True),
    "released, without trust": partial(released_run, trusts=False),
}


@pytest.fixture(
    scope="module",
    params=[
        "blueprint",
        pytest.param("released, its own code", marks=[*needs_released_code, pytest.mark.slow]),
        pytest.param("released, without trust", marks=[*needs_released_code, pytest.mark.slow]),
    ],
)
def run(request: pytest.FixtureRequest) -> PlanRun:
    return RUNS[request.param]()


def test_call_1_a_session_from_a_folder(tmp_path: Path) -> None:
    folder = stored_folder(tmp_path / "model")
    session = DeepSeekOCRSession.from_local(model_path=str(folder), device=DEVICE, use_flash_attn=True)
    model = session.m_model
    assert type(model).__name__ == "DeepseekOCRForCausalLM"
    assert session.m_dtype is torch.bfloat16
    assert session.device == DEVICE
    core = getattr(model, "model", model)
    assert [hasattr(core, part) for part in PARTS] == [True] * 4
    assert len(DeepSeekOCRSession.from_local(str(folder)).run_inference("64x64", (7, 8), 2, mode="tiny").token_ids) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_call_1_on_a_gpu_that_is_not_there_says_so(tmp_path: Path) -> None:
    session = DeepSeekOCRSession.from_local(
        model_path=str(stored_folder(tmp_path / "model")), device="cuda:0", use_flash_attn=True
    )
    with pytest.raises(PerfOptError, match="cuda"):
        _ = session.m_model


def test_call_2_inputs_of_an_analysis(run: PlanRun) -> None:
    of_run = {name: getattr(run.config, name) for name in ("base_size", "image_size", "crop_mode", "patch_size")}
    config = AnalysisConfig(seq_len=512, **of_run)
    input_ids, model_kwargs = DeepseekOCRStaticAnalyzer(run.session).prepare_inputs(config)
    assert sorted(model_kwargs) == ["attention_mask", "images", "images_seq_mask", "images_spatial_crop"]
    assert input_ids.shape == model_kwargs["attention_mask"].shape == model_kwargs["images_seq_mask"].shape
    assert AnalysisConfig(seq_len=512, base_size=1024, image_size=640).crop_mode is True


def test_call_3_a_prefill_under_autocast_and_a_decode_loop(run: PlanRun) -> None:
    model, output = run.session.m_model, run.forward()
    assert output.logits.shape[:2] == run.input_ids.shape
    past, token = output.past_key_values, output.logits[:, -1:].argmax(-1)
    for step in range(2):
        mask = torch.ones(1, run.input_ids.shape[1] + 1 + step, dtype=torch.int64)
        with torch.no_grad(), torch.autocast("cpu", dtype=run.session.m_dtype):
            output = model(input_ids=token, attention_mask=mask, past_key_values=past, use_cache=True, return_dict=True)
        past, token = output.past_key_values, output.logits[:, -1:].argmax(-1)
    assert past[0][0].shape[-2] == run.input_ids.shape[1] + 2


def test_call_4_torchlens_logs_a_forward(run: PlanRun, tmp_path: Path) -> None:
    history = log_forward_pass(
        run.core, input_args=(run.input_ids,), input_kwargs=run.kwargs, layers_to_save="none", vis_opt="none"
    )
    layers = len(run.core.layers)
    assert history.module_num_passes["sam_model"] == run.views
    assert sum(history.module_num_passes[f"layers.{index}"] for index in range(layers)) == layers
    inside = [history[label].containing_modules_origin_nested for label in history.layer_labels]
    assert ["sam_model:1", "sam_model.blocks.0:1", "sam_model.blocks.0.attn:1"] in [list(each)[:3] for each in inside]


@pytest.mark.skipif(which("dot") is None, reason="TorchLens draws with Graphviz's dot")
def test_call_4_torchlens_draws_a_pdf(run: PlanRun, tmp_path: Path) -> None:
    picture = tmp_path / "projector"
    features = torch.zeros(1, 4, run.core.projector.layers.in_features, dtype=run.session.m_dtype)
    log_forward_pass(
        run.core.projector,
        input_args=(features,),
        layers_to_save="none",
        vis_opt="unrolled",
        vis_outpath=str(picture),
        vis_fileformat="pdf",
    )
    assert picture.with_suffix(".pdf").read_bytes()[:4] == b"%PDF"


def test_call_4_what_cannot_be_kept_is_refused(run: PlanRun) -> None:
    with pytest.raises(PerfOptError, match="layers_to_save"):
        log_forward_pass(run.core, input_args=(run.input_ids,), layers_to_save="all")


def test_call_5_hooks_count_calls_edges_and_events(run: PlanRun, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    calls, edges, stack = Counter[str](), Counter[str](), []
    handles = []

    def enter(name: str) -> None:
        parent = stack[-1] if stack else ""
        events.append({"event": "enter", "name": name, "parent": parent, "index": len(events)})
        calls[name] += 1
        edges[f"{parent}->{name}"] += 1
        stack.append(name)

    def leave(name: str) -> None:
        stack.pop()
        events.append({"event": "exit", "name": name, "parent": stack[-1] if stack else "", "index": len(events)})

    for name, module in run.core.named_modules():
        if name and is_gpu_heavy(module):
            handles.append(module.register_forward_pre_hook(lambda _m, _a, name=name: enter(name)))
            handles.append(module.register_forward_hook(lambda _m, _a, _o, name=name: leave(name)))
    run.forward()
    for handle in handles:
        handle.remove()
    assert isinstance(run.core.layers[0].self_attn.q_proj, GPU_HEAVY_CLASSES)
    assert not is_gpu_heavy(torch.nn.Dropout())
    assert calls["layers.0.self_attn.q_proj"] == 1
    assert calls["sam_model.blocks.0.attn.qkv"] == run.views
    assert [event["index"] for event in events] == list(range(len(events)))
    write_events(tmp_path / "dsocr-call-graph-hooks.json", events, calls, edges)
    dot = "\n".join(f'"{edge.replace("->", chr(34) + " -> " + chr(34))}" [label="{n}"];' for edge, n in edges.items())
    (tmp_path / "graph.dot").write_text(f"digraph {{\n{dot}\n}}\n")
    assert lpo.load(tmp_path / "dsocr-call-graph-hooks.json").graphs[0].call_counts == dict(calls)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in run.core.modules())


def test_call_6_the_profiler_around_a_forward(run: PlanRun, tmp_path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True) as profiler:
        run.core.projector(torch.zeros(1, 4, run.core.projector.layers.in_features, dtype=run.session.m_dtype))
    averages = profiler.key_averages()
    assert averages.table(sort_by="cuda_time_total", row_limit=20).count("\n") > 20
    assert "aten::linear" in {average.key for average in averages}
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_call_7_a_static_graph_of_sam(run: PlanRun, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = torch.zeros(1, 3, 1024, 1024, dtype=run.session.m_dtype)
    program = torch.export.export(run.core.sam_model, (pixels,))
    program.graph.print_tabular()
    assert "aten.conv2d.default" in capsys.readouterr().out
    assert "scaled_dot_product_attention" in str(program)


@pytest.mark.slow
def test_call_8_a_compiled_sam(run: PlanRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor, "max_autotune_gemm_backends", "ATEN")  # nothing to tune on a CPU: minutes saved
    module, distribution = torch.nn.Module, torch.distributions.Distribution
    # The first compilation of a process changes these for good.
    for place, name in ((module, "__init__"), (module, "__setstate__"), (distribution, "_validate_args")):
        monkeypatch.setattr(
            place, name, getattr(place, name)
        )  # the first compilation of a process changes them for good
    monkeypatch.setattr(module, "___needs_generation_tag_patch", True, raising=False)
    pixels = torch.zeros_like(run.kwargs["images"][0][1])
    with torch.no_grad():
        compiled = torch.compile(run.core.sam_model, mode="max-autotune")(pixels)
        assert compiled.shape == run.core.sam_model(pixels).shape


def test_call_9_onnx_of_a_decoder_layer(run: PlanRun, tmp_path: Path) -> None:
    hidden = torch.zeros(1, 16, run.core.layers[0].hidden_size, dtype=run.session.m_dtype)
    positions = {"kwargs": {"position_ids": torch.arange(16)[None]}} if run.needs_positions else {}
    torch.onnx.export(run.core.layers[0], (hidden,), str(tmp_path / "layer.onnx"), **positions)
    assert (tmp_path / "layer.onnx").stat().st_size > 1000


def test_call_10_runtime_patches_and_their_file(run: PlanRun, tmp_path: Path) -> None:
    patches = apply_runtime_patches(run.session.m_model)
    run.forward()
    patches.remove()
    columns, rows = run.kwargs["images_spatial_crop"][0].tolist()
    vision, stack = LOG.events
    assert {name: vision[name] for name in ("kind", "module", "num_images", "images_spatial_crop")} == {
        "kind": "vision_inputs",
        "module": "model.sam_model",
        "num_images": 1,
        "images_spatial_crop": [[columns, rows]],
    }
    crops = columns * rows if run.views > 1 else 0
    assert stack == {"kind": "llm_stack", "module": "model.layers", "num_layers": len(run.core.layers)}
    file = write_runtime_log(tmp_path / "dsocr-callgraph-runtime-metadata.json")
    assert load_runtime_metadata(file)["crops_per_image"] == [crops]
    run.forward()
    assert len(LOG.events) == 2  # nothing is watched any more


def test_call_11_metadata_merged_into_the_call_graph(run: PlanRun, tmp_path: Path) -> None:
    params, handles = collect_constructor_params(run.core), attach_tensor_io_hooks(run.core)
    run.forward()
    for handle in handles:
        handle.remove()
    expert = params["layers.1.mlp.experts.0"]
    decoder = run.session.config.decoder
    assert (expert["num_experts"], expert["top_k"]) == (decoder.n_routed_experts, decoder.num_experts_per_tok)
    attended = handles.input_metadata["sam_model.blocks.0.attn"]
    assert attended[0]["tensors"][0]["dtype"] == "bfloat16"
    assert isinstance(attended[0]["tensors"][0]["shape"], list)
    assert handles.output_metadata["projector"]
    graph = DsocrCallgraph(
        call_counts={"": 1, "sam_model": 2},
        edges={"->sam_model": 2},
        module_types={"": "DeepseekOCRModel", "sam_model": "ImageEncoderViT"},
        module_children={"": ["sam_model"]},
        op_call_counts={},
        constructor_params={path: params[path] for path in ("", "sam_model")},
        input_metadata={"sam_model": handles.input_metadata["sam_model"]},
        output_metadata={"sam_model": handles.output_metadata["sam_model"]},
    )
    file = tmp_path / "dsocr-call-graph-torchlens.json"
    file.write_text(json.dumps(graph.to_dict()))
    read = load_callgraph_json(file)
    assert read.call_counts == graph.call_counts
    assert read.input_metadata["sam_model"] == graph.input_metadata["sam_model"]


def test_call_12_one_report_in_python_and_in_the_file(run: PlanRun, tmp_path: Path) -> None:
    report = run.analyzer.generate_report(run.config)
    assert report["total"]["params"] == sum(parameter.numel() for parameter in run.session.m_model.parameters())
    assert report["total"]["flops"] == sum(stage["flops"] for _, stage in report["stages"].items())
    file = write_static_compute_json(report, tmp_path / "static_compute.json")
    written = json.loads(Path(file).read_text())
    del written["content_sha256"]
    assert written == report.to_dict()
    markdown = Path(write_static_compute_markdown(report, tmp_path / "static_compute.md")).read_text()
    assert "sam" in markdown


def test_call_13_flops_of_the_stages_before_profiling(run: PlanRun) -> None:
    report = run.analyzer.generate_report()
    known = {name: (stage["flops"], stage["params"]) for name, stage in report["stages"].items()}
    assert list(known) == ["sam", "clip", "projector", "prefill", "decode"]
    assert all(flops and params for flops, params in known.values())
    seconds = 0.01
    assert {name: flops / seconds / 1e12 for name, (flops, _) in known.items()}["sam"] > 0
