// Which boxes are on show: what is open, how many children of a crowded box, and how much one picture can hold.

export const MOST_BOXES = 400;
const CROWD = 120;
const STEP = 100;

/** The boxes that the view opens at first, outer before inner, while the picture has room. */
export function openAtFirst(view) {
  return withinRoom(view, (box) => box.isOpenAtFirst);
}

/** Opens boxes level by level where `wanted` says so, until the picture is full. */
function withinRoom(view, wanted) {
  const open = new Set();
  let room = MOST_BOXES - view.roots.length;
  let level = view.roots;
  while (level.length) {
    const next = [];
    for (const box of level) {
      const cost = Math.min(box.children.length, CROWD);
      if (!cost || cost > room || !wanted(box)) continue;
      open.add(box);
      room -= cost;
      next.push(...box.children.slice(0, CROWD));
    }
    level = next;
  }
  return open;
}

/** The children to draw and how many are left out; a box with very many shows some, and those that were asked for. */
export function shownChildren(box, state) {
  if (box.children.length <= CROWD) return { shown: box.children, hidden: 0 };
  const limit = state.limits.get(box) ?? STEP;
  const shown = box.children.filter((child, at) => at < limit || state.wanted.has(child));
  return { shown, hidden: box.children.length - shown.length };
}

/** Limits with a hundred more children of `box`. */
export function withMore(box, state) {
  return new Map(state.limits).set(box, (state.limits.get(box) ?? STEP) + STEP);
}

/** The boxes on show, outer before inner, as a reader of the tree meets them. */
export function shownBoxes(view, state) {
  const shown = [];
  const waiting = [...view.roots].reverse();
  while (waiting.length) {
    const box = waiting.pop();
    shown.push(box);
    if (state.open.has(box)) waiting.push(...[...shownChildren(box, state).shown].reverse());
  }
  return shown;
}

/** The open set with one level more everywhere, or null when the picture would be too full. */
export function oneLevelMore(view, state) {
  const shown = shownBoxes(view, state);
  const leaves = shown.filter((box) => box.children.length && !state.open.has(box));
  const added = leaves.reduce((sum, box) => sum + Math.min(box.children.length, CROWD), 0);
  return shown.length + added > MOST_BOXES ? null : new Set([...state.open, ...leaves]);
}

/** The open set without the boxes that have no open box inside. */
export function oneLevelLess(view, state) {
  const open = shownBoxes(view, state).filter((box) => state.open.has(box));
  const deepest = Math.max(0, ...open.map((box) => box.level));
  return new Set(open.filter((box) => box.level < deepest));
}

/** The open set in which all of `boxes` are on show. */
export function withAncestorsOpen(boxes, state) {
  const open = new Set(state.open);
  for (const box of boxes) for (const ancestor of box.ancestors()) open.add(ancestor);
  return open;
}
