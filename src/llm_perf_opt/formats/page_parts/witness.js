// A figure that can be clicked, and what opens then: the formula with its values, what it sums, and its source.

import { element } from "./elements.js";
import { SIGNS, workedOut } from "./formulas.js";
import { exactly, shown, UNKNOWN } from "./texts.js";

const MOST_TERMS = 60; // of one sum that are listed

/** The trees of the figures on the page, by the name of their button. */
export const witnesses = new Map();

/** A button with a figure; one without a tree shows that it is unknown, or the text given. */
export function figureButton(id, label, tree, instead = UNKNOWN) {
  if (!tree) return element("button", { type: "button", className: "figure", disabled: true }, ...(label ? [element("span", {}, label)] : []), element("b", {}, instead));
  witnesses.set(id, { label: label || tree.name, tree });
  return element(
    "button",
    { type: "button", className: "figure", "data-figure": id, "data-exact": String(tree.value), title: exactly(tree.value, tree.unit) },
    ...(label ? [element("span", {}, label)] : []),
    element("b", {}, shown(tree.value, tree.unit)),
  );
}

function formula({ op, of }) {
  const values = of.slice(0, MOST_TERMS).map(({ value }) => (typeof value === "bigint" ? value.toLocaleString("en-US") : String(value)));
  if (of.length > MOST_TERMS) values.push("…");
  if (op === "sum") return values.join(" + ");
  if (op === "times") return values.join(" × ");
  if (op === "difference") return values.join(" − ");
  if (op === "quotient") return values.join(" ÷ ");
  return `${SIGNS[op] || op} (${values.join(", ")})`;
}

function listed(tree, depth) {
  const { name, value, unit, op, of, from } = tree;
  const line = element("li", {}, `${name}: ${exactly(value, unit)}`);
  if (op && depth < 5) line.append(element("div", { className: "formula" }, `= ${formula(tree)}`), element("ul", {}, ...of.slice(0, MOST_TERMS).map((part) => listed(part, depth + 1))));
  else if (from) line.append(element("div", { className: "from" }, from));
  return line;
}

/** Sources of a tree, each once. */
function sources(tree) {
  return [...new Set([tree.from, ...(tree.of ?? []).flatMap(sources)])].filter(Boolean);
}

export function openWitness(id) {
  const { label, tree } = witnesses.get(id);
  const dialog = document.getElementById("witness");
  const body = document.getElementById("witness-body");
  document.getElementById("witness-title").textContent = `${label}: ${shown(tree.value, tree.unit)}`;
  const parts = [element("p", {}, exactly(tree.value, tree.unit))];
  if (tree.op) parts.push(element("div", { className: "formula" }, `= ${formula(tree)}`), element("ul", {}, ...tree.of.slice(0, MOST_TERMS).map((part) => listed(part, 0))));
  parts.push(element("h3", {}, "Source"), ...sources(tree).map((source) => element("p", { className: "from" }, source)));
  dialog.dataset.value = String(tree.value);
  dialog.dataset.worked = String(workedOut(tree));
  body.replaceChildren(...parts);
  dialog.showModal();
  body.scrollTop = 0;
}
