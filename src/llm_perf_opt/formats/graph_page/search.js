// Search by path or class, in families also by the path of one instance.
import { announce } from "./announce.js";
import { byId } from "./elements.js";

const SHOWN_AT_ONCE = 40;
const PAUSE_MS = 120;

/** The boxes whose class, path or one of whose instances contains the words, letter case aside. */
export function matches(view, query) {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return [];
  const found = (text) => text.toLowerCase().includes(wanted);
  return view.boxes.filter((box) => found(box.className) || found(box.path) || found(box.label) || box.members.some(found));
}

export class Search {
  constructor(view, store, navigator) {
    Object.assign(this, { view, store, navigator, found: [], at: -1, pause: 0 });
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
    this.asked = this.input.value;
    this.found = matches(this.view, this.asked);
    this.at = -1;
    this.navigator.show(this.found.slice(0, SHOWN_AT_ONCE));
    this.store.change({ hits: new Set(this.found) });
    if (this.found.length) this.step(1);
    else this.tell();
    if (this.asked.trim()) announce(this.found.length ? `${this.found.length} found` : "Nothing found");
  }

  step(by) {
    if (this.asked !== this.input.value) return this.look();
    if (this.found.length) {
      this.at = (this.at + by + this.found.length) % this.found.length;
      this.navigator.select(this.found[this.at]);
    }
    return this.tell();
  }

  tell() {
    const nothing = this.input.value.trim() ? "none" : "";
    byId("hits").textContent = this.found.length ? `${this.at + 1} of ${this.found.length.toLocaleString("en-US")}` : nothing;
    for (const id of ["previous-hit", "next-hit"]) byId(id).disabled = !this.found.length;
  }
}
