// What a box costs: inclusive, its own, and as a share of its stage and of the whole run.
import { exact, formatCount } from "./numbers.js";
import { shortCount, shown } from "./texts.js";

const inUnit = (unit) => ({ unit, format: (value) => shown(value, unit) });

/** Every figure, as the panel lists them. */
export const FIGURES = [
  { key: "flops", label: "FLOPs", ...inUnit("FLOP") },
  { key: "macs", label: "MACs", ...inUnit("MAC") },
  { key: "bytes_moved", label: "Bytes moved", ...inUnit("B") },
  { key: "parameters", label: "Parameters", unit: "", format: shortCount },
  { key: "activation_bytes", label: "Activation memory", ...inUnit("B") },
  { key: "unpriced_ops", label: "Unpriced ops", unit: "", format: formatCount },
];

const PRICED = new Set(["flops", "macs", "bytes_moved"]);

/** Those that boxes and chart can be measured by; calls of a box count with the calls of all boxes inside it. */
export const METRICS = [
  ...FIGURES.filter(({ key }) => ["flops", "bytes_moved", "parameters", "activation_bytes"].includes(key)),
  { key: "calls", label: "Calls", format: (value) => `${formatCount(value)} in all` },
];

/** The metric with this key. */
export function metricNamed(key) {
  return METRICS.find((metric) => metric.key === key);
}

/** Looks figures up in a view; sums over stages are made when first asked for. */
export class Ledger {
  constructor(view) {
    this.view = view;
    this.columnOf = new Map(view.figureNames.map((name, column) => [name, column]));
    this.stageSums = new Map();
    this.callsWithin = callsWithin(view.boxes);
  }

  inclusive(box, key) {
    return key === "calls" ? this.callsWithin[box.number] : exact(box.figureRow[this.columnOf.get(key)]);
  }

  /** The sign of a lower bound before a figure with that many ops in it that have no price, or nothing. */
  sign(value, key, unpriced) {
    return value !== null && PRICED.has(key) && unpriced > 0n ? "≥ " : "";
  }

  /** The sign before the inclusive figure of a box. */
  signOf(box, key) {
    return this.sign(this.inclusive(box, key), key, this.inclusive(box, "unpriced_ops"));
  }

  own(box, key) {
    return key === "calls" ? box.ownCalls : exact(box.ownRow[this.columnOf.get(key)]);
  }

  total(key) {
    if (key !== "calls") return exact(this.view.totalRow[this.columnOf.get(key)]);
    return this.view.roots.reduce((sum, box) => sum + this.callsWithin[box.number], 0n);
  }

  /** What runs in this stage, in all boxes; null where a part is unknown and the others add nothing. */
  stageTotal(stage, key) {
    const name = `${key} ${stage}`;
    if (!this.stageSums.has(name)) this.stageSums.set(name, this.sumOwn(this.view.boxes, stage, key));
    return this.stageSums.get(name);
  }

  /** What the run counts and no box holds: modules that did not run, ops outside any module. */
  outsideBoxes(key) {
    const parts = [this.total(key), ...this.view.roots.map((box) => this.inclusive(box, key))];
    return parts.includes(null) ? null : parts.reduce((rest, part) => rest - part);
  }

  /** The part of a box that belongs to the box's own stage: a box may hold boxes of other stages. */
  partInStage(box, key) {
    return this.sumOwn(box.walk(), box.stage, key);
  }

  sumOwn(boxes, stage, key) {
    const column = this.columnOf.get(key);
    let sum = 0n;
    let isUnknown = false;
    for (const box of boxes) {
      if (box.stage !== stage) continue;
      if (box.ownRow[column] === null) isUnknown = true;
      else sum += BigInt(box.ownRow[column]);
    }
    return isUnknown && (sum === 0n || !PRICED.has(key)) ? null : sum;
  }
}

/** Calls of each box and of all inside it. Outer boxes come before inner ones, so the sums are made from the end. */
function callsWithin(boxes) {
  const sums = boxes.map((box) => box.ownCalls);
  for (let number = boxes.length - 1; number >= 0; number -= 1) {
    const { parentNumber } = boxes[number];
    if (parentNumber >= 0) sums[parentNumber] += sums[number];
  }
  return sums;
}
