"""What a script asks the static analyzer for, and how that becomes an adapter and a workload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Any, Protocol, cast, runtime_checkable

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import MODELS, make_workload
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload

_VIEW_FIELDS = ("base_size", "image_size", "crop_mode", "patch_size", "downsample_ratio")


@dataclass(frozen=True, slots=True)
class AnalysisConfig:
    """One page and one prompt, in the words of the released inference; a model without images takes neither size.

    The page is `image` (a file, `"1240x1754"`, or an opened image, of which only the size matters), or a synthetic one
    of `image_width` x `image_height` pixels. It is shown whole at `base_size` pixels a side and, with `crop_mode`, a
    page larger than `image_size` also as tiles of that size; without, `image_size` means nothing. `seq_len` counts the
    text tokens of the prompt. `patch_size` and `downsample_ratio` are fixed by the weights and only checked.
    """

    image_height: int | None = None
    image_width: int | None = None
    base_size: int = 1024
    image_size: int = 640
    seq_len: int = 512
    crop_mode: bool = True
    patch_size: int = 16
    downsample_ratio: int = 4
    use_analytic_fallback: bool = (
        True  # whether a closed form may be the figure of a stage that nothing else could count
    )
    image: Any = None
    decode_steps: int = 1
    batch: int = 1
    dtype: str | None = None  # of this and the next, None is what the session runs, or else the model's default
    attention: str | None = None

    @property
    def page(self) -> str | None:
        """The page as a workload names it; None where none was given."""
        written = self._written_size()
        if self.image is None:
            return written
        if isinstance(self.image, str | PathLike):
            return fspath(self.image)
        width, height = self.image.size
        if written not in (None, f"{width}x{height}"):
            raise UsageError(
                f"The image has {width}x{height} pixels, not {written}.",
                why="image_width and image_height say otherwise",
                fix="leave them out when an image is given",
            )
        return f"{width}x{height}"

    def _written_size(self) -> str | None:
        if self.image_width is None and self.image_height is None:
            return None
        if self.image_width is None or self.image_height is None:
            raise UsageError(
                "Half a page size.", why="only one of image_width and image_height is given", fix="give both"
            )
        return f"{self.image_width}x{self.image_height}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisInputs:
    """What a configuration means for one adapter. `targets` are its phases, with every default filled in.

    It unpacks into what the first phase calls the model with: `input_ids, model_kwargs = prepare_inputs(config)`.
    """

    config: AnalysisConfig
    adapter: ModelAdapter
    workload: Workload
    targets: tuple[Target, ...]
    device: str = "cpu"  # where the tensors are made

    def __iter__(self) -> Iterator[Any]:
        """The token ids, then the other arguments by name: real tensors, made without weights."""
        from llm_perf_opt.harness.first_call import first_call

        args, kwargs = first_call(self.adapter.targets(self.workload)[0], self.device)
        given = dict(kwargs)
        yield args[0] if args else given.pop("input_ids", None)
        yield given


@runtime_checkable
class SizedAdapter(ModelAdapter, Protocol):
    """An adapter whose image modes can be asked for by their sizes."""

    def with_view_sizes(
        self, *, base_size: int, crop_size: int | None, patch_size: int, downsample_ratio: int
    ) -> tuple[ModelAdapter, str]:
        """An adapter that has such a mode, itself if it does already, and the name of the mode."""
        ...


@runtime_checkable
class KnowsHowItRuns(Protocol):
    """A session that says in which type, and with which attention code, it runs its model."""

    dtype: str
    attention: str | None


@runtime_checkable
class KnowsItsDevice(Protocol):
    """A session that says on which device it runs its model."""

    device: str


def prepared(config: AnalysisConfig, adapter: ModelAdapter, mode: str | None, session: object) -> AnalysisInputs:
    """The workload of `config` in that image mode, checked by the adapter; the session may tell dtype and attention."""
    sizes = {"image": config.page, "mode": mode}
    own = session if isinstance(session, KnowsHowItRuns) else None
    workload = make_workload(
        adapter,
        **{name: size for name, size in sizes.items() if size is not None},
        prompt_tokens=config.seq_len,
        decode_steps=config.decode_steps,
        batch=config.batch,
        attention=config.attention or (None if own is None else own.attention),
    )
    dtype = config.dtype or (None if own is None else own.dtype)
    workload = workload if dtype is None else replace(workload, dtype=dtype)
    return AnalysisInputs(
        config=config,
        adapter=adapter,
        workload=workload,
        targets=adapter.targets(workload),
        device=session.device if isinstance(session, KnowsItsDevice) else "cpu",
    )


def adapter_with_sizes(config: AnalysisConfig, adapter: ModelAdapter) -> tuple[ModelAdapter, str | None]:
    """An adapter with an image mode of the sizes in `config`, and its name.

    An adapter that knows no such sizes is taken as it is, unless one of them was set.
    """
    if isinstance(adapter, SizedAdapter):
        return _sized(config, adapter)
    defaults = {field.name: field.default for field in fields(AnalysisConfig)}
    for name in _VIEW_FIELDS:
        if getattr(config, name) != defaults[name]:
            raise UsageError(
                f"{adapter.title} has no use for {name}.",
                why="its inputs are not made of views of a page",
                fix=f"leave {name} out",
            )
    return adapter, None


def released_mode(config: AnalysisConfig, adapter: ModelAdapter, model: str) -> tuple[ModelAdapter, str | None]:
    """The mode of these sizes that the registered `model` has under a name, for an adapter that only takes names."""
    if isinstance(adapter, SizedAdapter):
        return _sized(config, adapter)
    known = cast("SizedAdapter", MODELS.get(model)())
    sized, mode = _sized(config, known)
    if sized is not known:
        raise UsageError(
            f"{adapter.title} has no image mode of these sizes.",
            why="the inputs of the folder's own code are made in its named modes only",
            fix="use the sizes of a named mode, or a session without trust_remote_code",
        )
    return adapter, mode


def _sized(config: AnalysisConfig, adapter: SizedAdapter) -> tuple[ModelAdapter, str]:
    return adapter.with_view_sizes(
        base_size=config.base_size,
        crop_size=config.image_size if config.crop_mode else None,
        patch_size=config.patch_size,
        downsample_ratio=config.downsample_ratio,
    )
