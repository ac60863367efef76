"""The tools, each asked through its Python API in a few lines. What a tool needs is imported where it is asked."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.peer_probes.questions import DENSE_TOKENS, OCR_WORKLOAD, Asked, Count, Offer

ANSWERED_TOKENS, IN_FLIGHT = 128, 64
PREFILL = f"a prefill of {DENSE_TOKENS} tokens on an H100 SXM"
Ask = Callable[[Asked], Offer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """`prepare` loads what is not to be measured: the package and, unless it says otherwise, the module."""

    package: str
    count: Callable[[Asked], Count]
    offers: Mapping[str, Ask] = field(default_factory=dict)
    prepares: Callable[[Asked], object] | None = None

    def prepare(self, asked: Asked) -> None:
        if self.prepares is not None:
            self.prepares(asked)
        importlib.import_module(self.package)
        if self.prepares is None:
            _ = asked.subject


# ---- torchinfo: a table of layers from forward hooks


def _torchinfo_summary(asked: Asked) -> Any:
    from torchinfo import summary

    device = next(asked.subject.module.parameters()).device
    return summary(asked.subject.module, input_data=list(asked.subject.inputs), device=device, verbose=0)


def torchinfo_count(asked: Asked) -> Count:
    summary = _torchinfo_summary(asked)

    def path(row: Any) -> str:
        names = []
        while row is not None and row.parent_info is not None:
            names.append(row.var_name)
            row = row.parent_info
        return ".".join(reversed(names))

    return Count(
        printed=summary.total_mult_adds,
        unit="mult-adds",
        flops=2 * summary.total_mult_adds,
        flops_by_module={path(row): 2 * row.macs for row in summary.summary_list if row.is_leaf_layer},
    )


def torchinfo_memory(asked: Asked) -> Offer:
    summary = _torchinfo_summary(asked)
    figure = summary.total_param_bytes + summary.total_output_bytes
    return Offer(figure=figure, unit="bytes", of="weights and the outputs of all layers, as if none were freed")


# ---- fvcore: an analysis of the graph that `torch.jit.trace` records; it counts multiply-adds


def fvcore_count(asked: Asked) -> Count:
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(asked.subject.module, asked.subject.inputs)
    total = analysis.total()
    return Count(
        printed=total,
        unit="multiply-adds, called flops",
        flops=round(2 * total),
        flops_by_module={path: round(2 * macs) for path, macs in analysis.by_module().items()},
        left_out=[name for name, _ in analysis.unsupported_ops().most_common()],
    )


def fvcore_activations(asked: Asked) -> Offer:
    from fvcore.nn import ActivationCountAnalysis

    total = ActivationCountAnalysis(asked.subject.module, asked.subject.inputs).total()
    return Offer(figure=total, unit="elements", of="outputs of convolutions and matmuls")


# ---- torch's own FlopCounterMode: prices ops as they are dispatched


def torch_count(asked: Asked) -> Count:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        asked.subject.module(*asked.subject.inputs)
    total, root = counter.get_total_flops(), type(asked.subject.module).__name__
    by_module = {path.removeprefix(f"{root}."): sum(ops.values()) for path, ops in counter.get_flop_counts().items()}
    return Count(printed=total, unit="flops", flops=total, flops_by_module=by_module)


def torch_backward(asked: Asked) -> Offer:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        asked.subject.module(*asked.subject.inputs).sum().backward()
    return Offer(figure=counter.get_total_flops(), unit="FLOPs", of="a forward and its backward")


# ---- calflops: prices torch's functions while a forward runs


def _calflops(asked: Asked, **options: Any) -> Any:
    from calflops import calculate_flops

    options = {"print_results": False, "output_as_string": False} | options
    return calculate_flops(asked.subject.module, args=list(asked.subject.inputs), **options)


def calflops_count(asked: Asked) -> Count:
    flops, macs, _ = _calflops(asked)
    by_module = None
    if asked.name == "direct-call":  # children of the root, from the table it prints: three digits
        with redirect_stdout(StringIO()) as table:
            _calflops(asked, print_results=True)
        rows = re.findall(r"\((\w+)\): .*?, ([\d.]+) (K?)FLOPS", table.getvalue())
        by_module = {name: round(float(figure) * (1000 if kilo else 1)) for name, figure, kilo in rows}
    return Count(printed=flops, unit="FLOPS, element-wise included", flops=2 * round(macs), flops_by_module=by_module)


def calflops_backward(asked: Asked) -> Offer:
    flops, _, _ = _calflops(asked, include_backPropagation=True)
    return Offer(figure=flops, unit="FLOPs", of="a forward and its backward, taken as two forwards")


# ---- TorchLens: a record of every operation of a real run, values included


def _torchlens(asked: Asked, *, values: bool = False) -> Any:
    import torch
    import torchlens

    extra = {} if values else {"capture": torchlens.options.CaptureOptions(layers_to_save=None)}
    with torch.no_grad():
        return torchlens.trace(asked.subject.module, asked.subject.inputs, **extra)


def torchlens_count(asked: Asked) -> Count:
    trace = _torchlens(asked)
    macs, flops = trace.total_macs_forward, int(trace.total_flops_forward)
    return Count(
        printed=flops,
        unit="FLOPs, element-wise included",
        flops=flops if macs is None else 2 * int(macs),
        flops_by_module={module.address: int(module.total_flops_forward) for module in trace.modules},
        left_out=sorted({op.func_name for op in trace.unknown_flop_ops}),
    )


def torchlens_memory(asked: Asked) -> Offer:
    trace = _torchlens(asked)
    total = int(trace.total_param_memory) + int(trace.total_activation_memory)
    return Offer(figure=total, unit="bytes", of="weights and the outputs of all operations, as if none were freed")


def torchlens_backward(asked: Asked) -> Offer:
    figure = int(_torchlens(asked).total_flops)
    return Offer(figure=figure, unit="FLOPs", of="a forward and its backward, from the forward's ops")


def torchlens_values(asked: Asked) -> Offer:
    import torch

    kept = [op for op in _torchlens(asked, values=True).layer_list if isinstance(op.out, torch.Tensor)]
    return Offer(figure=len(kept), unit="tensors", of="operations with values to read after one call")


def torchlens_picture(asked: Asked) -> Offer:
    trace = _torchlens(asked)
    with tempfile.TemporaryDirectory() as folder:
        trace.draw(vis_outpath=f"{folder}/picture", vis_fileformat="svg", vis_save_only=True)
        svg = (Path(folder) / "picture.svg").read_text()
    return Offer(figure=svg.count('class="node"'), unit="boxes", of="an SVG drawing, one box per operation")


# ---- LLM-Viewer: formulas over a Hugging Face configuration. No package: `LLM_VIEWER` names a folder with its code


def _viewer_found(asked: Asked) -> None:
    os.chdir(os.environ["LLM_VIEWER"])
    sys.path.insert(0, os.environ["LLM_VIEWER"])


def _viewer(asked: Asked) -> Any:
    from model_analyzer import ModelAnalyzer

    return ModelAnalyzer(str(asked.folder), "nvidia_H100_SXM")


def _viewer_prefill(asked: Asked) -> Any:
    answer = _viewer(asked).analyze(seqlen=DENSE_TOKENS, batchsize=1, w_bit=16, a_bit=16, kv_bit=16)
    return answer["total_results"]["prefill"]


def viewer_count(asked: Asked) -> Count:
    total = _viewer_prefill(asked)["OPs"]
    return Count(printed=total, unit="OPs", flops=round(total))


def _viewer_offer(figure: str, unit: str, of: str) -> Ask:
    return lambda asked: Offer(figure=_viewer_prefill(asked)[figure], unit=unit, of=of)


def viewer_picture(asked: Asked) -> Offer:
    graph = _viewer(asked).config.transformer_layer_graph
    return Offer(figure=len(graph), unit="boxes", of="the graph of one layer that its web page draws")


# ---- aiconfigurator: how a serving engine would do on a GPU, from measured kernels. It reads a configuration


def _aiconfigurator(asked: Asked, *, serving: bool = False) -> Any:
    from aiconfigurator.cli.api import cli_estimate

    how = {"mode": "agg", "batch_size": IN_FLIGHT} if serving else {"mode": "static_ctx", "batch_size": 1}
    return cli_estimate(str(asked.folder), "h100_sxm", isl=DENSE_TOKENS, osl=ANSWERED_TOKENS, **how)


def aiconfigurator_count(asked: Asked) -> Count:
    answer = _aiconfigurator(asked)
    keys = [name for name in answer.raw if "flop" in name.lower()]
    if not keys:
        raise LookupError(f"none of the {len(answer.raw)} figures in its answer counts FLOPs")
    return Count(printed=answer.raw[keys[0]], unit=keys[0], flops=round(answer.raw[keys[0]]))


def aiconfigurator_memory(asked: Asked) -> Offer:
    return Offer(figure=_aiconfigurator(asked).memory * 2**30, unit="bytes", of="the whole engine on one GPU")


def aiconfigurator_cache(asked: Asked) -> Offer:
    figure = _aiconfigurator(asked).summary.get_memory()["kvcache"] * 2**30
    return Offer(figure=figure, unit="bytes", of=f"the cache of one request of {DENSE_TOKENS} tokens")


def aiconfigurator_time(asked: Asked) -> Offer:
    return Offer(figure=_aiconfigurator(asked).ttft / 1e3, unit="s", of=PREFILL)


def aiconfigurator_serving(asked: Asked) -> Offer:
    figure = _aiconfigurator(asked, serving=True).tokens_per_second_per_gpu
    return Offer(figure=figure, unit="tokens/s", of="64 requests at once, batched in flight, per GPU")


def aiconfigurator_kernels(asked: Asked) -> Offer:
    sources = _aiconfigurator(asked, serving=True).per_ops_source.values()
    tags = [tag for step in sources for tag in step.values()]
    return Offer(figure=tags.count("silicon"), unit="operations", of=f"of {len(tags)} timed from measurements")


# ---- this project, through its Python API


def _prepare_own(asked: Asked) -> None:
    importlib.import_module("transformers" if asked.name.startswith("dense") else "torch")
    if asked.folder is None:
        _ = asked.subject


def _own_trace(asked: Asked, decode_steps: int = 0) -> Any:
    import llm_perf_opt as lpo
    from llm_perf_opt.core.workload import Workload

    if asked.name == "ocr":
        return lpo.trace("deepseek-ocr", **asdict(replace(OCR_WORKLOAD, decode_steps=decode_steps)))
    if asked.folder is not None:
        attention = asked.name.removeprefix("dense-")
        options = Workload(prompt_tokens=DENSE_TOKENS, decode_steps=decode_steps, attention=attention)
        return lpo.trace(asked.folder, **asdict(options))
    return lpo.trace(asked.subject.module, asked.subject.inputs)


def own_count(asked: Asked) -> Count:
    from llm_perf_opt.costs.stage_costs import module_costs, stage_costs

    (graph,) = _own_trace(asked).graphs
    total = stage_costs(graph).total
    return Count(
        printed=total.flops,
        unit="FLOPs",
        flops=total.flops,
        flops_by_module={path: cost.inclusive.flops for path, cost in module_costs(graph).by_path.items()},
        left_out=sorted({op.name for op in total.unpriced}),
    )


def own_memory(asked: Asked) -> Offer:
    from llm_perf_opt.costs.memory.need import run_memory

    total = run_memory(_own_trace(asked).graphs).total_bytes
    assert total is not None
    return Offer(figure=total, unit="bytes", of="weights and what is alive at the peak")


def own_cache(asked: Asked) -> Offer:
    from llm_perf_opt.costs.memory.need import run_memory

    cache = run_memory(_own_trace(asked, decode_steps=1).graphs).cache
    assert cache is not None
    return Offer(figure=cache.bytes, unit="bytes", of=f"the cache of {DENSE_TOKENS} tokens")


def own_time(asked: Asked) -> Offer:
    from llm_perf_opt.core.hardware import find_device
    from llm_perf_opt.timing.datasheet_rates import DataSheetRates
    from llm_perf_opt.timing.predict import predict

    (graph,) = _own_trace(asked).graphs
    likely = sum(stage.device_time.middle for stage in predict(graph, DataSheetRates(find_device("h100-sxm"))))
    return Offer(figure=likely, unit="s", of=f"{PREFILL}, the middle of a band")


def own_picture(asked: Asked) -> Offer:
    shown = _own_trace(asked).graph()
    with tempfile.TemporaryDirectory() as folder:
        svg = shown.save(Path(folder) / "picture.svg").read_text()
    assert "<svg" in svg
    return Offer(figure=len(shown.view.visible()), unit="boxes", of="an SVG drawing, equal modules folded")


def own_serving(asked: Asked) -> Offer:
    from llm_perf_opt.core.hardware import find_device
    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.serving.capacity.steady_state import MeanRequest
    from llm_perf_opt.serving.served_model import ServedModel
    from llm_perf_opt.tracing.origin import find_origin

    assert asked.folder is not None
    served = ServedModel(find_origin(asked.folder, torch_device="cuda"))
    mean = MeanRequest(prompt_tokens=DENSE_TOKENS, output_tokens=ANSWERED_TOKENS)
    replica = served.replica(find_device("h100-sxm"), ParallelPlan(), mean, None, max_sequences=IN_FLIGHT)
    assert replica is not None
    (state,) = (state for state in replica.considered.states if state.sequences == IN_FLIGHT)
    of = f"{IN_FLIGHT} requests at once, batched in flight, per GPU, in a steady state"
    return Offer(figure=state.requests_per_s * ANSWERED_TOKENS, unit="tokens/s", of=of)


PROBES = {
    "torchinfo": Probe(package="torchinfo", count=torchinfo_count, offers={"memory": torchinfo_memory}),
    "fvcore": Probe(package="fvcore.nn", count=fvcore_count, offers={"activations": fvcore_activations}),
    "torch-counter": Probe(package="torch.utils.flop_counter", count=torch_count, offers={"backward": torch_backward}),
    "calflops": Probe(package="calflops", count=calflops_count, offers={"backward": calflops_backward}),
    "torchlens": Probe(
        package="torchlens",
        count=torchlens_count,
        offers={
            "memory": torchlens_memory,
            "backward": torchlens_backward,
            "values": torchlens_values,
            "picture": torchlens_picture,
        },
    ),
    "llm-viewer": Probe(
        package="model_analyzer",
        count=viewer_count,
        offers={
            "memory": _viewer_offer("memory_consumption", "bytes", "weights, cache and the outputs of one layer"),
            "kv-cache": _viewer_offer("memory_consumption_kv_cache", "bytes", f"the cache of {DENSE_TOKENS} tokens"),
            "predicted-time": _viewer_offer("inference_time", "s", f"{PREFILL}, as a roofline bound"),
            "picture": viewer_picture,
        },
        prepares=_viewer_found,
    ),
    "aiconfigurator": Probe(
        package="aiconfigurator.cli.api",
        count=aiconfigurator_count,
        offers={
            "measured-kernels": aiconfigurator_kernels,
            "memory": aiconfigurator_memory,
            "kv-cache": aiconfigurator_cache,
            "predicted-time": aiconfigurator_time,
            "serving": aiconfigurator_serving,
        },
        prepares=lambda asked: None,
    ),
    "llm-perf-opt": Probe(
        package="llm_perf_opt.api.tracing",
        count=own_count,
        offers={
            "serving": own_serving,
            "memory": own_memory,
            "kv-cache": own_cache,
            "predicted-time": own_time,
            "picture": own_picture,
        },
        prepares=_prepare_own,
    ),
}
