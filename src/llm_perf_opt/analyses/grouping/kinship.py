"""Which modules may stand in one family at all: those of one class in one container.

A container gives its members no role of their own: `ModuleList`, `ModuleDict`, or a module whose children are all of
one class and have children themselves. An attribute such as `q_proj` is a role, so a module in one is its own kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.callgraph.graph import CallGraph

UNKNOWN_CLASS = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinship:
    """Per path row: its class, its container, and the kin it belongs to."""

    class_name: Sequence[str]
    stage: Sequence[str | None]  # that claims this very path
    container: Sequence[str]
    kin: Sequence[int]  # equal for members of one kin
    is_member: Sequence[bool]  # of a container; otherwise it has a role, and is its own kin
    is_mixed: Sequence[bool]  # whether called members of several classes share its container


def kinship(graph: CallGraph, paths: Sequence[str]) -> Kinship:
    """The kin of every called module. Modules that different stages claim are not kin."""
    classes = [graph.module_types.get(path, UNKNOWN_CLASS) for path in paths]
    containers = [path.rpartition(".")[0] for path in paths]
    claims = {path: name for name, claimed in graph.stages for path in claimed}
    stages = [claims.get(path) for path in paths]
    holds_members: dict[str, bool] = {}
    kins: dict[object, int] = {}
    kin, is_member = [], []
    for path, class_name, container, stage in zip(paths, classes, containers, stages, strict=True):
        if container not in holds_members:
            holds_members[container] = _holds_members(graph, container)
        member = bool(path) and (holds_members[container] or path.rpartition(".")[2].isdecimal())
        key = (container, class_name, stage) if member else path
        kin.append(kins.setdefault(key, len(kins)))
        is_member.append(member)
    classes_in: dict[str, set[str]] = {container: set() for container in containers}
    for class_name, container, member in zip(classes, containers, is_member, strict=True):
        if member:
            classes_in[container].add(class_name)
    return Kinship(
        class_name=classes,
        stage=stages,
        container=containers,
        kin=kin,
        is_member=is_member,
        is_mixed=[len(classes_in[container]) > 1 for container in containers],
    )


def _holds_members(graph: CallGraph, container: str) -> bool:
    if graph.module_types.get(container) == "ModuleDict":
        return True
    children = graph.module_children.get(container, ())
    classes = {graph.module_types.get(child) for child in children}
    return len(children) > 1 and len(classes) == 1 and all(graph.module_children.get(child) for child in children)
