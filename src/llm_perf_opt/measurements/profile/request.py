"""Everything `profile` can be asked for, with every default, and which pages a run goes over."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TypeVar

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import Option
from llm_perf_opt.core.plugins import workload_options
from llm_perf_opt.core.reading import FileKind, as_record, naming_file, read_bytes, read_json

Record = TypeVar("Record")
OptionValue = str | int | float | bool

NOT_MEASURED = {"is_measured": False}
"""Metadata of a field that the timed passes do not depend on: a run that differs only in these keeps its pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model: a registered name or a Hugging Face folder. `folder` is a released folder of a registered one."""

    name: str = "deepseek-ocr"
    folder: str | None = None
    weights: str = "random"  # "random" | "stored", those in the folder
    dtype: str = "bfloat16"
    attention: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChoice:
    r"""What profiling adds to a workload: which pages, the text of the prompt, and how long to generate.

    `image` is a file, a folder of them, a `.txt` list with one file or size per line, or a size of a synthetic page.
    Of many pages `sample` takes this many, drawn with `seed`. `prompt` is text, with `\n` for a line break, and needs a
    tokenizer; without it `prompt_tokens` placeholders are used.
    """

    image: str | None = None  # None: the model's own default
    sample: int | None = None
    seed: int = 0
    prompt: str | None = None
    max_new_tokens: int = 8
    stop_at_eos: bool = False  # a fixed number of tokens is a fixed amount of work

    def options(self) -> dict[str, OptionValue]:
        """The declared fields of a workload that are set, as they were written."""
        given = {name: getattr(self, name) for name in WORKLOAD_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}


ALL_OPTIONS = {name: declared for name, (declared, _) in workload_options().items()}
# `image` and `max_new_tokens` are above, and `model.dtype` and `model.attention`; a timed run decodes token by token
_TOLD_ELSEWHERE = ("image", "decode_steps", "new_tokens", "dtype", "attention")
WORKLOAD_OPTIONS = {name: declared for name, declared in ALL_OPTIONS.items() if name not in _TOLD_ELSEWHERE}
"""The fields of any model's workload that `profile` takes as `workload.NAME`."""


def _with_options(name: str, base: type[Record], declared: Mapping[str, Option]) -> type[Record]:
    """A record of `base` and of every declared option, as a configuration file writes it; None: not set."""
    return make_dataclass(
        name,
        [(option.name, option.text_kind | None, None) for option in declared.values()],
        bases=(base,),
        namespace={"__module__": __name__, "__doc__": base.__doc__},
        frozen=True,
        slots=True,
        kw_only=True,
    )


WorkloadChoice = _with_options("WorkloadChoice", PageChoice, WORKLOAD_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Where it runs, and which peaks it is compared with: `name` in the table of devices, or in the file `devices`.

    Without a name the device is looked up by what it reports; a processor that is in no table has no peaks.
    """

    torch: str = "cpu"
    name: str | None = field(default=None, metadata=NOT_MEASURED)
    devices: str | None = field(default=None, metadata=NOT_MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """How often, and by which clock: `auto`, `host`, `synchronise` or `events`."""

    folder: str = "profile"
    warmup: int = 1
    repeats: int = 3
    clock: str = "auto"
    threads: int | None = None  # None: as many as torch takes
    check_memory: bool = field(default=True, metadata=NOT_MEASURED)  # refuse a run that the machine cannot hold


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSwitch:
    """The static report, made before the times. Sizes that are not given are taken from the first page of the run.

    `sources` are the same as in `llm-perf-opt cost`, with a `+` between them: a comma would ask for several runs.
    """

    enabled: bool = True
    sources: str = "counted+closed-form"  # sources that run nothing

    def options(self) -> dict[str, OptionValue]:
        """The fields of the workload that are given, as they were written."""
        given = {name: getattr(self, name) for name in ALL_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}

    def source_names(self) -> tuple[str, ...]:
        """The sources to ask, in order."""
        return tuple(name.strip() for name in self.sources.split("+") if name.strip())


StaticChoice = _with_options("StaticChoice", StaticSwitch, ALL_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerChoice:
    """A pass under torch's profiler, apart from the timed ones; and Nsight around a run of its own.

    `with_stack`, `with_modules` and `profile_memory` are torch's own options: the source line, the module and the
    allocated bytes of each operator.
    """

    enabled: bool = True
    modules: bool = False  # a range for every module, next to the ranges of the stages
    with_stack: bool = field(default=False, metadata=NOT_MEASURED)
    with_modules: bool = field(default=False, metadata=NOT_MEASURED)
    profile_memory: bool = field(default=False, metadata=NOT_MEASURED)
    nsight: str = "none"  # "none" | "nsys" | "ncu" | "installed": each of them that is
    nsight_stage: str = "decode"  # the stage in which Nsight Compute looks at kernels
    join: bool = field(default=False, metadata=NOT_MEASURED)  # the profile laid on the trace, next to a prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """One run."""

    model: ModelChoice = field(default_factory=ModelChoice)
    workload: PageChoice = field(default_factory=WorkloadChoice)
    device: DeviceChoice = field(default_factory=DeviceChoice)
    run: RunChoice = field(default_factory=RunChoice)
    static_analysis: StaticSwitch = field(default_factory=StaticChoice, metadata=NOT_MEASURED)
    profiler: ProfilerChoice = field(default_factory=ProfilerChoice)

    def __post_init__(self) -> None:
        _require_at_least("run.repeats", self.run.repeats, 1)
        _require_at_least("run.warmup", self.run.warmup, 0)
        _require_at_least("workload.max_new_tokens", self.workload.max_new_tokens, 1)
        _require_at_least("workload.sample", self.workload.sample, 1)
        _require_at_least("run.threads", self.run.threads, 1)
        _require_one_of("model.weights", self.model.weights, ("random", "stored"))
        _require_one_of("profiler.nsight", self.profiler.nsight, ("none", "nsys", "ncu", "installed"))
        _require_profiler(self.profiler)
        for name, value in (*self.workload.options().items(), *self.static_analysis.options().items()):
            ALL_OPTIONS[name].value_of(value)

    def pages(self) -> tuple[str | None, ...]:
        """The images of the run, in order."""
        return list_pages(self.workload.image, sample=self.workload.sample, seed=self.workload.seed)


_REQUEST = FileKind(name="request of a run", fix="choose another run.folder", max_bytes=2**20, is_sealed=True)


def read_request(file: Path) -> ProfileRequest:
    """Back from a file of its `asdict`."""
    groups = read_json(file, dict[str, dict[str, str | int | float | bool | None]], _REQUEST)
    default = ProfileRequest()
    kinds = {group.name: type(getattr(default, group.name)) for group in fields(default)}
    with naming_file(file):
        if groups.keys() != kinds.keys():
            raise _REQUEST.malformed("the top level", f"the groups {', '.join(sorted(kinds))}", groups)
        return ProfileRequest(**{name: as_record(groups[name], kind, _REQUEST) for name, kind in kinds.items()})


def _require_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"{name} cannot be {value}.", why=f"it must be at least {least}", fix="give a larger number")


def _require_profiler(profiler: ProfilerChoice) -> None:
    switches = {name: getattr(profiler, name) for name in ("with_stack", "with_modules", "profile_memory", "join")}
    if not profiler.enabled and any(switches.values()):
        switched_on = ", ".join(f"profiler.{name}" for name, is_on in switches.items() if is_on)
        raise UsageError(
            f"{switched_on} cannot be recorded.",
            why="they are options of torch's profiler, and its pass is off",
            fix="leave out profiler=off (in Python operators=False)",
        )


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} cannot be {value!r}.", why=f"known: {', '.join(known)}", fix="pick one of these")


IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
LIST_SUFFIX = ".txt"
_PAGE_LIST = FileKind(
    name="list of pages", fix="write one image file or size per line", max_bytes=2**24, error=UsageError
)
_LONGEST_NAME = 4096


def list_pages(image: str | None, *, sample: int | None = None, seed: int = 0) -> tuple[str | None, ...]:
    """Files, or sizes of synthetic pages, in the order of the folder's names or of the list; a sample keeps it.

    Without an image there is one page, with what the model shows by default.
    """
    if image is None:
        return (None,)
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
    """One page per line; a file is looked for next to the list, and `#` begins a comment line."""
    try:
        lines = [line.strip() for line in read_bytes(file, _PAGE_LIST).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no list of pages.", why=f"it is not UTF-8: {error}", fix=_PAGE_LIST.fix) from error
    if unusable := next((line for line in lines if not line.isprintable() or len(line) > _LONGEST_NAME), None):
        raise UsageError(f"{file} is no list of pages.", why=f"a line is {unusable[:80]!r}", fix=_PAGE_LIST.fix)
    return [line if _is_size(line) else str(file.parent / line) for line in lines if line and not line.startswith("#")]


def _is_size(text: str) -> bool:
    return re.fullmatch(r"\d+x\d+", text) is not None
