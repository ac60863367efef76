"""Which rank of a plan holds and encodes what, in plain numbers: heads, experts, views.

Every matrix of the decoder is split over the ranks of `tp`. Experts go round: of `ep` shares, expert 0 is in the first,
expert 1 in the second, and so on, so that neighbours which are chosen together load different ranks. The vision
encoders are replicated on every rank; what is split between ranks are the views that they see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan, read_plan_rules
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.plan import Plan, make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShare:
    """The views of one page that one rank encodes: tiles from `first` up to `last`, and perhaps the global view."""

    first: int
    last: int
    has_global: bool

    @property
    def tiles(self) -> int:
        """How many of the page's tiles."""
        return self.last - self.first


Shares = tuple[PageShare, ...]  # of one rank, one per page


def share_views(tiles: Sequence[int], ranks: int, *, global_pixels: int, tile_pixels: int) -> tuple[Shares, ...]:
    """The shares of every rank. `tiles` has one entry per page, 0 where it is not cut.

    Each view goes to the rank with the fewest pixels so far, the large global views first. The tiles of a rank follow
    each other.
    """
    load, holders, counts = [0] * ranks, [], [0] * ranks
    for _ in tiles:
        holders.append(load.index(min(load)))
        load[holders[-1]] += global_pixels
    for _ in range(sum(tiles)):
        rank = load.index(min(load))
        load[rank] += tile_pixels
        counts[rank] += 1
    shares: list[list[PageShare]] = [[] for _ in range(ranks)]
    left = list(counts)
    for holder, count in zip(holders, tiles, strict=True):
        first = 0
        for rank in range(ranks):
            last = first + min(left[rank], count - first)
            left[rank] -= last - first
            shares[rank].append(PageShare(first=first, last=last, has_global=rank == holder))
            first = last
    return tuple(map(tuple, shares))


def shares_of(plan: ParallelPlan, page: Plan) -> tuple[Shares, ...] | None:
    """The views that each rank encodes; None: every rank encodes all of them.

    By default views are split where there is more than one. A plan file decides otherwise.
    """
    views = page.batch * (1 + page.tiles)
    chosen = None if plan.plan is None else _views_in_file(Path(plan.plan))
    if chosen == "replicated" or (chosen is None and views == 1) or plan.tp == 1:
        return None
    return share_views(
        [page.tiles] * page.batch,
        plan.tp,
        global_pixels=page.mode.global_size**2,
        tile_pixels=(page.mode.crop_size or 0) ** 2,
    )


def kinds_of_rank(plan: ParallelPlan, workload: Workload, config: DeepSeekOcrConfig | None = None) -> tuple[int, ...]:
    """One rank of each kind: ranks differ in the views that they encode. Default: the sizes of the released model."""
    if plan.rank is not None:
        return (plan.rank,)
    shares = shares_of(plan, make_plan(config or DeepSeekOcrConfig(), workload))
    return plan.kinds_of_rank() if shares is None else distinct(shares)


def distinct(shares: Sequence[Shares]) -> tuple[int, ...]:
    """The first rank of each kind, in order: those that encode batches of the same sizes."""
    firsts: dict[tuple[object, ...], int] = {}
    for rank, pages in enumerate(shares):
        batches = sorted(page.tiles for page in pages if page.tiles)
        firsts.setdefault((*batches, "and", sum(page.has_global for page in pages)), rank)
    return tuple(firsts.values())


def splits_heads(config: DecoderConfig, plan: ParallelPlan) -> bool:
    """Whether attention is split: a head is not cut, so the ranks must divide their number."""
    return config.num_attention_heads % plan.tp == 0


def notes_of(config: DecoderConfig, plan: ParallelPlan) -> tuple[str, ...]:
    """What a reader must know of the plan."""
    if splits_heads(config, plan):
        return ()
    return (
        f"Attention runs whole on each of {plan.tp} ranks: {config.num_attention_heads} heads cannot be shared evenly. "
        "Serving engines refuse such a plan, or give each rank requests of its own.",
    )


def require_plan(config: DecoderConfig, plan: ParallelPlan) -> None:
    """Refuse a plan that this model cannot follow."""
    if refused := next(_refusals(config, plan), None):
        raise UsageError(f"DeepSeek-OCR cannot be spread as {plan.describe()}.", why=refused[0], fix=refused[1])


def _refusals(config: DecoderConfig, plan: ParallelPlan) -> Iterator[tuple[str, str]]:
    if plan.pp > 1:
        yield "its code has no stages: one forward runs vision and all layers", "leave pp out, use tp"
    if plan.fsdp > 1:
        yield "its plan splits matrices and experts, not stored weights alone", "leave fsdp out, use tp"
    if plan.tp % plan.ep:
        yield "its experts are split between the ranks of tp", f"choose an ep that divides {plan.tp}"
    if config.n_routed_experts % plan.ep:
        yield f"{config.n_routed_experts} experts cannot be shared evenly by {plan.ep}", "choose another ep"
    for what, size, ranks in _split_sizes(config, plan):
        if size % ranks:
            yield f"{what} of {size:,} cannot be split by {ranks}", "choose another tp"


def _split_sizes(config: DecoderConfig, plan: ParallelPlan) -> Iterator[tuple[str, int, int]]:
    """Each size that is divided, and by how many ranks."""
    yield "the vocabulary", config.vocab_size, plan.tp
    yield "the width of the dense MLP", config.intermediate_size, plan.tp
    yield "the width of the shared experts", config.moe_intermediate_size * config.n_shared_experts, plan.tp
    yield "the width of an expert", config.moe_intermediate_size, max(plan.tp // plan.ep, 1)


def _views_in_file(path: Path) -> str | None:
    rules = read_plan_rules(path)
    if rules.tp or rules.ep:
        raise UsageError(
            f"DeepSeek-OCR takes no rules of modules: {path}.",
            why="this package already knows how tp and ep split its matrices",
            fix='leave [tp] and [ep] out; [vision] views = "split" or "replicated" can be chosen',
        )
    return rules.vision.views
