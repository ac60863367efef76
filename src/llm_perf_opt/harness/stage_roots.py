"""Where to cut a run: modules that together are the run, each of one stage throughout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from llm_perf_opt.core.protocols import Target
from llm_perf_opt.core.source_figures import Family, family_of
from llm_perf_opt.harness.isolation import OpenStages, build_on_ghosts, run_watched
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.weightless import Engine

_RUN = "<run>"  # the caller of the outermost modules


def stage_roots(target: Target, engine: Engine) -> tuple[str, ...]:
    """Modules that together are the run, in the order of their calls.

    They are the largest that are of one stage throughout; what no stage claims is cut further, into its layers, of
    which most are alike, where that leaves no matrix product between the pieces. Ops that run directly in a module
    above them, such as the scattering of image features, are in none of these.
    """
    model = build_on_ghosts(target, engine)

    def forward() -> dict[str, _Called]:
        called: dict[str, _Called] = {_RUN: _Called()}
        open_paths, stages = [_RUN], OpenStages(target)

        def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stages.enter(path)
            if path not in open_paths:  # a module that calls itself has nothing new below it
                called[open_paths[-1]].children[path] = None
            called.setdefault(path, _Called()).stages.add(stages.current)
            open_paths.append(path)

        def on_op(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
            if family_of(str(func)) is not Family.OTHER:
                called[open_paths[-1]].products.add(str(func))

        def after(path: str, output: Any) -> None:
            stages.leave()
            open_paths.pop()

        given = target.start(model)
        with OpWatch(on_op):
            run_watched(target, model, given, before, after)
        return called

    return tuple(dict.fromkeys(_largest(_RUN, engine.run(forward), target.phase)))


@dataclass(frozen=True, slots=True)
class _Called:
    """What a module calls, in order, the stages that its calls belonged to, and the products it runs itself."""

    children: dict[str, None] = field(default_factory=dict)
    stages: set[str] = field(default_factory=set)
    products: set[str] = field(default_factory=set)


def _largest(path: str, called: Mapping[str, _Called], phase: str) -> Iterator[str]:
    for child in called[path].children:
        below = list(_below(child, called))
        stages = set().union(*(called[module].stages for module in below))
        has_layers = stages == {phase} and not _is_layer(child) and any(map(_is_layer, below))
        is_cut = len(stages) > 1 or (has_layers and not called[child].products)
        if is_cut and called[child].children:
            yield from _largest(child, called, phase)
        else:
            yield child


def _is_layer(path: str) -> bool:
    """Whether the module is an entry of a list, as the layers of a stack are."""
    return path.rpartition(".")[2].isdigit()


def _below(path: str, called: Mapping[str, _Called]) -> Iterator[str]:
    """The module and every module that is called inside it."""
    seen, left = set(), [path]
    while left:
        current = left.pop()
        if current not in seen:
            seen.add(current)
            yield current
            left.extend(called[current].children)
