// Selecting, opening and closing boxes: the same acts for mouse, keys, search, chart and panel.
import { announce } from "./announce.js";
import { bestDirections } from "./arrangement.js";
import { plural } from "./numbers.js";
import { oneLine } from "./text-width.js";
import { MOST_BOXES, openAtFirst, oneLevelLess, oneLevelMore, shownBoxes, withAncestorsOpen } from "./visible.js";

export class Navigator {
  constructor(view, store, graph, viewport) {
    this.view = view;
    this.store = store;
    this.graph = graph;
    this.viewport = viewport;
  }

  get shown() {
    return shownBoxes(this.view, this.store.state);
  }

  /** Selects a box, opens what it lies in and brings it into sight. */
  select(box) {
    this.show([box]);
    this.store.change({ selected: box, focused: box });
    this.viewport.reveal(box);
  }

  /** Opens what the boxes lie in. */
  show(boxes) {
    const { state } = this.store;
    const hidden = boxes.filter((box) => !this.graph.elements.has(box));
    if (!hidden.length) return;
    const wanted = new Set([...state.wanted, ...hidden, ...hidden.flatMap((box) => [...box.ancestors()])]);
    this.store.change({ wanted, open: withAncestorsOpen(hidden, state) });
  }

  clear() {
    this.store.change({ selected: null });
  }

  /** Puts the keyboard focus on a box without selecting it. */
  focus(box) {
    this.store.change({ focused: box });
    this.graph.elements.get(box).focus({ preventScroll: true });
    this.viewport.reveal(box);
  }

  setOpen(box, isOpen) {
    const { open } = this.store.state;
    if (!box.children.length || open.has(box) === isOpen) return;
    const next = new Set(open);
    if (isOpen) next.add(box);
    else next.delete(box);
    this.viewport.holding(box, () => this.store.change({ open: next }));
    if (isOpen && this.shown.length > 1) this.viewport.reveal(box);
    announce(`${oneLine(box.label)} ${isOpen ? `open, ${plural(box.children.length, "box", "boxes")} inside` : "closed"}`);
  }

  toggle(box) {
    this.setOpen(box, !this.store.state.open.has(box));
  }

  openLevel() {
    const open = oneLevelMore(this.view, this.store.state);
    if (open) this.compose({ open });
    announce(open ? this.summary : `One level more would show over ${MOST_BOXES} boxes; open single boxes instead`);
  }

  closeLevel() {
    this.compose({ open: oneLevelLess(this.view, this.store.state) });
    announce(this.summary);
  }

  reset() {
    this.compose({ open: openAtFirst(this.view), wanted: new Set(), limits: new Map(), selected: null });
  }

  get summary() {
    return `${plural(this.shown.length, "box", "boxes")} on show`;
  }

  /** Changes the whole picture: a new arrangement, seen from its start. */
  compose(patch) {
    const { view, store, viewport, graph } = this;
    const directions = bestDirections(view, { ...store.state, ...patch }, graph.ledger, viewport.aspect);
    store.change({ ...patch, directions });
    viewport.showStart();
  }
}
