"""Devices as TOML: read with every mistake named, and written the same way.

The file speaks in the units of data sheets (TFLOP/s, GB/s, MiB), so that a row can be held against its source at a
glance; the record holds base units. A file has one table per device, `[devices.<id>]`; other top-level tables are left
to whoever put them there.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.device import PEAK_NAMES, Device

TERA, GIGA, MEBI, MICRO_IN_NANO = 10**12, 10**9, 2**20, 1000

_TEXTS = ("name", "vendor", "arch")  # required, like the peaks, the bandwidth and the memory
_SCALED = {  # key in the file -> field of the record, how many base units one is, whether it must be there
    "bandwidth_gb_per_s": ("bandwidth_bytes_per_s", GIGA, True),
    "memory_gb": ("nominal_memory_bytes", GIGA, True),
    "memory_reported_mib": ("memory_bytes", MEBI, False),
    "l2_mib": ("l2_bytes", MEBI, False),
    "last_cache_mib": ("last_cache_bytes", MEBI, False),
    "launch_overhead_us": ("launch_overhead_ns", MICRO_IN_NANO, False),
    "launch_overhead_fastest_us": ("launch_overhead_fastest_ns", MICRO_IN_NANO, False),
    "launch_overhead_slowest_us": ("launch_overhead_slowest_ns", MICRO_IN_NANO, False),
    "threads": ("threads", 1, False),
}
_RATES = {"peak_tflops_dense": "peak_flops_per_s", "achieved_tflops": "achieved_flops_per_s"}
_LISTS = ("reported_names", "sources", "cross_checks", "disagreements", "unverified")
_FACTS: dict[str, type[str] | type[int] | type[float]] = {
    "form_factor": str,
    "release_year": int,
    "memory_type": str,
    "compute_units": int,
    "boost_mhz": int,
    "compute_capability": str,
    "nvlink_gb_per_s_both_ways": float,
    "pcie": str,
    "pcie_gb_per_s": float,
    "interconnect": str,
    "tdp_w": int,
}
_SOURCES = ("achieved_source", "memory_reported_source", "notes")  # one text each
_KNOWN = (*_TEXTS, *_RATES, *_SCALED, *_LISTS, *_FACTS, *_SOURCES, "is_measured")
_REPORTED_OF_NOMINAL = (0.75, 1.25)  # a reported figure outside of this was written in another unit


def read_devices(text: str, origin: str) -> dict[str, Device]:
    """Every device of a TOML text, by id; `origin` names the file in errors."""
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{origin} is not TOML.", why=str(error), fix=_SEE_TEMPLATE) from error
    tables = document.get("devices")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageError(
            f"{origin} describes no devices.", why="it has no tables named [devices.<id>]", fix=_SEE_TEMPLATE
        )
    return {identifier: _device(identifier, table, origin) for identifier, table in tables.items()}


_SEE_TEMPLATE = "start from what `llm-perf-opt devices template` prints"


def _device(identifier: str, table: Mapping[str, Any], origin: str) -> Device:
    def complain(what: str, why: str) -> UsageError:
        return UsageError(f"{origin}, device {identifier!r}: {what}.", why=why, fix=_SEE_TEMPLATE)

    for key in table:
        if key not in _KNOWN:
            close = difflib.get_close_matches(key, _KNOWN, n=1)
            raise complain(f"there is no figure {key!r}", f"did you mean {close[0]!r}?" if close else _known_keys())
    fields: dict[str, Any] = {key: _text(table, key, complain) for key in _TEXTS}
    for key, (name, scale, is_required) in _SCALED.items():
        if key in table or is_required:
            fields[name] = _scaled(table, key, scale, complain)
    for key, name in _RATES.items():
        if key in table or key == "peak_tflops_dense":
            fields[name] = _rates(table, key, complain)
    for key in _LISTS:
        fields[key] = _texts(table, key, complain)
    fields["facts"] = dict(_facts(table, complain))
    fields |= {key: table[key] for key in (*_SOURCES, "is_measured") if key in table}
    _settle_memory(fields, complain)
    if not fields["sources"]:
        raise complain("it names no sources", "a figure that cannot be looked up cannot be trusted")
    device = Device(id=identifier, **fields)
    _check_overheads(device, complain)
    return device


def _known_keys() -> str:
    return f"known are: {', '.join(_KNOWN)}"


_Complain = Callable[[str, str], UsageError]


def _text(table: Mapping[str, Any], key: str, complain: _Complain) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise complain(f"{key!r} is missing or not a text", f"got {value!r}")
    return value


def _texts(table: Mapping[str, Any], key: str, complain: _Complain) -> tuple[str, ...]:
    values = table.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise complain(f"{key!r} must be a list of texts", f"got {values!r}")
    return tuple(values)


def _scaled(table: Mapping[str, Any], key: str, scale: int, complain: _Complain) -> int:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or value <= 0:
        raise complain(f"{key!r} must be a number above zero", f"got {value!r}; leave out what is not known")
    return int(value * scale)


def _rates(table: Mapping[str, Any], key: str, complain: _Complain) -> dict[str, int]:
    rates = table.get(key)
    if not isinstance(rates, dict) or not rates:
        raise complain(f"{key!r} must be a table of rates", f"got {rates!r}; rates go by {', '.join(PEAK_NAMES)}")
    for name in rates:
        if name not in PEAK_NAMES:
            raise complain(f"there is no rate {name!r} in {key!r}", f"rates go by {', '.join(PEAK_NAMES)}")
    return {name: _scaled(rates, name, TERA, complain) for name in rates}


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


def _facts(table: Mapping[str, Any], complain: _Complain) -> Iterator[tuple[str, str | int | float]]:
    for key, kind in _FACTS.items():
        if key not in table:
            continue
        value: str | int | float = float(table[key]) if isinstance(table[key], Decimal) else table[key]
        if not isinstance(value, (int, float) if kind is float else kind):
            raise complain(f"{key!r} must be a {kind.__name__}", f"got {value!r}")
        yield key, value


def device_text(device: Device) -> str:
    """The device as a table of such a file; reading it back gives an equal device."""
    lines = [f"[devices.{_quoted_key(device.id)}]"]
    lines += [f"{key} = {_quoted(getattr(device, key))}" for key in _TEXTS]
    lines += [
        f"{key} = {{ {', '.join(f'{name} = {_number(rate, TERA)}' for name, rate in rates.items())} }}"
        for key, rates in ((key, getattr(device, name)) for key, name in _RATES.items())
        if rates
    ]
    for key, (name, scale, _) in _SCALED.items():
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
