// What is written on a box, and how much room that takes.
import { metricNamed } from "./figures.js";
import { formatShare, plural } from "./numbers.js";
import { FONTS, shortened, textWidth } from "./text-width.js";

const WIDEST_TEXT = 330;
const NARROWEST = 148;
const PADDING = 26; // left and right, with the coloured band
const TOGGLE = 20;
const LOOP_PADDING = 20; // inside and before a loop's badge
const GAP = 16;
export const CLOSED_HEIGHT = 62;
export const HEAD_HEIGHT = 42;

/** The lines of a box. Inside another box a path starts where the outer one ends, unless full paths are wanted. */
export function boxTexts(box, state, ledger) {
  const figure = metricNamed(state.metric);
  const value = ledger.inclusive(box, figure.key);
  const total = ledger.total(figure.key);
  const bound = ledger.signOf(box, figure.key);
  const loopRoom = box.loops.reduce((sum, loop) => sum + loopWidth(loop), 0);
  return {
    name: shortened(box.className, FONTS.name, Math.max(WIDEST_TEXT - loopRoom, 120)),
    path: shortened(placeText(box, state.fullPaths), FONTS.path, state.fullPaths ? 1.6 * WIDEST_TEXT : WIDEST_TEXT),
    cost: [bound + figure.format(value), ...(total === 0n ? [] : [formatShare(value, total)])].join(" · "),
    calls: [plural(box.calls, "call"), ...(box.communication ? [box.communication] : [])].join(" · "),
  };
}

function loopWidth(loop) {
  return textWidth(loop.text, FONTS.loop) + LOOP_PADDING;
}

/** `Class @ path`, the path as above. */
export function shortLabel(box) {
  return box.isLeftOut ? box.label : `${box.className} ${placeText(box, false)}`;
}

function placeText(box, full) {
  return box.isLeftOut ? box.place : `@ ${shortPath(box, full)}`;
}

function shortPath(box, full) {
  const path = box.path || "(root)";
  if (full) return path;
  for (const { path: outer } of box.ancestors()) {
    if (outer && path.startsWith(`${outer}.`)) return path.slice(outer.length);
  }
  return path;
}

/** Width and height of a closed box. */
export function closedSize(box, texts) {
  const costLine = textWidth(texts.cost, FONTS.small) + GAP + textWidth(texts.calls, FONTS.small);
  const text = Math.max(nameLine(box, texts), textWidth(texts.path, FONTS.path), costLine);
  return { width: Math.max(NARROWEST, text + PADDING), height: CLOSED_HEIGHT };
}

/** The least width of a box that is open: two lines, path and cost side by side. */
export function headWidth(box, texts) {
  const secondLine = [texts.cost, texts.calls].reduce((sum, text) => sum + GAP + textWidth(text, FONTS.small), 0);
  return Math.max(nameLine(box, texts), textWidth(texts.path, FONTS.path) + secondLine) + PADDING;
}

function nameLine(box, texts) {
  const loops = box.loops.reduce((sum, loop) => sum + loopWidth(loop), 0);
  return textWidth(texts.name, FONTS.name) + loops + (box.children.length ? TOGGLE : 0);
}
