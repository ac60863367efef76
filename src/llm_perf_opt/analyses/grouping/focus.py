"""The part of a picture that `--focus` names: a module, a family by its label, or a container.

Whatever the picture prints may be given: `Block @ model.sam_model.blocks.[0-11]`, the label without the class, and the
end of either as far as it names one family. A label may also take several families together: `blocks.[0-11].attn` is
the attention of windowed and global blocks, which stand in two boxes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator

from llm_perf_opt.analyses.grouping.call_tree import UNKNOWN_CLASS, CallTree
from llm_perf_opt.analyses.grouping.groups import Group, Grouper
from llm_perf_opt.analyses.path_labels import label_of, path_pattern
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.module_selection import PathPattern

_CLASS = re.compile(r"^\S+ @ ")
_ELLIPSIS = re.compile(r"\.\.\.|\u2026")
Wanted = Callable[[list[str]], bool]  # of the paths of all members
_NAMED = 6  # labels that an error lists


def find_groups(graph: CallGraph, tree: CallTree, grouper: Grouper, focus: str) -> list[Group]:
    """A called module alone; otherwise the families with that label, or all that stand in that container."""
    wanted = _CLASS.sub("", focus)
    if wanted in tree.paths:
        return [_instance(graph, tree, grouper, wanted)]
    roots = grouper.roots()
    whole = list(_outermost(roots, lambda names: _is_whole(names, wanted), tree))
    if whole:
        return whole
    ending = wanted.lstrip(".\u2026")
    groups = _by_ending(roots, tree, ending)
    if not groups and _ELLIPSIS.search(wanted):
        shortened = re.compile(".*".join(map(re.escape, _ELLIPSIS.split(wanted))))
        groups = list(_outermost(roots, lambda names: shortened.fullmatch(label_of(names)) is not None, tree))
        _require_one(groups, tree, wanted)
    if groups:
        return groups
    if modules := _require_one_path(tree, ending):
        return [_instance(graph, tree, grouper, modules)]
    raise _unknown(graph, tree, roots, focus)


def _instance(graph: CallGraph, tree: CallTree, grouper: Grouper, path: str) -> Group:
    return grouper.instance(tree.paths.index(path), graph.module_types.get(path, UNKNOWN_CLASS))


def _is_whole(names: list[str], wanted: str) -> bool:
    return label_of(names) == wanted or (bool(wanted) and all(name.startswith(f"{wanted}.") for name in names))


def _by_ending(roots: list[Group], tree: CallTree, ending: str) -> list[Group]:
    """The family whose label ends like this; else those whose members do, if they differ in numbers alone before it."""
    if not ending:
        return []
    printed = list(_outermost(roots, lambda names: f".{label_of(names)}".endswith(f".{ending}"), tree))
    if printed:
        _require_one(printed, tree, ending)
        return printed
    pattern = PathPattern(ending)
    groups = list(_outermost(roots, lambda names: all(map(pattern.matches, names)), tree))
    members = [name for group in groups for name in _members(group, tree)]
    if len({path_pattern(pattern.rest_of(name) or "") for name in members}) > 1:
        _require_one(groups, tree, ending)
    is_all = "*" in ending or (members and f".{label_of(members)}".endswith(f".{ending}"))  # nothing named is missing
    return groups if is_all else []


def _require_one(groups: list[Group], tree: CallTree, wanted: str) -> None:
    labels = dict.fromkeys(label_of(_members(group, tree)) for group in groups)
    if len(labels) > 1:
        raise _ambiguous(labels, wanted)


def _require_one_path(tree: CallTree, ending: str) -> str | None:
    """The one called module whose path ends like this; a label with brackets stands for several."""
    if "[" in ending:
        return None
    pattern = PathPattern(ending)
    found = dict.fromkeys(path for path in tree.paths if pattern.matches(path))
    if len(found) > 1:
        raise _ambiguous(found, ending)
    return next(iter(found), None)


def _ambiguous(labels: Iterable[str], wanted: str) -> UsageError:
    named = list(labels)
    more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
    return UsageError(
        f"{wanted!r} is the end of several labels.",
        why=f"it may be {', '.join(named[:_NAMED])}{more}",
        fix=f"give more of the path: --focus {named[0]!r}",
    )


def _outermost(roots: list[Group], is_wanted: Wanted, tree: CallTree) -> Iterator[Group]:
    """Each group that is wanted and stands in no other such group."""
    seen: set[int] = set()
    waiting = list(reversed(roots))
    while waiting:
        group = waiting.pop()
        if not is_wanted(_members(group, tree)):
            waiting.extend(reversed(group.children))
        elif id(group) not in seen:
            seen.add(id(group))
            yield group


def _members(group: Group, tree: CallTree) -> list[str]:
    return [*(tree.paths[path] for path in group.paths), *group.untouched]


def _unknown(graph: CallGraph, tree: CallTree, roots: list[Group], focus: str) -> UsageError:
    if focus in graph.module_types:
        return UsageError(
            f"{focus!r} did not run in the phase {graph.phase!r}.",
            why="nothing called it, nor anything inside it",
            fix="choose another --phase, or a module that ran",
        )
    labels = [label_of(_members(group, tree)) for root in roots for group in root.walk()]
    wanted = _CLASS.sub("", focus)
    endings = {".".join(label.split(".")[-1 - wanted.count(".") :]): label for label in (*tree.paths, *labels)}
    close = difflib.get_close_matches(wanted, [*labels, *tree.paths], n=3, cutoff=0.5)
    close += [endings[end] for end in difflib.get_close_matches(wanted, endings, n=3, cutoff=0.6)]
    return UsageError(
        f"There is no module or family {focus!r} in this trace.",
        why="--focus takes a module path or the label of a family, as the picture shows it",
        fix=f"did you mean {' or '.join(map(repr, dict.fromkeys(close[:4])))}?"
        if close
        else "see the labels with --format text",
    )
