// Reads the embedded views, one for each phase. A box row has the order of `_box_row` in html_format.py.
import { plural } from "./numbers.js";

const IS_OPEN = 1;
const IS_SPLIT = 2; // its children are its own members again, told apart by cost
const IS_LEFT_OUT = 4; // stands for what a filter took out of the box around it

export class Box {
  constructor(number, row, tables) {
    const [parent, id, className, path, stage, instances, calls, callsPerInstance, loops, figures, own, params, context, inputs, outputs, members, flags, communication, communicationFacts, witnesses] = row;
    const { strings } = tables;
    this.number = number;
    this.parentNumber = parent;
    this.id = strings[id];
    this.className = strings[className];
    this.path = strings[path];
    this.stage = strings[stage];
    this.instances = instances;
    this.calls = calls;
    this.callsPerInstance = callsPerInstance;
    this.loops = loops.map(([kind, text, over]) => ({ kind, text, over }));
    this.figureRow = figures;
    this.ownRow = own;
    this.isOpenAtFirst = (flags & IS_OPEN) !== 0;
    this.isSplit = (flags & IS_SPLIT) !== 0;
    this.isLeftOut = (flags & IS_LEFT_OUT) !== 0;
    this.communication = strings[communication]; // in short; empty on one device
    this.communicationFacts = communicationFacts.map(([kind, amount]) => [strings[kind], strings[amount]]);
    this.parent = null;
    this.children = [];
    this.arrowsIn = [];
    this.arrowsOut = [];
    this.refs = { params, context, inputs, outputs, members, witnesses, tables };
  }

  get label() {
    return this.isLeftOut ? `${this.className}: ${this.place}` : `${this.className} ${this.place}`;
  }

  /** `@ path`; for modules left out, how many they are. */
  get place() {
    if (!this.isLeftOut) return `@ ${this.path || "(root)"}`;
    return `${plural(this.instances, "module")} of ${this.stage}`;
  }

  /** Calls of its own, without the boxes inside it. */
  get ownCalls() {
    return this.isSplit ? 0n : BigInt(this.calls);
  }

  get level() {
    return this.parent ? this.parent.level + 1 : 1;
  }

  /** Constructor parameters as pairs of texts. */
  get params() {
    return textPairs(this.refs.params, this.refs.tables);
  }

  /** What the layer around an expert says of its experts, as pairs of texts. */
  get context() {
    return textPairs(this.refs.context, this.refs.tables);
  }

  get inputs() {
    return tensorGroups(this.refs.inputs, this.refs.tables);
  }

  get outputs() {
    return tensorGroups(this.refs.outputs, this.refs.tables);
  }

  /** How the own figure in this column comes about, as a row of `treeOf`; null where the trace alone says it. */
  witness(column) {
    return this.refs.tables.witnesses[this.refs.witnesses[column]] ?? null;
  }

  /** Paths of all instances. */
  get members() {
    const { members, tables } = this.refs;
    const found = [];
    for (let at = 0; at < members.length; at += 2) found.push(...tables.strings.slice(members[at], members[at] + members[at + 1]));
    return found;
  }

  /** Ancestors, nearest first. */
  *ancestors() {
    for (let box = this.parent; box; box = box.parent) yield box;
  }

  /** The box and everything inside it, outer before inner. */
  *walk() {
    const waiting = [this];
    while (waiting.length) {
      const box = waiting.pop();
      yield box;
      for (let at = box.children.length - 1; at >= 0; at -= 1) waiting.push(box.children[at]);
    }
  }
}

function textPairs(number, tables) {
  return tables.params[number].map(([key, value]) => [tables.strings[key], tables.strings[value]]);
}

function tensorGroups(number, tables) {
  return tables.tensors[number].map(([tensors, calls]) => ({ tensors: tensors.map((at) => tables.strings[at]), calls }));
}

/** Texts from their packed form: a number says how many letters the next one begins with as the one before it. */
function unpacked(packed) {
  const strings = [];
  let shared = 0;
  for (const entry of packed) {
    if (typeof entry === "number") {
      shared = entry;
      continue;
    }
    strings.push((strings.at(-1) ?? "").slice(0, shared) + entry);
    shared = 0;
  }
  return strings;
}

/** Everything from its JSON text: the views of all phases, and with which the page begins. */
export function readRun(text) {
  const raw = JSON.parse(text);
  const tables = { strings: unpacked(raw.strings), params: raw.params, tensors: raw.tensors, witnesses: raw.witnesses };
  const views = raw.phases.map((phase) => readView(phase, raw, tables));
  const stages = [...new Set(views.flatMap((view) => view.stages))]; // one colour for a stage on the whole page
  for (const view of views) view.stages = stages;
  return { views, first: views[raw.first], metric: raw.metric };
}

function readView(raw, run, tables) {
  const boxes = raw.boxes.map((row, number) => new Box(number, row, tables));
  for (const box of boxes) {
    if (box.parentNumber < 0) continue;
    box.parent = boxes[box.parentNumber];
    box.parent.children.push(box);
  }
  for (const [source, target, calls] of raw.arrows) {
    const arrow = { source: boxes[source], target: boxes[target], calls };
    arrow.source.arrowsOut.push(arrow);
    arrow.target.arrowsIn.push(arrow);
  }
  return {
    name: raw.name,
    title: raw.title,
    caption: raw.caption,
    stages: raw.stages,
    fits: run.fits,
    strings: tables.strings,
    figureNames: run.figures,
    totalRow: raw.totals,
    stagesSeen: raw.stages.filter((stage) => boxes.some((box) => box.stage === stage)),
    boxes,
    roots: boxes.filter((box) => !box.parent),
  };
}
