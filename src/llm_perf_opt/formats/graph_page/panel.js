// Everything about one box, or about the whole run when none is selected.
import { byId, html } from "./elements.js";
import { FIGURES } from "./figures.js";
import { formatCount, formatShare, plural, shareOf } from "./numbers.js";
import { captionLines } from "./phases.js";
import { shortLabel } from "./box-texts.js";
import { FigureTrees, witnessed, followFigures } from "./witnesses.js";
import { witnesses } from "./witness.js";
import { oneLine } from "./text-width.js";

const FEW = 60;

export class Panel {
  constructor(store, navigator) {
    Object.assign(this, { store, navigator });
    this.area = byId("panel");
    followFigures(this.area);
  }

  get view() {
    return this.store.view;
  }

  get ledger() {
    return this.store.ledger;
  }

  get trees() {
    if (this.treesOf?.view !== this.view) this.treesOf = new FigureTrees(this.view, this.ledger);
    return this.treesOf;
  }

  draw() {
    const { selected } = this.store.state;
    witnesses.clear();
    this.area.replaceChildren(...(selected ? this.boxParts(selected) : this.wholeParts()));
    this.area.scrollTop = 0;
  }

  get wholeTitle() {
    return this.store.state.phases > 1 ? `The whole ${oneLine(this.view.name)}` : "The whole run";
  }

  wholeParts() {
    const rows = FIGURES.map(({ key, label, format }) => {
      const total = this.ledger.total(key);
      const shown = witnessed(`total-${key}`, label, format(total), total, () => this.trees.total(key));
      return row(label, [this.ledger.sign(total, key, this.ledger.total("unpriced_ops")), shown, everyDigit(total)]);
    });
    return [
      html("h2", {}, this.wholeTitle),
      html("ul", { class: "caption" }, ...captionLines(this.view, this.store.state).map((line) => html("li", {}, line))),
      table("Totals", [], rows),
      ...this.stageTable(),
      html("p", { class: "hint" }, "Click a box for its figures. Double-click, or the triangle, opens it. Arrow keys walk the tree, / searches, Ctrl + wheel zooms."),
    ];
  }

  stageTable() {
    const shown = FIGURES.filter(({ key }) => ["flops", "bytes_moved", "parameters", "activation_bytes"].includes(key));
    const line = (name, parts, unpriced, treeOfKey) =>
      html("tr", {}, html("th", { scope: "row" }, name), ...shown.map(({ key, label, format }, at) =>
        html("td", {}, this.ledger.sign(parts[at], key, unpriced),
          witnessed(`stage-${name}-${key}`, `${label} of ${name}`, format(parts[at]), parts[at], () => treeOfKey(key)),
          html("small", {}, this.share(`stage-${name}-${key}-share`, `${name} of all ${label}`, parts[at], this.ledger.total(key), () => treeOfKey(key), () => this.trees.total(key))))));
    const rows = this.view.stagesSeen.map((stage) =>
      line(stage, shown.map(({ key }) => this.ledger.stageTotal(stage, key)), this.ledger.stageTotal(stage, "unpriced_ops"),
        (key) => this.stageTree(stage, key)));
    const rest = shown.map(({ key }) => this.ledger.outsideBoxes(key));
    if (rest.some(Boolean)) rows.push(line("in no box", rest, this.ledger.outsideBoxes("unpriced_ops"), (key) => this.trees.outside(key)));
    return rows.length ? [table("Stages", ["Stage", ...shown.map(({ label }) => label)], rows, "stages")] : [];
  }

  stageTree(stage, key) {
    return this.trees.ofStage(`stage ${oneLine(stage)}`, this.view.boxes, stage, key);
  }

  /** A share as a button; of nothing there is none. */
  share(id, label, part, whole, partTree, wholeTree) {
    const text = formatShare(part, whole);
    return witnessed(id, label, text, part === null || !whole ? null : shareOf(part, whole), () => this.trees.share(partTree(), wholeTree()));
  }

  boxParts(box) {
    return [
      html("header", { class: "box-title" },
        html("h2", { class: "wrap" }, box.className),
        html("button", { type: "button", class: "close", "aria-label": "Back to the whole run", title: "Back to the whole run (Esc)", onclick: () => this.navigator.clear() }, "×")),
      html("p", { class: "wrap mono" }, box.place),
      html("p", { class: "chips" },
        html("span", { class: "chip" }, `stage ${oneLine(box.stage)}`),
        ...box.loops.map((loop) => html("span", { class: `loop ${loop.kind}` }, `${loop.text} (${loop.over})`))),
      this.costTable(box),
      table("Calls", [], [
        row("Calls", formatCount(BigInt(box.calls))),
        row("Instances", formatCount(BigInt(box.instances))),
        row("Calls per instance", box.callsPerInstance.map((calls) => formatCount(BigInt(calls))).join(" or ")),
      ]),
      ...paramPart("Collectives", box.communicationFacts),
      ...this.flowPart(box),
      ...tensorPart("Inputs", box.inputs),
      ...tensorPart("Outputs", box.outputs),
      ...paramPart("Made with", box.params),
      ...paramPart("Experts of its layer", box.context),
      ...memberPart(box.members),
    ];
  }

  costTable(box) {
    const rows = FIGURES.map(({ key, label, format }) => {
      const value = this.ledger.inclusive(box, key);
      const own = this.ledger.own(box, key);
      const inStage = this.ledger.partInStage(box, key);
      const inclusiveTree = () => this.trees.inclusive(box, key);
      const stageTree = () => this.stageTree(box.stage, key);
      const partTree = () => this.trees.ofStage(`${oneLine(box.label)} in this stage`, box.walk(), box.stage, key);
      return html("tr", { "data-key": key },
        html("th", { scope: "row" }, label),
        html("td", { class: "inclusive" }, this.ledger.signOf(box, key), witnessed(`inclusive-${key}`, `${label} with all inside`, format(value), value, inclusiveTree), everyDigit(value)),
        html("td", { class: "own" }, this.ledger.sign(own, key, this.ledger.own(box, "unpriced_ops")), witnessed(`own-${key}`, `${label} of own ops`, format(own), own, () => this.trees.own(box, key))),
        html("td", { class: "of-stage" }, this.share(`of-stage-${key}`, `${label}, share of the stage`, inStage, this.ledger.stageTotal(box.stage, key), partTree, stageTree)),
        html("td", { class: "of-total" }, this.share(`of-total-${key}`, `${label}, share of the run`, value, this.ledger.total(key), inclusiveTree, () => this.trees.total(key))));
    });
    return table("Cost", ["", "with all inside", "own ops", "of stage", "of total"], rows, "cost");
  }

  flowPart(box) {
    const jump = (other, calls) => html("li", {}, html("button", { type: "button", class: "jump", onclick: () => this.navigator.select(other) }, oneLine(shortLabel(other))), ` ${plural(calls, "call")}`);
    const incoming = box.arrowsIn.map(({ source, calls }) => jump(source, calls));
    const outgoing = box.arrowsOut.map(({ target, calls }) => jump(target, calls));
    const inside = box.children.slice(0, FEW).map((child) => jump(child, child.calls));
    return [list("Takes tensors from", incoming), list("Gives tensors to", outgoing), list("Inside", inside)].flat();
  }
}

/** The exact number, under the one for people. */
function everyDigit(value) {
  return value === null || value < 1000n ? null : html("small", { class: "exact" }, formatCount(value));
}

function row(label, content) {
  return html("tr", {}, html("th", { scope: "row" }, label), html("td", {}, ...[content].flat()));
}

function table(title, heads, rows, name = "") {
  const head = heads.length ? [html("thead", {}, html("tr", {}, ...heads.map((text) => html("th", { scope: "col" }, text))))] : [];
  return html("table", { class: name || null }, html("caption", {}, title), ...head, html("tbody", {}, ...rows));
}

function list(title, items) {
  return items.length ? [html("h3", {}, title), html("ul", { class: "list" }, ...items)] : [];
}

function tensorPart(title, groups) {
  const items = groups.map(({ tensors, calls }) =>
    html("li", {}, ...tensors.map((tensor) => html("div", { class: "mono wrap" }, tensor)), html("small", {}, `in ${plural(calls, "call")}`)));
  return list(title, items);
}

function paramPart(title, params) {
  if (!params.length) return [];
  const rows = params.map(([key, value]) => html("tr", {}, html("th", { scope: "row", class: "mono wrap" }, key), html("td", { class: "mono wrap" }, value)));
  return [table(title, [], rows, "params")];
}

function memberPart(members) {
  if (members.length < 2) return [];
  const item = (path) => html("li", { class: "mono wrap" }, path);
  const items = html("ul", { class: "list" }, ...members.slice(0, FEW).map(item));
  const rest = members.slice(FEW);
  const button = html("button", { type: "button", onclick: () => {
    items.append(...rest.map(item));
    button.remove();
  } }, `Show ${rest.length.toLocaleString("en-US")} more`);
  return [html("h3", {}, "Instances"), items, ...(rest.length ? [button] : [])];
}
