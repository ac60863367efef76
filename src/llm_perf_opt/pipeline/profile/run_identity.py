"""Which run a stored `config.yaml` belongs to: whether it is one of ours, and what of it decided the measurements.

The text is what `config` wrote: groups begin at the margin, their keys two spaces in, and a value that goes on over
several lines further in.
"""

from __future__ import annotations

import re
from dataclasses import fields

from llm_perf_opt.pipeline.profile.profile_request import ProfileRequest

_GROUPS = frozenset(group.name for group in fields(ProfileRequest))
_ONLY_JOINED = "static_analysis"  # made afresh from the pages, whatever it says
_ONLY_HELD_AGAINST = re.compile(r"^  (?:name|devices):.*\n(?:    .*\n)*", re.MULTILINE)  # the peaks, not the device


def is_run_config(text: str) -> bool:
    """Whether it has the groups of a profile run, all of them and no other."""
    return {line.partition(":")[0] for line in text.splitlines() if line[:1].strip()} == _GROUPS


def measuring_part(text: str) -> str:
    """What the timed passes depend on: two texts that agree in it have the same pages."""
    groups = re.split(r"^(?=\w)", text, flags=re.MULTILINE)
    return "".join(
        _ONLY_HELD_AGAINST.sub("", group) if group.startswith("device:") else group
        for group in groups
        if not group.startswith(f"{_ONLY_JOINED}:")
    )
