"""How well a recorded item fits a traced launch, and what it costs to leave one out.

The figures are stated here once; nothing is fitted to a recording.

A cost of 0 is a perfect fit. Leaving a matrix product out of either side costs as much as six small ops: products are
few, their kernels are known by name, and the two runs are of one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from llm_perf_opt.analyses.join.sides import HostEvidence, Item, Launch
from llm_perf_opt.ops.kernel_names import ATTENTION, CONVOLUTION, COPY, FILL, PRODUCT, KernelMeaning


class Evidence(StrEnum):
    """Why a kernel was given to an op or a module, the strongest first."""

    OP_AND_SHAPES = "op and shapes"  # the host's op of that name read tensors of these sizes
    SHAPES = "shapes and kernel name"  # its op has another name: matmul and bmm
    OP_NAME = "op name"  # shapes were not recorded
    KERNEL_NAME = "kernel name in order"
    PLACE = "place between two ops"  # the traced code has no such op; both neighbours are in the module


Fit = tuple[float, Evidence]

_WEIGHTS = {PRODUCT: 6.0, ATTENTION: 6.0, CONVOLUTION: 6.0, "softmax": 3.0, "layer_norm": 3.0, COPY: 1.0, FILL: 0.6}
_HEAVY = frozenset({PRODUCT, ATTENTION, CONVOLUTION, "softmax"})
_OTHER_WEIGHT = 1.5
_UNKNOWN_WEIGHT = 0.5  # a kernel that no rule knows
OTHER_NAME = 0.25  # the same sizes under another op's name
BY_KERNEL_NAME = 0.5  # the host saw an op of another name, and no shapes
AS_HELPER = 0.3  # a kernel before the op's own one
AS_FOLLOWER = 0.35  # a kernel after it: libraries clear and copy before they compute
FUSED = 0.2  # each further op that a fused kernel does
PARTIAL = 12.0  # at most, for what is missing before or after the recorded part of a forward
FIRST_ITEMS = 256  # while it is open where in a forward the recording begins
FIRST_MARGIN = 20.0  # alignments that are worse than the best one by more are given up
MARGIN = 11.5  # the same later on: below `PARTIAL`, so that another beginning is given up by then


def skip_cost(launch: Launch) -> float:
    """What it costs that a traced launch has no kernel."""
    return _WEIGHTS.get(launch.words.word, _OTHER_WEIGHT)


def extra_cost(item: Item) -> float:
    """What it costs that recorded work has no traced op."""
    if not item.meanings:
        return _UNKNOWN_WEIGHT
    words = [word for meaning in item.meanings for word in (meaning.words or {COPY})]
    return max(_WEIGHTS.get(word, _OTHER_WEIGHT) for word in words)


def fit(item: Item, launch: Launch) -> Fit | None:
    """How well the item is the launch's own kernel; None: it is not."""
    if item.seen is not None:
        return _seen_fit(item.seen, item.meanings, launch)
    meaning = item.meanings[0] if item.meanings else None
    if meaning is None or launch.words.words.isdisjoint(meaning.words | meaning.fuses):
        return None
    return 0.0, Evidence.KERNEL_NAME


def _seen_fit(seen: HostEvidence, meanings: Sequence[KernelMeaning], launch: Launch) -> Fit | None:
    has_kernel = any(not launch.words.words.isdisjoint(meaning.words) for meaning in meanings)
    best: Fit | None = None
    for name, sizes in zip(seen.names, seen.sizes, strict=True):
        if sizes is None:
            found = _by_name(name in launch.names, has_kernel)
        elif sizes != launch.sizes:
            continue
        elif name in launch.names:
            return 0.0, Evidence.OP_AND_SHAPES
        else:
            found = (OTHER_NAME, Evidence.SHAPES) if has_kernel else None
        if found is not None and (best is None or found < best):
            best = found
    return best


def _by_name(is_named: bool, has_kernel: bool) -> Fit | None:
    if is_named:
        return 0.0, Evidence.OP_NAME
    return (BY_KERNEL_NAME, Evidence.KERNEL_NAME) if has_kernel else None


def is_heavy(item: Item) -> bool:
    """Whether it does the work of products or attention, which the place of a kernel alone does not explain."""
    return any(not meaning.words.isdisjoint(_HEAVY) for meaning in item.meanings)


def helps(item: Item, launch: Launch) -> bool:
    """Whether the item is a kernel that the launch's op runs beside its own one. The host tells that by itself."""
    if item.seen is not None or not item.meanings:
        return False
    meaning = item.meanings[0]
    return not launch.words.words.isdisjoint(meaning.helps) or not launch.words.helpers.isdisjoint(meaning.words)


def fuses(item: Item, launch: Launch) -> bool:
    """Whether a fused kernel may do the work of the launch too."""
    meaning = item.meanings[0] if item.meanings else None
    return meaning is not None and not launch.words.words.isdisjoint(meaning.fuses)
