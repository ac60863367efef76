"""The layout, on generated trees: nothing overlaps, nothing sticks out, no arrow crosses a box."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.graph_view import Arrow, Box
from llm_perf_opt.formats.box_layout import BoxLayout, Placed, Size, bands_of, columns_of, is_opened
from llm_perf_opt.formats.box_routes import Point
from tests.examples import examples
from tests.formats.drawings.made_views import Node, box_of, deepseek_ocr_view

SLACK = 0.01


def measure(box: Box) -> Size:
    """Sizes that differ from box to box."""
    return Size(90 + 17 * (len(box.path) % 7), 46 if is_opened(box) else 60 + 9 * (len(box.path) % 4))


@st.composite
def nodes(draw: st.DrawFn, depth: int = 3) -> Node:
    count = draw(st.integers(0, 6)) if depth else 0
    names = [f"{number}{'x' * draw(st.integers(0, 6))}" for number in range(count)]
    children = tuple(replace(draw(nodes(depth - 1)), path=name) for name in names)
    ends = st.tuples(st.integers(0, max(count - 1, 0)), st.integers(0, max(count - 1, 0)))
    arrows = tuple(draw(st.sets(ends, max_size=2 * count))) if count else ()
    return Node("C", "root", children=children, arrows=tuple(sorted(arrows)))


def overlap(a: Placed, b: Placed) -> bool:
    return (
        a.x < b.x + b.width - SLACK
        and b.x < a.x + a.width - SLACK
        and a.y < b.y + b.height - SLACK
        and b.y < a.y + a.height - SLACK
    )


def enters(placed: Placed, start: Point, end: Point) -> bool:
    """Whether a level or upright line goes through the inside of a box."""
    (x1, y1), (x2, y2) = start, end
    return (
        min(x1, x2) < placed.x + placed.width - SLACK
        and max(x1, x2) > placed.x + SLACK
        and min(y1, y2) < placed.y + placed.height - SLACK
        and max(y1, y2) > placed.y + SLACK
    )


def check(placed: Placed) -> None:
    for a, b in combinations(placed.children, 2):
        assert not overlap(a, b), (a.box.path, b.box.path)
    for child in placed.children:
        assert child.x >= 0
        assert child.y >= 0
        assert child.x + child.width <= placed.width + SLACK
        assert child.y + child.height <= placed.height + SLACK
        check(child)
    for route in placed.routes:
        for start, end in pairwise(route):
            assert start[0] == end[0] or start[1] == end[1], "lines are level or upright"
            assert not any(enters(child, start, end) for child in placed.children)
        assert all(0 <= x <= placed.width and 0 <= y <= placed.height for x, y in route)


@settings(max_examples=examples(40), deadline=None)
@given(nodes(), st.sampled_from([300.0, 800.0, 1240.0]))
def test_nothing_overlaps_whatever_the_tree(node: Node, limit: float) -> None:
    box = box_of(node)
    placed = BoxLayout(measure).place(box, limit)
    check(placed)
    drawn_boxes = _count(placed)
    assert drawn_boxes == sum(1 for _ in box.walk())


def _count(placed: Placed) -> int:
    return 1 + sum(map(_count, placed.children))


@settings(max_examples=examples(40), deadline=None)
@given(nodes())
def test_every_arrow_starts_right_of_its_source_and_ends_left_of_its_target(node: Node) -> None:
    placed = BoxLayout(measure).place(box_of(node), 800)
    at = {child.box.id: child for child in placed.children}
    arrows = [arrow for arrow in placed.box.arrows if arrow.source != arrow.target]
    assert len(arrows) == len(placed.routes)
    for arrow, route in zip(arrows, placed.routes, strict=True):
        source, target = at[arrow.source], at[arrow.target]
        assert route[0][0] == source.x + source.width
        assert route[-1][0] == target.x
        assert target.y <= route[-1][1] <= target.y + target.height


def row(names: tuple[str, ...], *arrows: tuple[int, int]) -> Node:
    return Node("C", "root", children=tuple(Node("C", name) for name in names), arrows=arrows)


# Two arrows that change places between columns of equal ports; one that comes down to a gutter where another goes up.
SWAP = row(("0", "1", "2", "3"), (0, 3), (1, 2))
SHIFT = row(("0", "1", "2", "3", "4", "5"), (0, 4), (1, 5), (0, 3))
GUTTER = row(("0", "1xx", "2xx", "3", "4x", "5"), (0, 4), (0, 5), (4, 2), (5, 0), (5, 4))


@settings(max_examples=examples(40), deadline=None)
@given(nodes(), st.sampled_from([300.0, 800.0]))
@example(SWAP, 800.0)
@example(SHIFT, 800.0)
@example(GUTTER, 300.0)
def test_two_sources_never_share_a_line(node: Node, limit: float) -> None:
    """Arrows of different boxes may cross, but none runs along another, except into the same target."""
    placed = BoxLayout(measure).place(box_of(node), limit)
    arrows = [arrow for arrow in placed.box.arrows if arrow.source != arrow.target]
    pieces = [
        (arrow, start, end)
        for arrow, route in zip(arrows, placed.routes, strict=True)
        for start, end in pairwise(route)
    ]
    for (one, *a), (two, *b) in combinations(pieces, 2):
        if one.source != two.source and one.target != two.target:
            assert not _along(a, b), (one, two)


def _along(a: list[Point], b: list[Point]) -> bool:
    for axis in (0, 1):
        level = {a[0][axis], a[1][axis], b[0][axis], b[1][axis]}
        low = max(min(p[1 - axis] for p in a), min(p[1 - axis] for p in b))
        high = min(max(p[1 - axis] for p in a), max(p[1 - axis] for p in b))
        if len(level) == 1 and high - low > SLACK:
            return True
    return False


def test_the_whole_model_fits_the_page() -> None:
    placed = BoxLayout(measure).place(deepseek_ocr_view().roots[0], 1240)
    assert placed.width <= 1240
    check(placed)


def test_columns_follow_the_data() -> None:
    q, k, v, o, alone = (box_of(Node("Linear", name)) for name in ("q", "k", "v", "o", "alone"))
    arrows = [Arrow(source=name, target="o", calls=1) for name in ("q", "k", "v")]
    assert columns_of([q, k, v, o, alone], arrows) == [[q, k, v], [o, alone]]


def test_a_source_stands_just_before_its_first_use() -> None:
    boxes = [box_of(Node("C", name)) for name in ("embed", "a", "b", "c")]
    arrows = [Arrow(source=s, target=t, calls=1) for s, t in (("a", "b"), ("b", "c"), ("embed", "c"))]
    assert [[box.path for box in column] for column in columns_of(boxes, arrows)] == [["a"], ["embed", "b"], ["c"]]


def test_without_arrows_the_order_of_calls_is_kept() -> None:
    boxes = [box_of(Node("C", name)) for name in ("a", "b", "c")]
    assert columns_of(boxes, []) == [[box] for box in boxes]


def test_bands_are_broken_where_the_sum_of_heights_is_least() -> None:
    class Shape(Size):
        burden = 0.0

    low, high = Shape(100, 10), Shape(100, 50)
    bands = bands_of([[low], [low], [high], [high]], limit=210, gap=10)
    assert [(band.start, len(band.chosen)) for band in bands] == [(0, 2), (2, 2)]
    wide = Shape(210, 20)
    assert bands_of([[high, wide]], limit=210, gap=10)[0].chosen == (1,)
