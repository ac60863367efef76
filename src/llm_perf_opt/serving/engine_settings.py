"""What an engine is told when it starts: the model, the devices it believes in, ranks, limits and cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice:
    """A GPU as its driver would describe it."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    compute_units: int

    @classmethod
    def of(cls, device: Device) -> SeenDevice:
        """A device of the table; one that no driver of NVIDIA describes is refused."""
        version, units = device.facts.get("compute_capability"), device.facts.get("compute_units")
        if version is None or units is None:
            raise UsageError(
                f"vLLM cannot be told to run on {device.name}.",
                why="it chooses its defaults by the compute capability and the units of an NVIDIA GPU, not known here",
                fix="choose a GPU of NVIDIA: llm-perf-opt devices list",
            )
        major, _, minor = str(version).partition(".")
        name = device.reported_names[0] if device.reported_names else device.name
        return cls(
            name=name, memory_bytes=device.memory_bytes, capability=(int(major), int(minor)), compute_units=int(units)
        )


CACHE_ARGUMENTS = {"bfloat16": "auto", "float16": "auto", "float8_e4m3fn": "fp8", "int8": "int8_per_token_head"}


def cache_argument(dtype: object) -> str:
    """What vLLM's `--kv-cache-dtype` says for keys and values of this dtype; None is the type of the model."""
    if dtype is None:
        return "auto"
    if (argument := CACHE_ARGUMENTS.get(str(dtype))) is None:
        raise UsageError(
            f"vLLM keeps no cache in {dtype}.",
            why=f"known are {', '.join(CACHE_ARGUMENTS)}",
            fix="choose --cache fp8, or leave it out",
        )
    return argument


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine of a served model. What is None is left to the engine's own default for that device.

    An engine is one of the `attention_dp` groups of its `plan`; each has a scheduler and a cache of its own.

    `cache_bytes` is what one rank can give to the cache after weights, activations and graphs; `cache_blocks` states
    the number of blocks instead. `more` are further arguments of the engine by their own names.
    """

    model: str  # a folder with config.json
    device: SeenDevice
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    dtype: str = "auto"
    cache_dtype: str = "auto"
    cache_bytes: int | None = None
    cache_blocks: int | None = None
    max_sequences: int | None = None
    max_batched_tokens: int | None = None
    max_model_tokens: int | None = None
    trust_remote_code: bool = False
    more: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The settings of one engine."""
        return self.plan.tp * self.plan.pp
