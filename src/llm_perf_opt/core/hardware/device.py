"""A device: what its matrix engines and its memory can do at most, with the sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.errors import PerfOptError

# Matrix work of these torch dtypes runs at one of these peaks; the first that the device knows counts.
PEAKS_OF_DTYPE = {
    "float64": ("fp64_tensor", "fp64"),
    "float32": ("fp32",),
    "bfloat16": ("bf16",),
    "float16": ("fp16",),
    "float8_e4m3fn": ("fp8",),
    "float8_e5m2": ("fp8",),
    "float4_e2m1fn_x2": ("fp4",),
    "int8": ("int8",),
}
# Every peak a device may have. Accumulation is in float32 (int8: int32) unless the name ends in the narrower type.
PEAK_NAMES = (
    "fp64", "fp64_tensor", "fp32", "tf32", "bf16", "fp16", "fp16_acc16", "fp8", "fp8_acc16", "int8", "fp4",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The figures of one accelerator or processor, in base units. None is unknown, never zero.

    `peak_flops_per_s` holds dense rates, without structured sparsity, by the names of `PEAK_NAMES`; `fp32` is the rate
    of the vector units. Consumer GeForce cards multiply 16-bit types at half their advertised rate when they accumulate
    in float32, which is what PyTorch requests: `bf16` and `fp16` are that rate, `fp16_acc16` the advertised one.
    `achieved_flops_per_s` is the best rate measured by anyone for a plain matrix product: no real kernel does better.
    `sources` are those of the device: which of them a figure was read in is not kept. `unverified` names the figures,
    as the file spells them, that were derived or filled in and read in none of them.
    """

    id: str
    name: str
    vendor: str
    arch: str
    peak_flops_per_s: Mapping[str, int]
    bandwidth_bytes_per_s: int
    memory_bytes: int  # what the driver reports; where no source has that, the nominal figure, and then unverified
    nominal_memory_bytes: int | None = None  # of the data sheet, in gigabytes of 10^9 bytes; None: `memory_bytes` is it
    memory_reported_source: str | None = None  # who read what the driver reports
    l2_bytes: int | None = None
    last_cache_bytes: int | None = None  # a cache behind L2
    launch_overhead_ns: int | None = None  # from one kernel or op to the next when none of them has work
    launch_overhead_fastest_ns: int | None = None  # of several tries, of which that is the median
    launch_overhead_slowest_ns: int | None = None
    achieved_flops_per_s: Mapping[str, int] = field(default_factory=dict)
    achieved_source: str | None = None
    is_measured: bool = False  # by a calibration, so that a run may beat a peak by the noise of measuring
    threads: int | None = None  # of a processor that was measured: its figures hold for a run with as many
    reported_names: tuple[str, ...] = ()  # what drivers and libraries call it
    facts: Mapping[str, str | int | float] = field(default_factory=dict)  # further figures, as the file spells them
    sources: tuple[str, ...] = ()
    cross_checks: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str | None = None

    @property
    def cache_bytes(self) -> int | None:
        """The largest cache: what fits in it need not come from memory again."""
        sizes = [size for size in (self.l2_bytes, self.last_cache_bytes) if size is not None]
        return max(sizes, default=None)

    @property
    def torch_device(self) -> str | None:
        """The device that code sees on it: `cpu` for a processor, the only kind with threads. None: the default."""
        return None if self.threads is None else "cpu"

    def peak(self, dtype: str) -> int:
        """Dense FLOP/s of matrix work in `dtype`, by torch's name or by one of `PEAK_NAMES`; unknown raises."""
        for name in PEAKS_OF_DTYPE.get(dtype, (dtype,)):
            if name in self.peak_flops_per_s:
                return self.peak_flops_per_s[name]
        raise PerfOptError(
            f"No peak rate is known for {dtype} on {self.name}.",
            why=f"known are: {', '.join(self.peak_flops_per_s)}; a guessed peak would make every figure from it wrong",
            fix="choose a dtype the device has, or add the rate with its source to a file for --devices",
        )
