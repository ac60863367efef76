// Figures of tables that open where they come from.

import { leaf, node } from "./formulas.js";
import { openWitness, witnesses } from "./witness.js";

const { words, figures: traced } = JSON.parse(document.getElementById("witnesses").textContent);

/** A tree out of its row: name, unit, origin and operation are places in the list of words; whole numbers are texts. */
function treeOf([name, unit, origin, operation, ...rest]) {
  const [value] = rest;
  if (operation < 0) return leaf(words[name], typeof value === "string" ? BigInt(value) : value, words[unit], words[origin]);
  return node(words[operation], words[name], rest.map(treeOf), words[unit], words[origin]);
}

document.querySelector("main").addEventListener("click", (event) => {
  const number = event.target.closest("[data-figure]")?.dataset.figure;
  if (number === undefined) return;
  const [label, tree] = traced[number];
  if (!witnesses.has(number)) witnesses.set(number, { label: words[label], tree: treeOf(tree) });
  openWitness(number);
});
