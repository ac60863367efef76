"""The calls of a run, split into boxes, every call in exactly one; and which boxes stand open.

A group is a family together with the corresponding families of all corresponding callers: the experts of eleven layers
are one group inside the group of those layers. A module that several callers share is in a group under each of them,
with the calls that came from there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import label_of, path_pattern
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import Box, GraphView, LoopKind
from llm_perf_opt.core.module_selection import PathPattern
from llm_perf_opt.graphs.call_tree import OUTSIDE, UNKNOWN_CLASS, CallTree
from llm_perf_opt.graphs.families import MAX_DEPTH, Families, SiblingFamily

MAX_COSTS = 8  # a chain with more different costs than this is not split by cost


@dataclass(slots=True, kw_only=True)
class Group:
    """Instances that stand in one box, and their calls there."""

    class_name: str
    kind: LoopKind | None
    paths: dict[int, None] = field(default_factory=dict)  # in order; a shared module may come from several callers
    untouched: dict[str, None] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    declared: int = 1  # members of the largest family among those put together here
    children: list[Group] = field(default_factory=list)
    is_split: bool = False

    def walk(self) -> Iterator[Group]:
        """The group and all inside it, outer before inner."""
        waiting = [self]
        while waiting:
            group = waiting.pop()
            yield group
            waiting.extend(reversed(group.children))


class Grouper:
    """Builds the tree of groups, from the outside in."""

    def __init__(self, graph: CallGraph, tree: CallTree, families: Families, own_flops: Sequence[int] | None) -> None:
        self._graph = graph
        self._tree = tree
        self._families = families
        self._steady_flops = None if own_flops is None else _steady_flops(tree, families, own_flops)

    def roots(self) -> list[Group]:
        """The groups of the calls that no module made."""
        outside = Group(class_name="", kind=None, paths={OUTSIDE: None}, rows=[OUTSIDE])
        return self._inside(outside, depth=0, is_steady=True)

    def instance(self, path: int, class_name: str) -> Group:
        """One module alone, with all calls of it that are not inside another of them."""
        rows: list[int] = []
        inside: set[int] = set()
        for row, caller in enumerate(self._tree.parent):
            if caller in inside:
                inside.add(row)
            elif self._tree.path[row] == path:
                rows.append(row)
                inside.add(row)
        group = Group(class_name=class_name, kind=None, paths={path: None}, rows=rows)
        group.children = self._inside(group, depth=1, is_steady=True)
        return group

    def _inside(self, group: Group, depth: int, is_steady: bool) -> list[Group]:
        parts = self._parted(group)
        for child in parts:
            self._fill(child, depth, is_steady)
        return parts

    def _fill(self, group: Group, depth: int, is_steady: bool) -> None:
        parts = self._parts_by_cost(group) if is_steady and group.kind is LoopKind.FOR else []
        if len(parts) > 1:
            group.is_split, group.children = True, parts
            for part in parts:
                part.children = self._inside(part, depth + 2, is_steady)  # the parts are a level of their own
        elif depth < MAX_DEPTH:
            # Below experts FLOPs follow the routing, so that a difference between layers says nothing of the layers.
            group.children = self._inside(group, depth + 1, is_steady and group.kind is not LoopKind.PARFOR)
        else:
            self._swallow(group)

    def _parted(self, group: Group) -> list[Group]:
        """The calls made from a group, by the place of the callee in its caller."""
        slots: dict[object, Group] = {}
        homes: dict[int, dict[int, Group]] = {}
        for caller in group.paths:
            homes[caller] = {}
            for key, family in _keyed(self._families.families_of(caller)):
                child = slots.setdefault(key, Group(class_name=family.class_name, kind=family.kind))
                child.kind = child.kind or family.kind  # what one caller shows holds for those that correspond to it
                self._add(child, family, homes[caller])
        children = self._tree.children
        for row in group.rows:
            if row in children:
                home = homes[self._tree.path[row] if row >= 0 else OUTSIDE]
                for called in children[row]:
                    home[self._tree.path[called]].rows.append(called)
        if group.untouched:
            self._add_below_untouched(group, slots)
        return [child for child in slots.values() if child.rows]

    def _add(self, child: Group, family: SiblingFamily, home: dict[int, Group]) -> None:
        child.paths.update(dict.fromkeys(family.paths))
        child.untouched.update(dict.fromkeys(family.untouched))
        child.declared = max(child.declared, len(family.paths) + len(family.untouched))
        home.update(dict.fromkeys(family.paths, child))

    def _add_below_untouched(self, group: Group, slots: dict[object, Group]) -> None:
        """What an untouched member would have called, as its touched sibling did, where it is declared."""
        model = next(iter(group.paths))
        above = f"{self._tree.paths[model]}."
        declared = self._graph.module_types
        for key, family in _keyed(self._families.families_of(model)):
            names = [*(self._tree.paths[path] for path in family.paths), *family.untouched]
            below = [name.removeprefix(above) for name in names if name.startswith(above)]
            wanted = [f"{member}.{name}" for member in group.untouched for name in below]
            slots[key].untouched.update(dict.fromkeys(name for name in wanted if name in declared))

    def _parts_by_cost(self, group: Group) -> list[Group]:
        """The members of a chain, told apart by the FLOPs of their calls; what routing decides does not count."""
        if self._steady_flops is None:
            return []
        flops = dict.fromkeys(group.paths, 0)
        calls = dict.fromkeys(group.paths, 0)
        for row in group.rows:
            flops[self._tree.path[row]] += self._steady_flops[row]
            calls[self._tree.path[row]] += self._tree.weight[row]
        parts: dict[tuple[int, int], Group] = {}
        homes = {}
        for path in group.paths:
            part = Group(class_name=group.class_name, kind=group.kind)
            homes[path] = parts.setdefault((flops[path], calls[path]), part)
            homes[path].paths[path] = None
        if not 1 < len(parts) <= MAX_COSTS:
            return []
        for row in group.rows:
            homes[self._tree.path[row]].rows.append(row)
        # Members that never ran have no cost of their own: they are counted with the most usual one.
        largest = max(parts.values(), key=lambda part: len(part.paths))
        largest.untouched = group.untouched
        callers = len({self._tree.caller_path(row) for row in group.rows})
        for part in parts.values():
            part.declared = -(-(len(part.paths) + len(part.untouched)) // callers)
        return list(parts.values())

    def _swallow(self, group: Group) -> None:
        """Take in everything below, without telling it apart any more."""
        waiting = list(group.rows)
        while waiting:
            below = self._tree.children.get(waiting.pop(), [])
            group.rows += below
            waiting += below
        group.paths = dict.fromkeys(self._tree.path[row] for row in group.rows)


class UngroupedCalls(Grouper):
    """Nothing folded: each module is a group of its own under each module that called it; recursion is as in any."""

    def _parted(self, group: Group) -> list[Group]:
        """The calls made from a module, by the module that they called, in the order of the first call."""
        by_path: dict[int, Group] = {}
        for row in group.rows:
            for called in self._tree.children.get(row, ()):
                path = self._tree.path[called]
                if path not in by_path:
                    class_name = self._graph.module_types.get(self._tree.paths[path], UNKNOWN_CLASS)
                    by_path[path] = Group(class_name=class_name, kind=None, paths={path: None})
                by_path[path].rows.append(called)
        return list(by_path.values())


def _keyed(families: Sequence[SiblingFamily]) -> Iterator[tuple[object, SiblingFamily]]:
    """Families with what corresponding ones under another caller have in common."""
    seen: dict[object, int] = {}
    for family in families:
        key = (family.slot, family.class_name, family.structure, family.kind is LoopKind.FOR)
        seen[key] = seen.get(key, 0) + 1
        yield (key, seen[key]), family


def _steady_flops(tree: CallTree, families: Families, own_flops: Sequence[int]) -> list[int]:
    """FLOPs of each call with all it made, without parallel siblings: routing decides what they get."""
    routed: dict[int, set[int]] = {}
    inclusive = list(own_flops)  # filled from the last call to the first: a call comes after its caller
    for row in range(len(tree.path) - 1, -1, -1):
        caller = tree.parent[row]
        if caller < 0:
            continue
        above = tree.path[caller]
        if above not in routed:
            side_by_side = (family for family in families.families_of(above) if family.kind is LoopKind.PARFOR)
            routed[above] = {path for family in side_by_side for path in family.paths}
        if tree.path[row] not in routed[above]:
            inclusive[caller] += inclusive[row]
    return inclusive


def open_to_depth(view: GraphView, depth: int) -> GraphView:
    """Exactly `depth` levels below the roots, however many boxes that is."""
    levels: dict[str, int] = {}
    waiting = [(root, 0) for root in view.roots]
    while waiting:
        box, level = waiting.pop()
        levels[box.id] = level
        waiting.extend((child, level + 1) for child in box.children)
    return _with_open(view, {box_id for box_id, level in levels.items() if level < depth})


def open_to_fit(view: GraphView, max_boxes: int, metric: str = "flops") -> GraphView:
    """As many boxes as fit: first those that lead to a family, then what shows a new class, then the rest.

    Among equals the outer comes before the inner, and the costly before the cheap. A box with an inside that does not
    fit stays shut, and smaller ones after it may still open.
    """
    leads_to_family = _boxes_around_families(view)
    opened: set[str] = set()
    classes: set[str] = set()
    levels = {root.id: 0 for root in view.roots}
    waiting = [root for root in view.roots if root.children]
    shown = len(view.roots)
    while waiting:
        box = min(waiting, key=lambda box: _rank(box, levels[box.id], leads_to_family, classes, metric))
        waiting.remove(box)
        if shown + len(box.children) <= max_boxes:
            opened.add(box.id)
            classes.add(box.class_name)
            shown += len(box.children)
            waiting.extend(child for child in box.children if child.children)
            levels.update((child.id, levels[box.id] + 1) for child in box.children)
    return _with_open(view, opened)


def _rank(
    box: Box, level: int, leads_to_family: set[str], classes: set[str], metric: str
) -> tuple[bool, bool, bool, int, int, int]:
    """The smallest opens next. Parts by cost come last: they are the finer level of a loop that already shows."""
    return (
        box.id not in leads_to_family,
        box.is_split,
        box.class_name in classes,
        level,
        -weight_of(box, metric),
        int(box.id[1:]),
    )


def weight_of(box: Box, metric: str) -> int:
    """What the box weighs by the metric; an unknown figure gives way to calls, which are always known."""
    figures = {
        "flops": box.figures.flops,
        "bytes": box.figures.bytes_moved,
        "parameters": box.figures.parameters,
        "activations": box.figures.activation_bytes,
    }
    figure = figures.get(metric)
    return box.calls if figure is None else figure


def _boxes_around_families(view: GraphView) -> set[str]:
    """Boxes that somewhere inside hold a family. Parts told apart by cost are the family around them."""
    around: set[str] = set()
    for root in view.roots:
        for box in reversed(list(root.walk())):  # inner before outer
            inner = () if box.is_split else box.children
            if any(_is_family(child, box) or child.id in around for child in inner):
                around.add(box.id)
    return around


def _is_family(box: Box, caller: Box) -> bool:
    """With a loop over instances; where a trace cannot tell loops, with more instances than the caller."""
    return any(loop.over == "instances" for loop in box.loops) or box.instances > caller.instances


def _with_open(view: GraphView, opened: set[str]) -> GraphView:
    return replace(view, roots=tuple(_set_open(root, opened) for root in view.roots))


def _set_open(box: Box, opened: set[str]) -> Box:
    children = tuple(_set_open(child, opened) for child in box.children)
    return replace(box, children=children, is_open=box.id in opened or not children)


# The part of a picture that `--focus` names: a module, a family by its label, or a container.
#
# Whatever the picture prints may be given: `Block @ model.sam_model.blocks.[0-11]`, the label without the class, and
# the end of either as far as it names one family. A label may also take several families together:
# `blocks.[0-11].attn` is the attention of windowed and global blocks, which stand in two boxes.

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
    complete = list(_outermost(roots, lambda names: _is_whole(names, wanted), tree))
    if complete:
        return complete
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
    """The family with a label that ends like this; else by its members, if they differ only in numbers before it."""
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
    """The single called module with a path that ends like this; a label with brackets stands for several."""
    if "[" in ending:
        return None
    pattern = PathPattern(ending)
    paths = dict.fromkeys(path for path in tree.paths if pattern.matches(path))
    if len(paths) > 1:
        raise _ambiguous(paths, ending)
    return next(iter(paths), None)


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
