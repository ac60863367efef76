"""A device: what its matrix engines and its memory can do at most, with the sources."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, parse_toml, read_bytes

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
    `achieved_flops_per_s` is the best rate measured by anyone for a plain matmul: no real kernel does better.
    `sources` belong to the device: the file does not say which figure comes from which source. `unverified` names the
    figures, as the file spells them, that were derived or filled in and read in none of them.
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


# Devices as TOML: read with every mistake named, and written the same way.
#
# The file speaks in the units of data sheets (TFLOP/s, GB/s, MiB), so that a row can be compared with its source at a
# glance; the record holds base units. A file has one table per device, `[devices.<id>]`; `[links.<id>]` and
# `[nodes.<device>]` are read by `link_file.py`, and other top-level tables are left to whoever put them there.

TERA, GIGA, MEBI, MICRO_IN_NANO = 10**12, 10**9, 2**20, 1000

DEVICE_FILE = FileKind(
    name="device file", fix="start from what `llm-perf-opt devices template` prints", max_bytes=2**22, error=UsageError
)


class PositiveDecimal(Decimal):
    """A number above zero, exactly as the file spells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceTable:
    """One `[devices.<id>]` of a file, key by key. What is not known is left out."""

    name: str
    vendor: str
    arch: str
    peak_tflops_dense: Mapping[str, PositiveDecimal]
    bandwidth_gb_per_s: PositiveDecimal
    memory_gb: PositiveDecimal
    memory_reported_mib: PositiveDecimal | None = None
    l2_mib: PositiveDecimal | None = None
    last_cache_mib: PositiveDecimal | None = None
    launch_overhead_us: PositiveDecimal | None = None
    launch_overhead_fastest_us: PositiveDecimal | None = None
    launch_overhead_slowest_us: PositiveDecimal | None = None
    threads: PositiveDecimal | None = None
    achieved_tflops: Mapping[str, PositiveDecimal] | None = None
    achieved_source: str | None = None
    memory_reported_source: str | None = None
    is_measured: bool = False
    reported_names: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    cross_checks: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    notes: str | None = None
    form_factor: str | None = None
    release_year: int | None = None
    memory_type: str | None = None
    compute_units: int | None = None
    boost_mhz: int | None = None
    compute_capability: str | None = None
    nvlink_gb_per_s_both_ways: int | float | None = None
    pcie: str | None = None
    pcie_gb_per_s: int | float | None = None
    interconnect: str | None = None
    tdp_w: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceFile:
    devices: Mapping[str, _DeviceTable] = field(default_factory=dict)


_SCALED = {  # key in the file -> field of the record, how many base units one is
    "bandwidth_gb_per_s": ("bandwidth_bytes_per_s", GIGA),
    "memory_gb": ("nominal_memory_bytes", GIGA),
    "memory_reported_mib": ("memory_bytes", MEBI),
    "l2_mib": ("l2_bytes", MEBI),
    "last_cache_mib": ("last_cache_bytes", MEBI),
    "launch_overhead_us": ("launch_overhead_ns", MICRO_IN_NANO),
    "launch_overhead_fastest_us": ("launch_overhead_fastest_ns", MICRO_IN_NANO),
    "launch_overhead_slowest_us": ("launch_overhead_slowest_ns", MICRO_IN_NANO),
    "threads": ("threads", 1),
}
_RATES = {"peak_tflops_dense": "peak_flops_per_s", "achieved_tflops": "achieved_flops_per_s"}
_TEXTS = ("name", "vendor", "arch")
_LISTS = ("reported_names", "sources", "cross_checks", "disagreements", "unverified")
_SOURCES = ("achieved_source", "memory_reported_source", "notes")  # one text each
_SAME = (*_TEXTS, *_LISTS, *_SOURCES, "is_measured")  # the record has them under the same name
_FACTS = tuple(key.name for key in fields(_DeviceTable) if key.name not in {*_SCALED, *_RATES, *_SAME})
_REPORTED_OF_NOMINAL = (0.75, 1.25)  # a reported figure outside of this was written in another unit

_Complain = Callable[[str, str], UsageError]


def read_devices(text: str | bytes, origin: str) -> dict[str, Device]:
    """Every device of a TOML text, by id; `origin` names the file in errors."""
    with naming_file(origin):
        document = parse_toml(text.encode() if isinstance(text, str) else text, DEVICE_FILE)
        devices = {"devices": document["devices"]} if "devices" in document else {}
        tables = as_record(devices, _DeviceFile, DEVICE_FILE, hook=positive_decimal).devices
        if not tables and not {"links", "nodes"} & set(document):
            raise DEVICE_FILE.refusal("describes no devices", "it has no tables named [devices.<id>]")
        return {identifier: _device(identifier, table) for identifier, table in tables.items()}


def positive_decimal(_: type, value: Any) -> PositiveDecimal:
    """A figure of a file; anything else is refused."""
    if type(value) not in (int, Decimal) or not Decimal(value).is_finite() or not 0 < value < 10**30:
        raise ValueError("a number above zero (leave out what is not known)")
    return PositiveDecimal(value)


def _device(identifier: str, table: _DeviceTable) -> Device:
    def complain(what: str, why: str) -> UsageError:
        return UsageError(f"Device {identifier[:80]!r}: {what}.", why=why, fix=DEVICE_FILE.fix)

    values: dict[str, Any] = {key: getattr(table, key) for key in _SAME}
    for key in _TEXTS:
        if not values[key]:
            raise complain(f"{key!r} is empty", "a device needs it to be told from others")
    for key, (name, scale) in _SCALED.items():
        if (figure := getattr(table, key)) is not None:
            values[name] = int(figure * scale)
            if values[name] < 1:
                raise complain(f"{key!r} is too small", "it is less than one byte, nanosecond or thread")
    for key, name in _RATES.items():
        if (rates := getattr(table, key)) is not None:
            values[name] = _rates(rates, key, complain)
    facts = {key: getattr(table, key) for key in _FACTS}
    values["facts"] = {key: value for key, value in facts.items() if value is not None}
    _settle_memory(values, complain)
    if not values["sources"]:
        raise complain("it names no sources", "a figure that cannot be looked up cannot be trusted")
    device = Device(id=identifier, **values)
    _check_overheads(device, complain)
    return device


def _rates(rates: Mapping[str, PositiveDecimal], key: str, complain: _Complain) -> dict[str, int]:
    known = f"rates go by {', '.join(PEAK_NAMES)}"
    if not rates:
        raise complain(f"{key!r} is empty", known)
    for name in rates:
        if name not in PEAK_NAMES:
            raise complain(f"there is no rate {name[:80]!r} in {key!r}", known)
    return {name: int(rate * TERA) for name, rate in rates.items()}


def _check_overheads(device: Device, complain: _Complain) -> None:
    ends = (device.launch_overhead_fastest_ns, device.launch_overhead_ns, device.launch_overhead_slowest_ns)
    given = [figure for figure in ends if figure is not None]
    if given and device.launch_overhead_ns is None:
        raise complain(
            "'launch_overhead_us' is missing", "the fastest and the slowest try need the median between them"
        )
    if given != sorted(given):
        raise complain(
            "its launch overheads are not in order", "the fastest is at most the median, the slowest at least"
        )


def _settle_memory(fields: dict[str, Any], complain: _Complain) -> None:
    """What the driver reports is the memory; without it the nominal figure stands in, and is said to be unverified.

    A calibration reads the memory of the machine that it runs on, so of a measured device the one figure is enough.
    """
    nominal = fields["nominal_memory_bytes"]
    if "memory_bytes" not in fields:
        fields |= {"memory_bytes": nominal, "nominal_memory_bytes": None}
        if not fields.get("is_measured") and "memory_gb" not in fields["unverified"]:
            fields["unverified"] += ("memory_gb",)
        return
    low, high = _REPORTED_OF_NOMINAL
    reported = fields["memory_bytes"]
    if not low <= reported / nominal <= high:
        raise complain(
            "'memory_reported_mib' and 'memory_gb' are far apart",
            f"{reported / MEBI:,.0f} MiB are {reported / GIGA:,.1f} GB, not {nominal / GIGA:,.1f}",
        )


def device_text(device: Device) -> str:
    """The device as a table of such a file; reading it back gives an equal device."""
    lines = [f"[devices.{_quoted_key(device.id)}]"]
    lines += [f"{key} = {_quoted(getattr(device, key))}" for key in _TEXTS]
    lines += [
        f"{key} = {{ {', '.join(f'{name} = {_number(rate, TERA)}' for name, rate in rates.items())} }}"
        for key, rates in ((key, getattr(device, name)) for key, name in _RATES.items())
        if rates
    ]
    for key, (name, scale) in _SCALED.items():
        if (value := _written_figure(device, key, name)) is not None:
            lines.append(f"{key} = {_number(value, scale)}")
    lines += [f"{key} = {_quoted(value) if isinstance(value, str) else value}" for key, value in device.facts.items()]
    for key in _SOURCES:
        if getattr(device, key) is not None:
            lines.append(f"{key} = {_quoted(getattr(device, key))}")
    if device.is_measured:
        lines.append("is_measured = true")
    for key in _LISTS:
        if values := getattr(device, key):
            lines += [f"{key} = [", *(f"    {_quoted(value)}," for value in values), "]"]
    return "\n".join(lines) + "\n"


def _written_figure(device: Device, key: str, name: str) -> int | None:
    """A figure in base units; a device that knows one figure of its memory writes it as the nominal one."""
    if key == "memory_gb":
        return device.nominal_memory_bytes or device.memory_bytes
    if key == "memory_reported_mib" and device.nominal_memory_bytes is None:
        return None
    value: int | None = getattr(device, name)
    return value


def device_template(identifier: str = "my-device", reported_name: str | None = None) -> str:
    """A table to fill in; it reads as it stands, with figures that are plainly invented."""
    example = Device(
        id=identifier,
        name=reported_name or "My Device",
        vendor="who makes it",
        arch="its architecture",
        peak_flops_per_s={"fp32": TERA, "bf16": TERA, "fp16": TERA},
        bandwidth_bytes_per_s=GIGA,
        memory_bytes=1000 * MEBI,
        nominal_memory_bytes=GIGA,
        memory_reported_source="what nvidia-smi, rocm-smi or torch.cuda.mem_get_info() says",
        reported_names=(reported_name or "what torch.cuda.get_device_name() says",),
        sources=("where every figure above was read: a data sheet and its address",),
    )
    return (
        "# Replace every figure. Rates are dense (no sparsity), matrix work accumulates in float32.\n"
        "# TFLOP/s are 10^12 FLOP/s (one multiply-add is two), GB/s are 10^9 bytes/s. Leave out what is not known.\n"
        "# memory_gb is nominal, memory_reported_mib (MiB) what the driver reports: without it fit answers are rough.\n"
        f"# Optional: {', '.join(key for key in _SCALED if key not in device_text(example))}, "
        "achieved_tflops, achieved_source, unverified, notes.\n" + device_text(example)
    )


def _number(value: int, scale: int) -> str:
    """Exactly as many units as it takes to get the integer back."""
    units = Decimal(value) / scale
    return str(int(units)) if units == int(units) else f"{units.normalize():f}"


def _quoted_key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    """A TOML basic string; control characters are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'


log = logging.getLogger(__name__)

# Names that drivers report for more than one device, and what tells those apart.
AMBIGUOUS_NAMES = {
    "AMD Instinct MI250X": (
        ("mi250x",),
        "a process sees one of the card's two dies under this name, with half of the card's figures",
    ),
    "Orin": (("jetson-agx-orin-64g",), "every Jetson of the Orin family reports this name"),
    "NVIDIA Thor": (("jetson-agx-thor",), "every Jetson of the Thor family reports this name"),
    "Apple M2 Ultra": (("apple-m2-ultra-76",), "the chip is sold with 60 and with 76 GPU cores"),
    "Apple M3 Max": (("apple-m3-max-40",), "the chip is sold with 30 and with 40 GPU cores, at different bandwidths"),
    "Apple M4 Max": (("apple-m4-max-40",), "the chip is sold with 32 and with 40 GPU cores, at different bandwidths"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable:
    """Every known device by id."""

    devices: Mapping[str, Device]

    def find(self, name: str) -> Device:
        """The device with this id or reported name, without regard to case, or the one that a short form can mean.

        A short form is some words of an id, `h200` for `h200-sxm`, or their beginnings, `mi300` for `mi300x`.
        """
        wanted = _plain(name)
        by_id = {_plain(device.id): device for device in self.devices.values()}
        if wanted in by_id:
            return by_id[wanted]
        matching = [device for device in self.devices.values() if wanted in map(_plain, device.reported_names)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise _ambiguous(name, (device.id for device in matching), "several devices report this name")
        for reported, (candidates, reason) in AMBIGUOUS_NAMES.items():
            if wanted == _plain(reported):
                raise _ambiguous(name, candidates, reason)
        return self._by_short_form(name)

    def _by_short_form(self, name: str) -> Device:
        words, ids = _words(name), {device.id: _words(device.id) for device in self.devices.values()}
        with_all_words = [name for name, parts in ids.items() if words and set(words) <= set(parts)]
        begun = [name for name, parts in ids.items() if words and all(_begins(word, parts) for word in words)]
        matching = with_all_words or begun
        if len(matching) > 1:
            raise UsageError(
                f"{name!r} may mean more than one device.",
                why=f"it is a short form of: {', '.join(matching)}",
                fix=f"give one of these ids, such as {matching[0]}",
            )
        if not matching:
            raise self._unknown(name)
        for reported, (candidates, reason) in AMBIGUOUS_NAMES.items():
            if matching[0] in candidates and set(words) <= set(_words(reported)):
                raise _ambiguous(name, candidates, reason)
        _tell_once(name, matching[0])
        return self.devices[matching[0]]

    def _unknown(self, name: str) -> UsageError:
        near = self._nearest(name)
        return UsageError(
            f"There is no device named {name!r}.",
            why="a device is named by its id, by words of its id, or by the name that its driver reports"
            + (f"; similar names are: {', '.join(near)}" if near else ""),
            fix="give an id from `llm-perf-opt devices list`, or describe the device in a file for --devices: "
            f"`llm-perf-opt devices template {_as_id(name)}` prints the form",
        )

    def _nearest(self, name: str) -> list[str]:
        """Ids of devices that have every word of `name` in one of their names, otherwise those spelled alike."""
        words = set(_words(name))
        holding = [
            device.id
            for device in self.devices.values()
            if words and words <= set(_words(" ".join((device.id, device.name, *device.reported_names))))
        ]
        return holding or difflib.get_close_matches(_as_id(name), self.devices, n=4, cutoff=0.5)


def find_device(name: str, devices_file: Path | None = None) -> Device:
    """The device of the package's table, or of the user's file, which adds to the table and wins over it."""
    return load_devices(devices_file).find(name)


def reported_elsewhere(device: Device, reported: str | None) -> Device | None:
    """The device that a driver's name means, where it is another one than `device`; None: the same, or nobody knows.

    A device of the user's own file may describe any machine.
    """
    shipped = load_devices()
    if reported is None or device.id not in shipped.devices:
        return None
    try:
        found = shipped.find(reported)
    except UsageError:
        return None
    return None if found.id == device.id else found


def load_devices(devices_file: Path | None = None) -> DeviceTable:
    """The package's devices and the user's; a device of the user's file replaces the package's with the same id."""
    known = _package_devices()
    if devices_file is None:
        return DeviceTable(devices=known)
    given = read_devices(read_bytes(devices_file, DEVICE_FILE), str(devices_file))
    claimed = {_plain(name) for device in given.values() for name in device.reported_names}
    packaged = {identifier: _without_names(device, claimed) for identifier, device in known.items()}
    return DeviceTable(devices={**packaged, **given})


@cache
def _package_devices() -> dict[str, Device]:
    return read_devices(resources.files(__package__).joinpath("devices.toml").read_bytes(), "devices.toml")


def _without_names(device: Device, claimed: set[str]) -> Device:
    """The device without the names that the user's file gives to another."""
    left = tuple(name for name in device.reported_names if _plain(name) not in claimed)
    return device if left == device.reported_names else replace(device, reported_names=left)


def _ambiguous(name: str, candidates: Iterable[str], reason: str) -> UsageError:
    return UsageError(
        f"{name!r} may mean more than one device.",
        why=reason,
        fix=f"give the id if it is the right one ({', '.join(candidates)}), or describe yours in a file for --devices",
    )


@cache
def _tell_once(name: str, identifier: str) -> None:
    log.info("%s is taken as %s, the only known device of that name", name, identifier)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _begins(word: str, parts: Iterable[str]) -> bool:
    """Whether one of the parts begins with the word; a digit is not cut off from the digits behind it."""
    return any(part.startswith(word) and not part[len(word) : len(word) + 1].isdigit() for part in parts)


def _words(name: str) -> list[str]:
    return "".join(char if char.isalnum() else " " for char in name.casefold()).split()


def _as_id(name: str) -> str:
    return "-".join(_words(name)) or "my-device"
