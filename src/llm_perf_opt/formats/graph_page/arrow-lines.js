// Arrows between the boxes inside one box.
import { svg } from "./elements.js";

/** One drawing with all arrows of a level, each marked with the numbers of its two boxes. */
export function arrowLines(lines, width, height) {
  const paths = lines.map(({ source, target, points }) =>
    svg("path", { d: smooth(points), "data-source": source, "data-target": target, "marker-end": "url(#head)" }),
  );
  return svg("svg", { class: "arrows", width, height, "aria-hidden": "true" }, ...paths);
}

/** Lights up the arrows that start or end at the selected box. */
export function markArrows(tree, selected) {
  for (const path of tree.querySelectorAll(".arrows path")) {
    const number = String(selected?.number);
    const active = path.dataset.source === number || path.dataset.target === number;
    path.classList.toggle("active", active);
    path.setAttribute("marker-end", active ? "url(#head-active)" : "url(#head)");
  }
}

/** Straight at both ends, rounded where it bends. */
function smooth(points) {
  const [first, ...rest] = points;
  const last = rest.pop();
  let path = `M${at(first)}`;
  rest.forEach((point, index) => {
    const next = rest[index + 1] ?? last;
    const end = index === rest.length - 1 ? next : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 };
    path += ` Q${at(point)} ${at(end)}`;
  });
  return rest.length ? path : `${path} L${at(last)}`;
}

function at({ x, y }) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}
