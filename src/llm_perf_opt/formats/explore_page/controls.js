// Sliders and menus, and the address behind the # that remembers them.

import { html } from "./elements.js";

const STEPS_OF_SLIDER = 1000;

/** Numbers with their range and meaning; the ranges of batch and context are what the function proves. */
function numbersOf(data) {
  const ends = (name) => data.phases.map(({ domain }) => domain[name]);
  const range = (name) => [Math.max(...ends(name).map(([low]) => low)), Math.min(...ends(name).map(([, high]) => high))];
  return {
    batch: { group: "One step", label: "batch", range: range("batch"), first: 8 },
    context: { group: "One step", label: "context, tokens", range: range("context"), first: 4096 },
    users: { group: "Users", label: "users at once", range: [1, 4096], first: 32 },
    input: { group: "Users", label: "input, tokens", range: [16, 131072], first: 2000 },
    output: { group: "Users", label: "output, tokens", range: [16, 16384], first: 500 },
    count: { group: "Server", label: "GPUs", range: [1, 64], first: 8 },
  };
}

function menusOf(data) {
  return {
    gpu: { group: "Server", label: "GPU", options: data.gpus.map(({ id }) => [id, id]) },
    plan: { group: "Server", label: "plan", options: data.plans.map(({ name }) => [name, name]) },
    weights: { group: "Server", label: "weights", options: data.weights.map((name) => [name, name]) },
    cache: { group: "Server", label: "cache", options: data.caches.map((name) => [name, name]) },
  };
}

const inside = (value, [low, high]) => Math.min(high, Math.max(low, Math.round(value)));

export class Controls {
  constructor(form, data, changed) {
    Object.assign(this, { form, numbers: numbersOf(data), menus: menusOf(data), changed, elements: new Map() });
    this.defaults = this.firstChoice(data);
    this.choice = { ...this.defaults };
    const groups = ["Server", "Users", "One step"].map((name) => this.group(name));
    form.replaceChildren(...groups);
    form.addEventListener("submit", (event) => event.preventDefault());
    addEventListener("hashchange", () => this.restore());
    this.restore();
  }

  /** The smallest plan with a step table on the first GPU that has one. */
  firstChoice(data) {
    const numbers = Object.fromEntries(Object.entries(this.numbers).map(([name, { range, first }]) => [name, inside(first, range)]));
    const entry = data.entries.find(({ table }) => table) ?? data.entries[0];
    const [weights, cache] = entry.format.split(" / ");
    return { ...numbers, gpu: entry.gpu, plan: entry.plan, weights, cache };
  }

  group(name) {
    const of = (all) => Object.entries(all).filter(([, { group }]) => group === name);
    const menus = of(this.menus).map(([key, menu]) => this.menu(key, menu));
    const numbers = of(this.numbers).map(([key, number]) => this.number(key, number));
    return html("fieldset", {}, html("legend", {}, name), ...menus, ...numbers);
  }

  menu(key, { label, options }) {
    const select = html("select", { id: key }, ...options.map(([value, text]) => html("option", { value }, text)));
    select.addEventListener("change", () => this.set({ [key]: select.value }));
    this.elements.set(key, [select]);
    return html("div", { class: "control menu" }, html("label", { for: key }, label), select);
  }

  number(key, { label, range }) {
    const [low, high] = range;
    const box = html("input", { type: "number", id: key, min: low, max: high, step: 1 });
    const slider = html("input", { type: "range", id: `${key}-slider`, min: 0, max: STEPS_OF_SLIDER, step: 1, "aria-label": label, disabled: low === high });
    slider.addEventListener("input", () => this.set({ [key]: inside(low * (high / low) ** (Number(slider.value) / STEPS_OF_SLIDER), range) }));
    slider.addEventListener("keydown", (event) => this.byKey(event, key, range));
    box.addEventListener("change", () => this.set({ [key]: inside(Number(box.value) || low, range) }));
    this.elements.set(key, [box, slider]);
    return html("div", { class: "control" }, html("label", { for: key }, label), box, slider);
  }

  /** An arrow moves by a whole number at least, whatever a step of the slider is. */
  byKey(event, key, range) {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const value = this.choice[key];
    this.set({ [key]: inside(value + direction * Math.max(1, Math.round(value * 0.02)), range) });
  }

  set(changes, { remember = true } = {}) {
    this.choice = { ...this.choice, ...changes };
    for (const [key, [box, slider]] of this.elements) {
      const value = this.choice[key];
      if (box !== document.activeElement || box.value !== String(value)) box.value = value;
      if (!slider) continue;
      const [low, high] = this.numbers[key].range;
      slider.value = low === high ? 0 : Math.round((Math.log(value / low) / Math.log(high / low)) * STEPS_OF_SLIDER);
      slider.setAttribute("aria-valuetext", value.toLocaleString("en-US"));
    }
    if (remember) this.remember();
    this.changed(this.choice);
  }

  /** Only what differs from the page as it comes; written once the slider rests, since browsers limit how often. */
  remember() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => history.replaceState(null, "", `#${this.text()}`), 150);
  }

  text() {
    const differing = Object.entries(this.choice).filter(([key, value]) => value !== this.defaults[key]);
    return new URLSearchParams(differing.map(([key, value]) => [key, String(value)])).toString();
  }

  /** What the address says, where it says something that the page has. */
  restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const chosen = { ...this.defaults };
    for (const [key, { options }] of Object.entries(this.menus)) {
      if (options.some(([value]) => value === parts.get(key))) chosen[key] = parts.get(key);
    }
    for (const [key, { range }] of Object.entries(this.numbers)) {
      if (/^\d{1,9}$/.test(parts.get(key) ?? "")) chosen[key] = inside(Number(parts.get(key)), range);
    }
    this.set(chosen, { remember: false });
  }
}
