// Selecting, opening and closing boxes, and going from phase to phase: the same acts for mouse, keys, search and panel.
import { announce } from "./announce.js";
import { bestDirections } from "./arrangement.js";
import { firstPicture } from "./first-picture.js";
import { plural } from "./numbers.js";
import { emptyPicture } from "./store.js";
import { oneLine } from "./text-width.js";
import { MOST_BOXES, oneLevelLess, oneLevelMore, shownBoxes, withAncestorsOpen } from "./visible.js";

export class Navigator {
  constructor(store, graph, viewport) {
    Object.assign(this, { store, graph, viewport });
    this.firstOf = new Map(); // phase -> the picture that it began with
    this.leftAt = new Map(); // phase -> its picture when the reader left it
  }

  get view() {
    return this.store.view;
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

  /** The picture that a phase begins with. */
  firstPicture(phase) {
    if (!this.firstOf.has(phase)) {
      const { open, directions } = firstPicture(phase.view, this.store.initial, phase.ledger, this.viewport.room);
      this.firstOf.set(phase, { ...emptyPicture(), open, directions });
    }
    return this.firstOf.get(phase);
  }

  /** A phase as it begins. */
  begin(phase) {
    this.store.change({ ...this.firstPicture(phase), phase });
    this.viewport.showStart();
  }

  /** Back to the first picture, made for the window as it is now. */
  reset() {
    const { hits, match, phase } = this.store.state;
    this.firstOf.clear();
    this.begin(phase);
    this.store.change({ hits, match });
  }

  /** Another phase, as the reader left it; what is selected stays selected where the other phase runs it too. */
  showPhase(phase) {
    const { state } = this.store;
    if (phase === state.phase) return;
    this.leftAt.set(state.phase, Object.fromEntries(Object.keys(emptyPicture()).map((key) => [key, state[key]])));
    const same = twinOf(state.selected, phase.view);
    this.store.change({ ...(this.leftAt.get(phase) ?? this.firstPicture(phase)), selected: null, focused: null, phase });
    this.viewport.showStart();
    if (same) this.select(same);
    announce(`${oneLine(phase.view.name)}, ${this.summary}`);
  }

  get summary() {
    return `${plural(this.shown.length, "box", "boxes")} on show`;
  }

  /** Changes the whole picture: a new arrangement, seen from its start. */
  compose(patch) {
    const { store, viewport } = this;
    const state = { ...store.state, ...patch };
    const { view, ledger } = state.phase;
    store.change({ ...patch, directions: bestDirections(view, state, ledger, viewport.aspect) });
    viewport.showStart();
  }
}

/** The box of another phase that stands for the same modules, or at least begins with the same instance. */
function twinOf(box, view) {
  if (!box) return null;
  const [first] = box.members;
  return view.boxes.find((one) => one.label === box.label) ?? view.boxes.find((one) => first && one.className === box.className && one.members.includes(first));
}
