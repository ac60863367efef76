// A figure that can be clicked, and what opens then: the formula with its values, what it sums, and its source.

import { html } from "./elements.js";
import { SIGNS, workedOut } from "./formulas.js";
import { exactly, shown, UNKNOWN } from "./texts.js";

const MOST_TERMS = 60; // of one sum that are listed
const MOST_LINES = 200; // of all sums together
const DEEPEST = 5;

/** The trees of the figures on the page, by the name of their button. */
export const witnesses = new Map();

const title = html("h2", { id: "witness-title" });
const body = html("div", { id: "witness-body", tabindex: "0", role: "region", "aria-label": "How the figure comes about" });
const dialog = html("dialog", { id: "witness", "aria-labelledby": "witness-title" }, html("form", { method: "dialog" }, title, html("button", { "aria-label": "Close" }, "×")), body);
document.body.append(dialog);

/** A button with a figure; one without a tree shows that it is unknown, or the text given. */
export function figureButton(id, label, tree, instead = UNKNOWN) {
  if (!tree) return html("button", { type: "button", class: "figure", disabled: true }, ...(label ? [html("span", {}, label)] : []), html("b", {}, instead));
  witnesses.set(id, { label: label || tree.name, tree });
  return html(
    "button",
    { type: "button", class: "figure", "data-figure": id, "data-exact": String(tree.value), title: exactly(tree.value, tree.unit) },
    ...(label ? [html("span", {}, label)] : []),
    html("b", {}, shown(tree.value, tree.unit)),
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

/** Without sums of one term. */
function plain(tree) {
  return tree.op === "sum" && tree.of.length === 1 ? plain(tree.of[0]) : tree;
}

/** The formula of a tree and its terms, each with its own as far as there is room for `lines.left` lines. */
function derivation(tree, depth, lines) {
  const terms = tree.of.slice(0, MOST_TERMS);
  lines.left -= terms.length;
  return [html("div", { class: "formula" }, `= ${formula(tree)}`), html("ul", {}, ...terms.map((part) => listed(part, depth + 1, lines)))];
}

function listed(tree, depth, lines) {
  const line = html("li", {}, `${tree.name}: ${exactly(tree.value, tree.unit)}`);
  const worked = plain(tree);
  if (worked.op && depth < DEEPEST && lines.left > 0) line.append(...derivation(worked, depth, lines));
  else if (!worked.op && worked.from) line.append(html("div", { class: "from" }, worked.from));
  return line;
}

/** Sources of a tree, each once. */
function* sources({ from, of }) {
  if (from) yield from;
  for (const part of of ?? []) yield* sources(part);
}

export function openWitness(id) {
  const { label, tree, text = shown(tree.value, tree.unit) } = witnesses.get(id);
  title.textContent = `${label}: ${text}`;
  const parts = [html("p", {}, exactly(tree.value, tree.unit))];
  if (plain(tree).op) parts.push(...derivation(plain(tree), -1, { left: MOST_LINES }));
  parts.push(html("h3", {}, "Source"), ...[...new Set(sources(tree))].map((source) => html("p", { class: "from" }, source)));
  dialog.dataset.value = String(tree.value);
  dialog.dataset.worked = String(workedOut(tree));
  body.replaceChildren(...parts);
  dialog.showModal();
  body.scrollTop = 0;
}
