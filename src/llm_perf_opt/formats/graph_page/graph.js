// Draws the boxes on show as nested elements, which are also the tree that a screen reader walks.
import { arrowLines, markArrows } from "./arrow-lines.js";
import { paint, share } from "./box-colours.js";
import { byId, html } from "./elements.js";
import { layoutView } from "./layout.js";
import { plural } from "./numbers.js";
import { oneLine } from "./text-width.js";
import { withMore } from "./visible.js";

export class Graph {
  constructor(store) {
    this.store = store;
    this.tree = byId("tree");
    this.elements = new Map();
    this.layout = null;
  }

  get view() {
    return this.store.view;
  }

  get ledger() {
    return this.store.ledger;
  }

  /** Lays out and draws what is open now. Elements that stay are kept, so that focus and motion stay too. */
  draw() {
    this.layout = layoutView(this.view, this.store.state, this.ledger);
    const old = this.elements;
    this.elements = new Map();
    this.view.roots.forEach((box, at) => this.drawBox(box, this.tree, old, at, this.view.roots.length));
    for (const [box, element] of old) if (!this.elements.has(box)) element.remove();
    this.tree.style.width = `${this.layout.width}px`;
    this.tree.style.height = `${this.layout.height}px`;
    this.mark();
  }

  drawBox(box, parent, old, at, siblings) {
    const frame = this.layout.frames.get(box);
    const element = old.get(box) ?? this.newElement(box);
    this.elements.set(box, element);
    if (element.parentElement !== parent) parent.append(element);
    for (const [side, size] of [["left", frame.x], ["top", frame.y], ["width", frame.width], ["height", frame.height]]) {
      element.style[side] = `${size}px`;
    }
    element.setAttribute("aria-posinset", at + 1);
    element.setAttribute("aria-setsize", siblings);
    const isOpen = this.store.state.open.has(box);
    if (box.children.length) element.setAttribute("aria-expanded", isOpen);
    element.classList.toggle("open", isOpen);
    this.write(box, element, frame);
    this.drawInside(box, element, frame, isOpen, old);
  }

  drawInside(box, element, frame, isOpen, old) {
    const inside = element.lastElementChild;
    for (const stale of inside.querySelectorAll(":scope > .arrows, :scope > .more")) stale.remove();
    if (!isOpen) return;
    inside.prepend(arrowLines(frame.lines, frame.width, frame.height));
    const shown = box.children.filter((child) => this.layout.frames.has(child));
    shown.forEach((child, at) => this.drawBox(child, inside, old, at, shown.length));
    if (frame.more) inside.append(this.moreButton(box, frame.more));
  }

  moreButton(box, { x, y, width, height, hidden }) {
    const button = html("button", { type: "button", class: "more", "data-more": box.number }, `${hidden.toLocaleString("en-US")} more …`);
    button.addEventListener("click", () => this.store.change({ limits: withMore(box, this.store.state) }));
    Object.assign(button.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
    return button;
  }

  newElement(box) {
    const loops = box.loops.map((loop) => html("span", { class: `loop ${loop.kind}`, title: `over ${loop.over}` }, loop.text));
    const toggle = box.children.length ? html("span", { class: "toggle", "aria-hidden": "true", title: "Open or close" }) : null;
    return html(
      "div",
      { class: "box", role: "treeitem", id: `box-${box.number}`, "data-box": box.number, "aria-level": box.level, tabindex: "-1" },
      html(
        "div",
        { class: "head", title: oneLine(box.label) },
        html("div", { class: "line" }, toggle, html("span", { class: "name" }), ...loops),
        html("div", { class: "path" }),
        html("div", { class: "line cost-line" }, html("span", { class: "cost" }), html("span", { class: "calls" })),
        html("div", { class: "bar" }),
      ),
      html("div", { class: "inside", role: "group" }),
    );
  }

  write(box, element, { texts }) {
    const head = element.firstElementChild;
    head.querySelector(".name").textContent = texts.name;
    head.querySelector(".path").textContent = texts.path;
    head.querySelector(".cost").textContent = texts.cost;
    head.querySelector(".calls").textContent = texts.calls;
    const { state } = this.store;
    head.style.setProperty("--share", `${(100 * share(box, state, this.ledger)).toFixed(2)}%`);
    paint(element, box, this.view, state, this.ledger);
    const loops = box.loops.map((loop) => loop.text).join(", ");
    const spoken = [oneLine(box.label), loops, plural(box.calls, "call"), box.communication, texts.cost, `stage ${oneLine(box.stage)}`];
    element.setAttribute("aria-label", spoken.filter(Boolean).join(", "));
  }

  /** Shows which box is selected, which can be reached with Tab, and which match the search. */
  mark() {
    const { selected, focused, hits, match } = this.store.state;
    const onPath = new Set(match?.ancestors());
    const tabStop = this.elements.has(focused) ? focused : this.view.roots[0];
    for (const [box, element] of this.elements) {
      element.setAttribute("aria-selected", box === selected);
      element.tabIndex = box === tabStop ? 0 : -1;
      element.classList.toggle("hit", hits.has(box));
      element.classList.toggle("match", box === match);
      element.classList.toggle("on-path", onPath.has(box));
    }
    markArrows(this.tree, selected);
  }

  /** Where a box lies in the picture, from the corner of the whole. */
  placeOf(box) {
    const { width, height } = this.layout.frames.get(box);
    let x = 0;
    let y = 0;
    for (let at = box; at; at = at.parent) {
      const frame = this.layout.frames.get(at);
      x += frame.x;
      y += frame.y;
    }
    return { x, y, width, height };
  }
}
