// How the figures of a view come about: own figures out of the ops that ran, all others as sums of them.
import { FIGURES } from "./figures.js";
import { leaf, node, treeOf } from "./formulas.js";
import { html } from "./elements.js";
import { oneLine } from "./text-width.js";
import { exactly } from "./texts.js";
import { openWitness, witnesses } from "./witness.js";

const UNITS = Object.fromEntries(FIGURES.map(({ key, unit }) => [key, unit]));
const FROM_TRACE = "counted while the model's code ran";
const OUTSIDE = "ops outside any module, and modules that did not run";

/** A figure as a button that opens `tree()`; what is not known is only text. */
export function witnessed(id, label, text, value, tree) {
  if (value === null) return text;
  witnesses.set(id, { label, text, tree });
  return html("button", { type: "button", class: "figure", "data-figure": id, "data-exact": value, title: exactly(value, "") }, text);
}

/** Opens the witness of a clicked button; trees are made when they are first asked for. */
export function followFigures(area) {
  area.addEventListener("click", (event) => {
    const id = event.target.closest("[data-figure]")?.dataset.figure;
    if (id === undefined) return;
    const known = witnesses.get(id);
    if (typeof known.tree === "function") known.tree = known.tree();
    openWitness(id);
  });
}

export class FigureTrees {
  constructor(view, ledger) {
    Object.assign(this, { view, ledger, known: new Map() });
  }

  /** Made once: most figures are sums of others. */
  once(name, make) {
    if (!this.known.has(name)) this.known.set(name, make());
    return this.known.get(name);
  }

  /** Of the ops that ran directly in a box. */
  own(box, key) {
    return this.once(`${key} of ${box.number}`, () => this.ownTree(box, key));
  }

  ownTree(box, key) {
    const value = this.ledger.own(box, key);
    if (value === null) return null;
    if (key === "macs") return node("whole", `own ops of ${oneLine(box.label)}`, [this.own(box, "flops"), leaf("FLOPs of a multiply-add", 2n)], UNITS[key]);
    const tree = value ? box.witness(this.view.figureNames.indexOf(key)) : null;
    const name = `own ops of ${oneLine(box.label)}`;
    return tree ? { ...treeOf(tree, this.view.strings), name } : leaf(name, value, UNITS[key], FROM_TRACE);
  }

  inclusive(box, key) {
    return this.once(`${key} in ${box.number}`, () => {
      const parts = [this.own(box, key), ...box.children.map((child) => this.inclusive(child, key))];
      return this.sum(`${oneLine(box.label)} with all inside`, parts, key);
    });
  }

  ofStage(name, boxes, stage, key) {
    return this.sum(name, [...boxes].filter((box) => box.stage === stage).map((box) => this.own(box, key)), key);
  }

  total(key) {
    return this.sum("the whole run", [...this.view.roots.map((box) => this.inclusive(box, key)), this.outside(key)], key);
  }

  outside(key) {
    const value = this.ledger.outsideBoxes(key);
    return value === null ? null : leaf(OUTSIDE, value, UNITS[key], FROM_TRACE);
  }

  /** Of what is known and not 0. */
  sum(name, parts, key) {
    const known = parts.filter((part) => part?.value);
    return known.length ? node("sum", name, known, UNITS[key]) : leaf(name, 0n, UNITS[key], FROM_TRACE);
  }

  share(part, whole) {
    return node("quotient", "share", [part, whole].map((tree) => node("number", tree.name, [tree], tree.unit)));
  }
}
