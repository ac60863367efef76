"""Everything `profile` can be asked for, with every default, and which pages a run goes over."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.measurement import InferenceRequest, SessionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model, and with which weights. Without a `folder` it is the blueprint, which needs no files."""

    name: str = "deepseek-ocr"
    folder: str | None = None
    weights: str = "random"  # "random" | "stored", those in the folder
    dtype: str = "bfloat16"
    attention: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    r"""Which pages, and what is asked of each.

    `image` is a file, a folder of them, a `.txt` list with one file or size per line, or a size of a synthetic page.
    Of many pages `sample` takes so many, drawn with `seed`. `prompt` is text, with `\n` for a line break, and needs a
    tokenizer; without it `prompt_tokens` placeholders stand in.
    """

    image: str = "1240x1754"
    sample: int | None = None
    seed: int = 0
    mode: str | None = None
    crops: str | None = None  # "2x3", columns x rows
    prompt: str | None = None
    prompt_tokens: int = 20
    max_new_tokens: int = 8
    stop_at_eos: bool = False  # a fixed number of tokens is a fixed amount of work

    def request(self, image: str) -> InferenceRequest:
        """What is asked of one page."""
        return InferenceRequest(
            image=image,
            prompt=self.prompt_tokens if self.prompt is None else self.prompt.replace("\\n", "\n"),
            max_new_tokens=self.max_new_tokens,
            mode=self.mode,
            crops=crop_grid(self.crops),
            stop_at_eos=self.stop_at_eos,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Where it runs, and which peaks it is held against: `name` in the table of devices, or in the file `devices`.

    Without a name the device is looked up by what it reports; a processor that is in no table has no peaks.
    """

    torch: str = "cpu"
    name: str | None = None
    devices: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """How often, and by which clock: `auto`, `host`, `synchronise` or `events`."""

    folder: str = "profile"
    warmup: int = 1
    repeats: int = 3
    clock: str = "auto"
    threads: int | None = None  # None: as many as torch takes


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticChoice:
    """The static report beside the times. Sizes that are not given are those of the first page of the run."""

    enabled: bool = True
    image: str | None = None
    mode: str | None = None
    crops: str | None = None
    prompt_tokens: int | None = None
    decode_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerChoice:
    """A pass under torch's profiler, apart from the timed ones; and Nsight around a run of its own."""

    enabled: bool = True
    modules: bool = False  # a range for every module, besides those of the stages
    nsight: str = "none"  # "none" | "nsys" | "ncu"
    nsight_stage: str = "decode"  # the stage whose kernels Nsight Compute looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """One run."""

    model: ModelChoice = field(default_factory=ModelChoice)
    workload: WorkloadChoice = field(default_factory=WorkloadChoice)
    device: DeviceChoice = field(default_factory=DeviceChoice)
    run: RunChoice = field(default_factory=RunChoice)
    static_analysis: StaticChoice = field(default_factory=StaticChoice)
    profiler: ProfilerChoice = field(default_factory=ProfilerChoice)

    def __post_init__(self) -> None:
        _require_at_least("run.repeats", self.run.repeats, 1)
        _require_at_least("run.warmup", self.run.warmup, 0)
        _require_at_least("workload.max_new_tokens", self.workload.max_new_tokens, 1)
        _require_at_least("workload.prompt_tokens", self.workload.prompt_tokens, 0)
        _require_at_least("workload.sample", self.workload.sample, 1)
        _require_at_least("run.threads", self.run.threads, 1)
        _require_one_of("model.weights", self.model.weights, ("random", "stored"))
        _require_one_of("profiler.nsight", self.profiler.nsight, ("none", "nsys", "ncu"))
        crop_grid(self.workload.crops)
        crop_grid(self.static_analysis.crops)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ProfileRequest:
        """Back from `asdict`."""
        return cls(
            model=ModelChoice(**stored["model"]),
            workload=WorkloadChoice(**stored["workload"]),
            device=DeviceChoice(**stored["device"]),
            run=RunChoice(**stored["run"]),
            static_analysis=StaticChoice(**stored["static_analysis"]),
            profiler=ProfilerChoice(**stored["profiler"]),
        )

    def session(self) -> SessionRequest:
        """The model as it is to be opened."""
        return SessionRequest(
            folder=None if self.model.folder is None else Path(self.model.folder),
            weights=self.model.weights,
            device=self.device.torch,
            dtype=self.model.dtype,
            attention=self.model.attention,
            trust_remote_code=self.model.trust_remote_code,
        )


def crop_grid(text: str | None) -> tuple[int, int] | None:
    """(columns, rows) of `"2x3"`."""
    if text is None:
        return None
    if not (match := re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", text)):
        raise UsageError(f"{text!r} is no grid of crops.", why="it is COLUMNSxROWS", fix="write it like 2x3")
    return int(match[1]), int(match[2])


def _require_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"{name} cannot be {value}.", why=f"it must be at least {least}", fix="give a larger number")


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} cannot be {value!r}.", why=f"known: {', '.join(known)}", fix="pick one of these")


IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
LIST_SUFFIX = ".txt"


def list_pages(image: str, *, sample: int | None, seed: int) -> tuple[str, ...]:
    """Files, or sizes of synthetic pages, in the order of the folder's names or of the list; a sample keeps it."""
    pages = _all_pages(image)
    if sample is None or sample >= len(pages):
        return pages
    chosen = sorted(random.Random(seed).sample(range(len(pages)), sample))
    return tuple(pages[index] for index in chosen)


def _all_pages(image: str) -> tuple[str, ...]:
    path = Path(image)
    if _is_size(image):
        return (image,)
    if path.is_dir():
        pages = tuple(str(file) for file in sorted(path.iterdir()) if file.suffix.lower() in IMAGE_SUFFIXES)
        why = f"no file there ends in one of {', '.join(sorted(IMAGE_SUFFIXES))}"
    elif path.suffix == LIST_SUFFIX and path.is_file():
        pages = tuple(_listed(path))
        why = "every line is empty or a comment"
    elif path.is_file():
        return (image,)
    else:
        raise UsageError(
            f"There is no page {image!r}.",
            why="it is no file, no folder, and no size",
            fix="give an image file, a folder of them, a .txt list, or a size such as 1240x1754",
        )
    if not pages:
        raise UsageError(f"There are no pages in {image}.", why=why, fix="point workload.image at some")
    return pages


def _listed(file: Path) -> list[str]:
    """One page per line; a file is looked for beside the list, and `#` begins a comment line."""
    lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    return [line if _is_size(line) else str(file.parent / line) for line in lines if line and not line.startswith("#")]


def _is_size(text: str) -> bool:
    return re.fullmatch(r"\d+x\d+", text) is not None
