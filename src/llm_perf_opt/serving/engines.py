"""What a serving engine holds besides weights and cache, by version, and how much it runs at once by default.

The rules are read in the engine's source, the amounts outside PyTorch in published start-up logs. No rule is fitted to
the records that the tests compare with; the constants outside PyTorch of the older versions come from a planner that
was calibrated on the same logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import ParallelPlan

MIB, GIB = 2**20, 2**30
ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One summand of a device's memory, in words that a table can print."""

    name: str
    bytes: int


def total_bytes(terms: Iterable[MemoryTerm]) -> int:
    """All of them together."""
    return sum(term.bytes for term in terms)


_LARGE_DEVICE_BYTES, _LARGEST_DEVICE_BYTES = 70 * GIB, 160 * GIB
_DRIVER_RESERVE_BYTES = 512 * MIB
_CUBLAS_BYTES, _CUBLAS_LARGE_BYTES = 8320 * 1024, 32 * MIB


class SamplerKind(StrEnum):
    """How an engine applies top-k and top-p to the logits; decides most of the working memory."""

    SORT = "sort in PyTorch"
    FLASHINFER = "FlashInfer kernels"
    TRITON = "Triton kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine:
    """The memory habits of one range of versions.

    `outside_torch_bytes` is what the process takes without PyTorch's allocator (CUDA modules, NCCL buffers) after the
    engine's first look at the device: for one device, for each of several that share layers, and for each of several
    stages that do not. `graph_bytes` is what captured graphs
    take of the share `utilisation`; 0 where they are captured outside of it.
    """

    name: str
    sampler: SamplerKind
    keeps_expert_workspace: bool  # the buffers of the routed experts outlive the forward
    pads_encoder_outputs: bool  # the profile run stores every image as if it had a whole chunk of tokens
    copies_mxfp4_scales: bool  # on Hopper: the swizzled scales are next to the scales of the checkpoint
    outside_torch_bytes: int
    outside_torch_parallel_bytes: int
    outside_torch_pipeline_bytes: int
    sources: tuple[str, ...]
    utilisation: float = 0.9  # the default of `gpu_memory_utilization`
    graph_bytes: int = 0

    def outside_torch(self, plan: ParallelPlan) -> int:
        """What a rank of a plan loses outside PyTorch, captured graphs included where they count.

        Stages of a pipeline send to one another without the buffers that an all-reduce keeps.
        """
        is_shared = plan.stage_ranks > 1
        alone = self.outside_torch_bytes if plan.pp == 1 else self.outside_torch_pipeline_bytes
        return (self.outside_torch_parallel_bytes if is_shared else alone) + self.graph_bytes


_SAMPLER_FILE = "vllm/v1/sample/ops/topk_topp_sampler.py"
_PROFILE_FILE = "vllm/v1/worker/gpu_model_runner.py (profile_run, _dummy_sampler_run)"
_PLANNER = "llm-d-incubation/llm-d-planner"

VLLM_0_11_0 = ServingEngine(
    name="vLLM 0.11.0",
    sampler=SamplerKind.FLASHINFER,
    keeps_expert_workspace=False,
    pads_encoder_outputs=True,
    copies_mxfp4_scales=False,
    outside_torch_bytes=round(0.15 * GIB),
    outside_torch_parallel_bytes=round(0.6 * GIB),
    outside_torch_pipeline_bytes=round(0.15 * GIB),
    sources=(
        f"vllm v0.11.0: {_SAMPLER_FILE}: FlashInfer where it is installed, as in the released image",
        f"vllm v0.11.0: {_PROFILE_FILE}",
        "vllm v0.11.0: quantization/utils/mxfp4_utils.py: no swizzling with torch 2.8.0",
        f"outside PyTorch: the constants of {_PLANNER} (0.15 and 0.60 GiB); vllm pull request 12126 shows 0.16 GiB "
        "on one H100, vllm issue 13061 0.25 GiB on each of two RTX 4090",
    ),
)
VLLM_0_12 = ServingEngine(
    name="vLLM 0.11.1 to 0.12",
    sampler=SamplerKind.SORT,
    keeps_expert_workspace=False,
    pads_encoder_outputs=True,
    copies_mxfp4_scales=True,
    outside_torch_bytes=VLLM_0_11_0.outside_torch_bytes,
    outside_torch_parallel_bytes=VLLM_0_11_0.outside_torch_parallel_bytes,
    outside_torch_pipeline_bytes=VLLM_0_11_0.outside_torch_pipeline_bytes,
    sources=(
        f"vllm v0.12.0: {_SAMPLER_FILE}: FlashInfer is off by default since pull request 26859",
        f"vllm v0.12.0: {_PROFILE_FILE}",
        "vllm v0.12.0: quantization/mxfp4.py: `w13_weight_scale` is kept after `_swizzle_mxfp4`, biases become float32",
        *VLLM_0_11_0.sources[3:],
    ),
)
VLLM_0_16 = replace(
    VLLM_0_12,
    name="vLLM 0.13 to 0.16",
    keeps_expert_workspace=True,
    pads_encoder_outputs=False,
    sources=(
        "vllm v0.15.0: vllm/v1/worker/workspace.py and gpu_model_runner.py (profile_run)",
        *VLLM_0_12.sources,
    ),
)
VLLM_0_19 = ServingEngine(
    name="vLLM 0.17 to 0.19",
    sampler=SamplerKind.TRITON,
    keeps_expert_workspace=True,
    pads_encoder_outputs=False,
    copies_mxfp4_scales=False,
    outside_torch_bytes=round(0.25 * GIB),
    outside_torch_parallel_bytes=round(2.1 * GIB),
    outside_torch_pipeline_bytes=round(0.07 * GIB),
    sources=(
        f"vllm v0.19.0: {_SAMPLER_FILE} and topk_topp_triton.py, since pull request 33538",
        f"vllm v0.19.0: {_PROFILE_FILE}; vllm/v1/worker/workspace.py, since 0.13",
        f"outside PyTorch: accuracy/accuracy_report.md of {_PLANNER} @ 8f9dbb8: 0.25 GiB on one H100 (0.13 before "
        "0.18), 2.06 to 2.17 GiB on each of two or four, 0.07 on each stage of a pipeline",
    ),
)
VLLM_0_32 = replace(
    VLLM_0_19,
    name="vLLM 0.21 to 0.32",
    utilisation=0.92,
    graph_bytes=round(0.5 * GIB),
    sources=(
        "vllm v0.32.0: vllm/config/cache.py: gpu_memory_utilization = 0.92",
        "vllm v0.32.0: vllm/v1/worker/gpu_worker.py (determine_available_memory): captured graphs are estimated and "
        "subtracted, by default since 0.21 (vllm/envs.py)",
        f"their size: 0.10, 0.39 and 1.03 GiB in those start-up logs of {_PLANNER} that show any",
        *VLLM_0_19.sources,
    ),
)
# The first version of each; the last one that is not later than a version is that version's.
ENGINES = {
    (0, 11, 0): VLLM_0_11_0,
    (0, 11, 1): VLLM_0_12,
    (0, 13): VLLM_0_16,
    (0, 17): VLLM_0_19,
    (0, 21): VLLM_0_32,
}


def engine_of_version(version: str) -> ServingEngine:
    """The memory habits of a version of vLLM such as `0.19.0`."""
    numbers = tuple(int(part) for part in version.split("."))
    engines = [engine for first, engine in ENGINES.items() if first <= numbers]
    if not engines:
        raise UsageError(
            f"How vLLM {version} uses memory is not known.", why="the oldest known is 0.11.0", fix="name a later one"
        )
    return engines[-1]


DEFAULT_SERVING_ENGINE = VLLM_0_32  # the version that replays run


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much an engine runs in one step: tokens of a chunked prefill, and sequences that get a next token."""

    chunk_tokens: int
    sequences: int

    @property
    def sampled_rows(self) -> int:
        """Rows of logits in one step: no more sequences than tokens."""
        return min(self.sequences, self.chunk_tokens)


def default_limits(device: Device) -> BatchLimits:
    """What vLLM's server takes for `max_num_batched_tokens` and `max_num_seqs`: more from 70 GiB on, but for the A100.

    Source: vllm/engine/arg_utils.py, the same from v0.11.0 to v0.32.0, but for the last step, from 160 GiB on.
    """
    if device.memory_bytes >= _LARGEST_DEVICE_BYTES:
        return BatchLimits(chunk_tokens=16384, sequences=1024)
    names = " ".join((device.id, device.name, *device.reported_names)).casefold()
    is_large = device.memory_bytes >= _LARGE_DEVICE_BYTES and "a100" not in names
    return BatchLimits(chunk_tokens=8192, sequences=1024) if is_large else BatchLimits(chunk_tokens=2048, sequences=256)


def visible_bytes(device: Device) -> int:
    """What a CUDA program sees of the device's memory: the driver keeps some of what it reports for itself.

    The reserve is 0.5 GiB for NVIDIA cards where the memory was read from the driver. PyTorch and vLLM print 79.18 to
    79.22 GiB for an H100 of 81,559 MiB, 31.37 for an RTX 5090 of 32,607 MiB, 23.55 for an RTX 4090 of 24,564 MiB and
    44.39 for a card of 46,068 MiB: 0.43 to 0.60 GiB less. A nominal figure is below both and is taken as it is.
    """
    is_reported = device.vendor == "NVIDIA" and device.nominal_memory_bytes is not None
    return device.memory_bytes - (_DRIVER_RESERVE_BYTES if is_reported else 0)


def cublas_workspace_bytes(device: Device) -> int:
    """PyTorch's workspace for cuBLAS, which its allocator holds from the first matmul on.

    32 MiB on Hopper and data-centre Blackwell, 8,320 KiB elsewhere. Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    return _CUBLAS_LARGE_BYTES if capability_major(device) in (9, 10) else _CUBLAS_BYTES


def capability_major(device: Device) -> int | None:
    """9 for Hopper; None where the device has no compute capability or it is unknown."""
    capability = str(device.facts.get("compute_capability", ""))
    major = capability.partition(".")[0]
    return int(major) if major.isdigit() else None
