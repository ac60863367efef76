"""The part of the run that a person points at: a module, a family, or a container."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from llm_perf_opt.analyses.grouping.call_tree import CallTree
from llm_perf_opt.analyses.grouping.groups import Group, Grouper
from llm_perf_opt.analyses.grouping.kinship import UNKNOWN_CLASS
from llm_perf_opt.analyses.path_labels import label_of
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.errors import UsageError


def find_groups(graph: CallGraph, tree: CallTree, grouper: Grouper, focus: str) -> list[Group]:
    """A called module alone; otherwise the families with that label, or all that stand in that container."""
    if focus in tree.paths:
        class_name = graph.module_types.get(focus, UNKNOWN_CLASS)
        return [grouper.instance(tree.paths.index(focus), class_name)]
    labelled = {id(group): group for root in grouper.roots() for group in _outermost(root, tree, focus)}
    if not labelled:
        raise _unknown(graph, tree, grouper, focus)
    return list(labelled.values())


def _outermost(root: Group, tree: CallTree, focus: str) -> Iterator[Group]:
    waiting = [root]
    while waiting:
        group = waiting.pop()
        names = _members(group, tree)
        if label_of(names) == focus or (focus and all(name.startswith(f"{focus}.") for name in names)):
            yield group
        else:
            waiting.extend(reversed(group.children))


def _members(group: Group, tree: CallTree) -> list[str]:
    return [*(tree.paths[path] for path in group.paths), *group.untouched]


def _unknown(graph: CallGraph, tree: CallTree, grouper: Grouper, focus: str) -> UsageError:
    if focus in graph.module_types:
        return UsageError(
            f"{focus!r} did not run in the phase {graph.phase!r}.",
            why="nothing called it, nor anything inside it",
            fix="choose another --phase, or a module that ran",
        )
    labels = [label_of(_members(group, tree)) for root in grouper.roots() for group in root.walk()]
    close = difflib.get_close_matches(focus, [*labels, *tree.paths], n=3, cutoff=0.5)
    return UsageError(
        f"There is no module or family {focus!r} in this trace.",
        why="--focus takes a module path or the label of a family, as the picture shows it",
        fix=f"did you mean {' or '.join(map(repr, close))}?" if close else "see the labels with --format text",
    )
