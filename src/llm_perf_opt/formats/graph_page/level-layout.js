// Places the children of one box: each part that arrows connect on its own, the parts next to each other in rows.
import { NODE_GAP, placedPart } from "./part-layout.js";

const ASPECT = 1.3; // width by height to aim for when nothing else is known
export const DIRECTIONS = ["TB", "LR"];

/**
 * `nodes` have a key, width and height; `links` join keys. Flow runs in `direction`; without one, in the direction that
 * comes nearest to the usual shape. Returns places by key, lines by link and the size of it all.
 */
export function levelLayout(nodes, links, direction) {
  const parts = connectedParts(nodes, links);
  const tried = direction ? [direction] : DIRECTIONS;
  return smallest(tried.map((one) => packed(parts.map((part) => placedPart(part, one)))));
}

function smallest(layouts) {
  return layouts.reduce((first, second) => (extent(second, ASPECT) < extent(first, ASPECT) ? second : first));
}

/** How high an area of this aspect must be to hold the layout: the less, the larger it can be shown. */
export function extent({ width, height }, aspect) {
  return Math.max(width / aspect, height);
}

function connectedParts(nodes, links) {
  const leader = new Map(nodes.map((node) => [node.key, node.key]));
  const find = (key) => {
    while (leader.get(key) !== key) key = leader.get(key);
    return key;
  };
  for (const { source, target } of links) leader.set(find(source), find(target));
  const parts = new Map();
  for (const node of nodes) {
    const key = find(node.key);
    if (!parts.has(key)) parts.set(key, { nodes: [], links: [] });
    parts.get(key).nodes.push(node);
  }
  for (const link of links) parts.get(find(link.source)).links.push(link);
  return [...parts.values()];
}

/** Parts in rows, left to right, in the order of their first calls; the row width with the best shape wins. */
function packed(parts) {
  const widest = Math.max(0, ...parts.map((part) => part.width));
  const all = parts.reduce((sum, part) => sum + part.width + NODE_GAP, 0);
  const area = parts.reduce((sum, part) => sum + (part.width + NODE_GAP) * (part.height + NODE_GAP), 0);
  const limits = [widest, Math.max(widest, Math.sqrt(area * ASPECT)), Math.max(widest, Math.sqrt(area * ASPECT) * 1.3), all];
  return smallest(limits.map((limit) => inRows(parts, limit)));
}

function inRows(parts, limit) {
  const layout = { width: 0, height: 0, places: new Map(), lines: new Map() };
  let x = 0;
  let y = 0;
  let rowHeight = 0;
  for (const part of parts) {
    if (x > 0 && x + part.width > limit) {
      x = 0;
      y += rowHeight + NODE_GAP;
      rowHeight = 0;
    }
    for (const [key, place] of part.places) layout.places.set(key, { x: place.x + x, y: place.y + y });
    for (const [link, points] of part.lines) layout.lines.set(link, moved(points, x, y));
    layout.width = Math.max(layout.width, x + part.width);
    rowHeight = Math.max(rowHeight, part.height);
    layout.height = Math.max(layout.height, y + rowHeight);
    x += part.width + NODE_GAP;
  }
  return layout;
}

function moved(points, x, y) {
  return points.map((point) => ({ x: point.x + x, y: point.y + y }));
}
