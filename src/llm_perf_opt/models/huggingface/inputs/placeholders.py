"""Where features of another modality enter the text: the placeholder token of each modality and a first guess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_perf_opt.models.huggingface.inputs.leaves import Run
from llm_perf_opt.models.huggingface.inputs.subject import Subject, nested_configs

_FIELDS = {
    "image": (
        "image_token_id",
        "image_token_index",
        "media_token_id",
        "media_placeholder_token_id",
        "img_context_token_id",
        "image_patch_id",
        "im_patch_id",
    ),
    "audio": ("audio_token_id", "audio_token_index", "audio_placeholder_token_id"),
    "video": ("video_token_id", "video_token_index"),
}
_FRAMES = {
    "image": (
        ("vision_start_token_id", "image_start_token_id", "boi_token_id"),
        ("vision_end_token_id", "image_end_token_id", "eoi_token_id"),
    ),
    "audio": (
        ("audio_start_token_id", "audio_bos_token_id", "boa_token_id"),
        ("audio_end_token_id", "audio_eos_token_id", "eoa_token_id"),
    ),
    "video": (("vision_start_token_id", "video_start_token_id"), ("vision_end_token_id", "video_end_token_id")),
}


def placeholder_token(config: Any, kind: str) -> int | None:
    """The id that stands for one feature of `kind`, wherever the configuration keeps it."""
    return _first(config, _FIELDS[kind])


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    for nested in nested_configs(config):
        for name in names:
            if isinstance(value := getattr(nested, name, None), int) and value >= 0:
                return value
    return None


def framed_run(subject: Subject, kind: str, count: int) -> Run | None:
    """`count` placeholders between the start and end tokens the configuration names; None without a placeholder."""
    token = placeholder_token(subject.config, kind)
    if token is None:
        return None
    before, after = ((_first(subject.config, names)) for names in _FRAMES[kind])
    return Run(
        kind=kind,
        token=token,
        count=count,
        before=() if before is None else (before,),
        after=() if after is None else (after,),
    )


def runs_for(subject: Subject, counts: Mapping[str, int]) -> Iterator[Run]:
    """One run per modality that has a placeholder token."""
    for kind, count in counts.items():
        if count > 0 and (run := framed_run(subject, kind, count)) is not None:
            yield run
