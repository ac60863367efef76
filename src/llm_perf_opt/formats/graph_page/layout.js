// Places every box on show, inside out: a box is as large as what it holds.
import { HEAD_HEIGHT, boxTexts, closedSize, headWidth } from "./box-texts.js";
import { levelLayout } from "./level-layout.js";
import { shownChildren } from "./visible.js";

const MARGIN = 10;
const MORE = { key: "more", width: 150, height: 44 };

/**
 * Box -> { x, y, width, height, texts, lines, more }, where x and y count from the corner of the outer box. `lines` are
 * the arrows between the box's children.
 */
export function layoutView(view, state, ledger) {
  const frames = new Map();
  const size = placeLevel(null, view.roots, 0, 0, { x: 0, y: 0 }, { view, state, ledger, frames });
  return { frames, width: Math.max(1, size.width), height: Math.max(1, size.height) };
}

function placeLevel(owner, boxes, hidden, leastWidth, corner, scene) {
  const { frames } = scene;
  const sizes = boxes.map((box) => ({ key: String(box.number), ...sized(box, scene) }));
  const nodes = hidden ? [...sizes, MORE] : sizes;
  const level = levelLayout(nodes, linksBetween(boxes), scene.state.directions.get(owner));
  const indent = Math.max(0, (leastWidth - level.width) / 2);
  for (const box of boxes) {
    const { x, y } = level.places.get(String(box.number));
    Object.assign(frames.get(box), { x: x + corner.x + indent, y: y + corner.y });
  }
  const shift = (point) => ({ x: point.x + corner.x + indent, y: point.y + corner.y });
  return {
    width: Math.max(level.width, leastWidth),
    height: level.height,
    lines: [...level.lines].map(([link, points]) => ({ source: Number(link.source), target: Number(link.target), points: points.map(shift) })),
    more: hidden ? { ...MORE, ...shift(level.places.get(MORE.key)), hidden } : null,
  };
}

function sized(box, scene) {
  const { state, ledger, frames } = scene;
  const texts = boxTexts(box, state, ledger);
  const frame = { texts, lines: [], more: null };
  frames.set(box, frame);
  if (!state.open.has(box)) return Object.assign(frame, closedSize(box, texts));
  const { shown, hidden } = shownChildren(box, state);
  const inside = placeLevel(box, shown, hidden, headWidth(box, texts) - 2 * MARGIN, { x: MARGIN, y: HEAD_HEIGHT }, scene);
  return Object.assign(frame, {
    width: inside.width + 2 * MARGIN,
    height: inside.height + HEAD_HEIGHT + MARGIN,
    lines: inside.lines,
    more: inside.more,
  });
}

function linksBetween(boxes) {
  const here = new Set(boxes);
  const arrows = boxes.flatMap((box) => box.arrowsOut).filter(({ source, target }) => source !== target && here.has(target));
  return arrows.map(({ source, target }) => ({ source: String(source.number), target: String(target.number) }));
}
