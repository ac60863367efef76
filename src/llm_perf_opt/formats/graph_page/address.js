// What the reader sees, in the address behind the #: a link, a reload, back and forward lead to the same picture.

const ROOT = "(root)";
const KEPT = ["phase", "open", "selected", "query", "metric", "colour", "fullPaths"];

/** Numbers of boxes as `0-4.7`: runs, in order. */
export function packedNumbers(boxes) {
  const runs = [];
  for (const number of [...boxes].map((box) => box.number).sort((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(".");
}

/** The boxes of such a text; what names none is passed over. */
export function unpackedNumbers(text, view) {
  const found = new Set();
  for (const run of text.split(".")) {
    const [first, last = first] = run.split("-").map(Number);
    for (let number = first; number <= Math.min(last, view.boxes.length - 1); number += 1) {
      if (view.boxes[number]?.children.length) found.add(view.boxes[number]);
    }
  }
  return found;
}

/** A box by its path; where several have one path, the later ones by their number too. */
function nameOf(box, view) {
  const isFirst = view.boxes.find((one) => one.path === box.path) === box;
  return `${box.path || ROOT}${isFirst ? "" : `~${box.number}`}`;
}

function boxNamed(name, view) {
  return view.boxes.find((box) => nameOf(box, view) === name) ?? null;
}

export class Address {
  constructor(phases, store, navigator, search) {
    Object.assign(this, { phases, store, navigator, search, defaults: store.initial, isWaiting: false });
    this.restore();
    store.on(KEPT, () => this.later());
    addEventListener("popstate", () => this.restore());
  }

  /** Writes once for all changes of one act. */
  later() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    queueMicrotask(() => {
      this.isWaiting = false;
      this.write();
    });
  }

  write() {
    const text = this.text();
    if (text === this.written) return;
    const isTyping = this.query && this.store.state.query && this.query !== this.store.state.query;
    history[isTyping ? "replaceState" : "pushState"](null, "", `#${text}`);
    this.remember(text);
  }

  remember(text) {
    this.written = text;
    this.query = this.store.state.query;
  }

  /** Only what differs from the page as it comes. */
  text() {
    const { phase, open, selected, query, metric, colour, fullPaths } = this.store.state;
    const first = packedNumbers(this.navigator.firstPicture(phase).open);
    const parts = new URLSearchParams();
    if (phase !== this.defaults.phase) parts.set("phase", phase.view.name);
    if (packedNumbers(open) !== first) parts.set("open", packedNumbers(open));
    if (selected) parts.set("at", nameOf(selected, phase.view));
    if (query.trim()) parts.set("search", query.trim());
    if (metric !== this.defaults.metric) parts.set("metric", metric);
    if (colour !== this.defaults.colour) parts.set("colour", colour);
    if (fullPaths) parts.set("paths", "full");
    return parts.toString();
  }

  /** Shows what the address says; what it does not say is as the page comes. */
  restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const phase = this.phases.find(({ view }) => view.name === parts.get("phase")) ?? this.defaults.phase;
    const known = (name, options) => (options.includes(parts.get(name)) ? parts.get(name) : this.defaults[name]);
    const options = (id) => [...document.getElementById(id).options].map(({ value }) => value);
    this.store.change({ metric: known("metric", options("metric")), colour: known("colour", options("colour")), fullPaths: parts.get("paths") === "full" });
    const picture = this.navigator.firstPicture(phase);
    if (parts.has("open")) this.navigator.compose({ ...picture, phase, open: unpackedNumbers(parts.get("open"), phase.view) });
    else this.navigator.begin(phase);
    const selected = parts.has("at") ? boxNamed(parts.get("at"), phase.view) : null;
    this.search.find(parts.get("search") ?? "", selected);
    if (selected) this.navigator.select(selected);
    this.remember(this.text());
  }
}
