// The cost chart: an icicle in which a box is as wide as its share, with what it calls below it.
import { paint } from "./box-colours.js";
import { byId, html, svg } from "./elements.js";
import { metricNamed } from "./figures.js";
import { formatShare } from "./numbers.js";
import { FONTS, oneLine, shortened, textWidth } from "./text-width.js";

const ROW = 22;
const THINNEST = 2.5;
const LABELLED = 44;
const TALLEST = 0.2; // of the window

export class Chart {
  constructor(store, navigator) {
    Object.assign(this, { store, navigator, top: null, cells: new Map() });
    this.area = byId("cells");
    this.area.addEventListener("click", (event) => this.withBox(event, (box) => this.navigator.select(box)));
    this.area.addEventListener("dblclick", (event) => this.withBox(event, (box) => this.zoomTo(box)));
    this.area.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== this.width) this.draw();
    }).observe(this.area);
  }

  get view() {
    return this.store.view;
  }

  get ledger() {
    return this.store.ledger;
  }

  withBox(event, act) {
    const cell = event.target.closest(".cell");
    if (cell) act(this.view.boxes[Number(cell.dataset.box)]);
  }

  /** Widens one box to the whole chart; null shows everything again. */
  zoomTo(box) {
    this.top = box;
    this.draw();
  }

  /** Shows all of another phase when it is drawn next. */
  forget() {
    this.top = null;
  }

  draw() {
    const { state } = this.store;
    const { width } = this.area.getBoundingClientRect();
    this.width = width;
    const figure = metricNamed(state.metric);
    const total = this.ledger.total(figure.key);
    const sign = this.ledger.sign(total, figure.key, this.ledger.total("unpriced_ops"));
    byId("chart-title").textContent = `${figure.label}: ${sign}${figure.format(total)}`;
    this.drawTrail();
    this.cells = new Map();
    const laid = this.laidOut(width, Math.floor((TALLEST * innerHeight) / ROW));
    if (!laid) {
      this.area.replaceChildren(html("p", { class: "nothing" }, `${figure.label}: nothing to chart, all are 0 or not known.`));
      return;
    }
    const groups = laid.filter((node) => node.data.number >= 0).map((node) => this.cell(node, figure));
    const height = (1 + Math.max(...laid.map((node) => node.row))) * ROW;
    this.area.replaceChildren(svg("svg", { width, height }, ...groups));
    this.mark();
  }

  laidOut(width, mostRows) {
    const { ledger, view, top } = this;
    const { metric } = this.store.state;
    const everything = { number: -1, children: view.roots };
    const start = top ?? (view.roots.length === 1 ? view.roots[0] : everything);
    const size = (box) => (box.number < 0 ? 0 : Number(ledger.own(box, metric) ?? 0n));
    const root = vendor.hierarchy(start, (box) => box.children).sum(size);
    if (!root.value) return null;
    const skipped = start.number < 0 ? 1 : 0;
    const rows = root.height + 1;
    vendor.partition().size([width, rows * ROW])(root);
    return this.wideEnough(root, skipped, mostRows);
  }

  /** Cells that can be seen, with the rows moved up when the first one only holds the others together. */
  wideEnough(root, skipped, rows) {
    const kept = [];
    const waiting = [root];
    while (waiting.length) {
      const node = waiting.pop();
      if (node.x1 - node.x0 < THINNEST || node.depth - skipped >= rows) continue;
      node.row = node.depth - skipped;
      kept.push(node);
      waiting.push(...(node.children ?? []));
    }
    return kept.sort((first, second) => first.depth - second.depth || first.x0 - second.x0);
  }

  cell(node, figure) {
    const { data: box, x0, x1, row } = node;
    const width = x1 - x0;
    const value = this.ledger.inclusive(box, figure.key);
    const summary = `${oneLine(box.label)}: ${this.ledger.signOf(box, figure.key)}${figure.format(value)}, ${formatShare(value, this.ledger.total(figure.key))}`;
    const name = width < LABELLED ? "" : fitted(box, width - 12);
    const group = svg(
      "g",
      { class: "cell", role: "button", tabindex: "-1", "data-box": box.number, "aria-label": summary, transform: `translate(${x0.toFixed(2)} ${row * ROW})` },
      svg("title", {}, summary),
      svg("rect", { width: Math.max(1, width - 1).toFixed(2), height: ROW - 1, rx: 2 }),
      svg("text", { x: 6, y: ROW / 2 + 4 }, name),
    );
    paint(group, box, this.view, this.store.state, this.ledger);
    this.cells.set(box, group);
    return group;
  }

  drawTrail() {
    const path = this.top ? [this.top, ...this.top.ancestors()].reverse() : [];
    const step = (box, text) => html("button", { type: "button", onclick: () => this.zoomTo(box) }, text);
    const steps = path.map((box) => step(box, pathEnd(box).slice(0, 40)));
    byId("trail").replaceChildren(...(path.length ? [step(null, "All"), ...steps] : []));
  }

  /** Shows the selected box, or the nearest around it that is wide enough to see. */
  mark() {
    const { selected, hits } = this.store.state;
    const nearest = selected ? [selected, ...selected.ancestors()].find((box) => this.cells.has(box)) : null;
    const tabStop = nearest ?? this.cells.keys().next().value;
    for (const [box, cell] of this.cells) {
      cell.classList.toggle("selected", box === nearest);
      cell.classList.toggle("hit", hits.has(box));
      cell.setAttribute("aria-pressed", box === selected);
      cell.setAttribute("tabindex", box === tabStop ? "0" : "-1");
    }
  }

  onKey(event) {
    this.withBox(event, (box) => {
      const siblings = (box.parent?.children ?? this.view.roots).filter((one) => this.cells.has(one));
      const neighbour = (by) => siblings[siblings.indexOf(box) + by];
      const acts = {
        ArrowRight: () => this.focus(neighbour(1)),
        ArrowLeft: () => this.focus(neighbour(-1)),
        ArrowDown: () => this.focus(box.children.find((child) => this.cells.has(child))),
        ArrowUp: () => this.focus(box.parent),
        Enter: () => this.navigator.select(box),
        " ": () => this.navigator.select(box),
        z: () => this.zoomTo(this.top === box ? null : box),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  focus(box) {
    if (this.cells.has(box)) this.cells.get(box).focus();
  }
}

/** The end of the path with the loops, or as much of it as there is room for. */
function fitted(box, width) {
  const loops = box.loops.map((loop) => loop.text);
  const all = [pathEnd(box), ...loops].join(" · ");
  return textWidth(all, FONTS.small) <= width ? all : shortened(pathEnd(box), FONTS.small, width);
}

/** `layers.[0-11]`, `mlp`: what tells neighbours in the chart apart. */
function pathEnd(box) {
  const parts = oneLine(box.path).split(".");
  const isIndex = /^(?:\d+|\[[^\]]*\])$/u.test(parts.at(-1));
  return parts.slice(isIndex ? -2 : -1).join(".") || oneLine(box.className);
}
