"""A GPU that replays what one measured, under the real code: the only thing that does not run is the driver.

Tensors stay on the processor. Everything else that `profile` asks of CUDA is answered: events and their times, ranges
of NVTX, the allocator's statistics, the properties of the device, and the file of torch's profiler, into which the
device's side is written the way Kineto does: a launch in the op that asked for it, a kernel with the id of that op and
the correlation of its launch, on one stream, as long as kernels of its family took on the recorded GPU.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from llm_perf_opt.harness import stage_ranges

FACTS = Path(__file__).parent / "facts" / "deepseek_ocr" / "measured-gpu.json"
NAME = "NVIDIA GeForce RTX 5090"
ALLOCATED = 7_654_321_000  # what the allocator says it had given out at most
LAUNCH_US = 2.0
OPS = {
    "gemm": "addmm mm bmm baddbmm",
    "conv": "mkldnn_convolution thnn_conv2d slow_conv2d_forward _slow_conv2d_forward",
    "attention": "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math",
    "softmax": "_softmax",
    "layernorm": "native_layer_norm",
    "copy_cat_cast": "copy_ cat fill_ constant_pad_nd",
    "index_sort_topk": "index index_select gather topk sort embedding index_add_ index_put_ scatter_ cumsum bincount",
    "reduce": "sum mean argmax max all any",
    "elementwise": "add add_ sub mul mul_ div neg pow rsqrt sqrt cos sin silu gelu sigmoid eq ne lt gt where "
    "_upsample_bicubic2d_aa arange triu exp floor_divide remainder",
}
FAMILY = {f"aten::{op}": family for family, ops in OPS.items() for op in ops.split()}
KERNELS = {
    "gemm": "cutlass_80_tensorop_s16816gemm_bf16_128x64",
    "conv": "implicit_convolve_sgemm",
    "attention": "pytorch_flash::flash_fwd_kernel",
    "softmax": "softmax_warp_forward",
    "layernorm": "vectorized_layer_norm_kernel",
    "copy_cat_cast": "direct_copy_kernel_cuda",
    "index_sort_topk": "index_elementwise_kernel",
    "reduce": "reduce_kernel",
    "elementwise": "vectorized_elementwise_kernel",
}


def kernel_us(record: str = "rtx5090-kernels-prefill") -> dict[str, float]:
    """The mean time of a launch by family of kernels, as an RTX 5090 ran the prefill of DeepSeek-OCR."""
    document = json.loads(FACTS.read_text("utf-8"))
    records = document if isinstance(document, list) else document["records"]
    families = next(one for one in records if one["id"] == record)["metrics"]["by_family"]
    return {name: found["ms"] * 1000 / found["launches"] for name, found in families.items()}


class OnProcessor(TorchFunctionMode):
    """Whoever asks for CUDA gets the processor; a name of a device that is asked for stays what it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _processor(kwargs["device"])
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *map(_processor, args[1:]))
        return func(*args, **kwargs)


def _processor(value: Any) -> Any:
    is_cuda = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return torch.device("cpu") if is_cuda else value


@dataclass
class RecordedDevice:
    """What was asked of it. `slower` multiplies the time of a family of kernels."""

    slower: Mapping[str, float] = field(default_factory=dict)
    events: int = 0
    synchronised: int = 0
    ranges: list[str] = field(default_factory=list)
    open_ranges: list[str] = field(default_factory=list)
    launched_ns: Counter[str] = field(default_factory=Counter)

    def event(self, enable_timing: bool = False) -> Any:
        assert enable_timing
        self.events += 1
        noted = SimpleNamespace(ns=0)
        noted.record = lambda stream: setattr(noted, "ns", time.perf_counter_ns())
        noted.elapsed_time = lambda later: (later.ns - noted.ns) / 1e6  # milliseconds, as CUDA gives them
        return noted

    def synchronize(self, device: object = None) -> None:
        self.synchronised += 1

    def push(self, text: str) -> None:
        self.ranges.append(text)
        self.open_ranges.append(text)

    def add_kernels(self, document: dict[str, Any]) -> None:
        """The device's side of a Chrome trace."""
        times, free_us = kernel_us(), 0.0
        added: list[dict[str, Any]] = []
        ops = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op" and event["name"] in FAMILY]
        for number, op in enumerate(sorted(ops, key=lambda event: event["ts"])):
            family = FAMILY[op["name"]]
            began_us = max(free_us, op["ts"] + LAUNCH_US)
            took_us = round(times[family] * self.slower.get(family, 1.0), 3)
            free_us = began_us + took_us
            place = {"ph": "X", "pid": op["pid"], "tid": op["tid"]}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": op["ts"], "dur": 1.0}
            added.append({**place, **launch, "args": {"correlation": number}})
            known = {"External id": op["args"]["External id"], "correlation": number, "device": 0, "stream": 7}
            kernel = {"cat": "kernel", "name": KERNELS[family], "ts": began_us, "dur": took_us}
            added.append({"ph": "X", "pid": 0, "tid": 7, **kernel, "args": known})
            self.launched_ns[family] += round(took_us * 1000)
        document["traceEvents"] += added
        document["deviceProperties"] = [{"id": 0, "name": NAME}]


@contextmanager
def recorded_device(
    monkeypatch: pytest.MonkeyPatch, slower: Mapping[str, float] | None = None
) -> Iterator[RecordedDevice]:
    """While the block runs this machine has the recorded GPU."""
    device = RecordedDevice(slower or {})
    properties = SimpleNamespace(name=NAME, total_memory=32_607 * 2**20, major=12, minor=0, multi_processor_count=170)
    start, export = torch.profiler.profile.__init__, torch.profiler.profile.export_chrome_trace

    def started(profiler: torch.profiler.profile, *, activities: list[Any], **options: Any) -> None:
        assert torch.profiler.ProfilerActivity.CUDA in activities
        start(profiler, activities=[torch.profiler.ProfilerActivity.CPU], **options)

    def exported(profiler: torch.profiler.profile, path: str) -> None:
        export(profiler, path)
        document = json.loads(Path(path).read_text("utf-8"))
        name = document.pop("traceName")
        device.add_kernels(document)
        Path(path).write_text(json.dumps({**document, "traceName": name}), "utf-8")

    answers = {
        "is_available": lambda: True,
        "synchronize": device.synchronize,
        "Event": device.event,
        "current_stream": lambda _=None: "stream 7",
        "get_device_properties": lambda _=None: properties,
        "mem_get_info": lambda _=None: (32 * 10**9, 32 * 10**9),
        "reset_peak_memory_stats": lambda _=None: None,
        "max_memory_allocated": lambda _=None: ALLOCATED,
    }
    with monkeypatch.context() as patches, OnProcessor():
        for name, answer in answers.items():
            patches.setattr(torch.cuda, name, answer)
        patches.setattr(torch.cuda.nvtx, "range_push", device.push)
        patches.setattr(torch.cuda.nvtx, "range_pop", device.open_ranges.pop)
        patches.setattr(torch.profiler.profile, "__init__", started)
        patches.setattr(torch.profiler.profile, "export_chrome_trace", exported)
        stage_ranges._has_cuda.cache_clear()
        try:
            yield device
        finally:
            stage_ranges._has_cuda.cache_clear()
