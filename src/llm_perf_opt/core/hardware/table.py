"""Which device is meant: by id, by the name that a driver reports, or by a short form that only one id has."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.device import DEVICE_FILE, Device, read_devices
from llm_perf_opt.core.reading import read_bytes

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
        found = [device for device in self.devices.values() if wanted in map(_plain, device.reported_names)]
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(name, (device.id for device in found), "several devices report this name")
        for reported, (candidates, reason) in AMBIGUOUS_NAMES.items():
            if wanted == _plain(reported):
                raise _ambiguous(name, candidates, reason)
        return self._by_short_form(name)

    def _by_short_form(self, name: str) -> Device:
        words, ids = _words(name), {device.id: _words(device.id) for device in self.devices.values()}
        whole = [one for one, parts in ids.items() if words and set(words) <= set(parts)]
        begun = [one for one, parts in ids.items() if words and all(_begins(word, parts) for word in words)]
        found = whole or begun
        if len(found) > 1:
            raise UsageError(
                f"{name!r} may mean more than one device.",
                why=f"it is a short form of: {', '.join(found)}",
                fix=f"give one of these ids, such as {found[0]}",
            )
        if not found:
            raise self._unknown(name)
        for reported, (candidates, reason) in AMBIGUOUS_NAMES.items():
            if found[0] in candidates and set(words) <= set(_words(reported)):
                raise _ambiguous(name, candidates, reason)
        _tell_once(name, found[0])
        return self.devices[found[0]]

    def _unknown(self, name: str) -> UsageError:
        near = self._nearest(name)
        return UsageError(
            f"No device is known as {name!r}.",
            why="a device is found by its id, by words of an id, or by the name that its driver reports"
            + (f"; near are: {', '.join(near)}" if near else ""),
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


def load_devices(devices_file: Path | None = None) -> DeviceTable:
    """The package's devices and those of the user's file, which replaces the ones whose id it repeats."""
    known = _package_devices()
    if devices_file is None:
        return DeviceTable(devices=known)
    given = read_devices(read_bytes(devices_file, DEVICE_FILE), str(devices_file))
    claimed = {_plain(name) for device in given.values() for name in device.reported_names}
    kept = {identifier: _without_names(device, claimed) for identifier, device in known.items()}
    return DeviceTable(devices={**kept, **given})


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
