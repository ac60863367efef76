// Search by path or class, in families also by the path of one instance.
import { announce } from "./announce.js";
import { byId } from "./elements.js";
import { oneLine } from "./text-width.js";

const SHOWN_AT_ONCE = 40;
const PAUSE_MS = 120;

/** The boxes with the words in their class, path or an instance's name, letter case aside. */
export function matches(view, query) {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return [];
  const found = (text) => text.toLowerCase().includes(wanted);
  return view.boxes.filter((box) => found(box.className) || found(box.path) || found(box.label) || box.members.some(found));
}

export class Search {
  constructor(phases, store, navigator) {
    Object.assign(this, { phases, store, navigator, found: [], at: -1, pause: 0 });
    this.input = byId("query");
    this.input.addEventListener("input", () => {
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.look(), PAUSE_MS);
    });
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.step(1);
    });
    byId("previous-hit").addEventListener("click", () => this.step(-1));
    store.on(["phase"], () => this.find(this.input.value, store.state.selected));
    this.tell();
  }

  onKey(event) {
    if (event.key === "Enter") {
      event.preventDefault(); // the form would not answer while its button is disabled
      this.step(event.shiftKey ? -1 : 1);
    }
    if (event.key === "Escape") {
      event.preventDefault();
      this.input.value = "";
      this.look();
    }
  }

  /** Marks every match and goes to the first. Many matches are not all opened: the picture would be lost. */
  look() {
    clearTimeout(this.pause);
    this.find(this.input.value, null);
    this.navigator.show(this.found.slice(0, SHOWN_AT_ONCE));
    if (this.found.length) this.step(1);
    if (this.store.state.query.trim()) announce(this.found.length ? `${this.found.length} found` : `Nothing found${this.elsewhere}`);
  }

  /** Marks every match and opens nothing; `selected` is the one that is looked at, if it is one of them. */
  find(query, selected) {
    this.input.value = query;
    this.found = matches(this.store.view, query);
    this.at = this.found.indexOf(selected);
    this.store.change({ query, hits: new Set(this.found), match: this.found[this.at] ?? null });
    this.tell();
  }

  step(by) {
    if (this.store.state.query !== this.input.value) return this.look();
    if (this.found.length) {
      this.at = (Math.max(this.at, by < 0 ? 0 : -1) + by + this.found.length) % this.found.length;
      this.store.change({ match: this.found[this.at] });
      this.navigator.select(this.found[this.at]);
    }
    return this.tell();
  }

  /** `; 4 in decode`: the phases that have what this one lacks. */
  get elsewhere() {
    const others = this.phases.filter((phase) => phase !== this.store.state.phase);
    const counts = others.map(({ view }) => [matches(view, this.store.state.query).length, oneLine(view.name)]);
    return counts.filter(([count]) => count).map(([count, name]) => `; ${count.toLocaleString("en-US")} in ${name}`).join("");
  }

  tell() {
    const count = this.found.length.toLocaleString("en-US");
    const nothing = this.input.value.trim() ? `none${this.elsewhere}` : "";
    const some = this.at < 0 ? `${count} found` : `${this.at + 1} of ${count}`;
    byId("hits").textContent = this.found.length ? some : nothing;
    for (const id of ["previous-hit", "next-hit"]) byId(id).disabled = !this.found.length;
  }
}
