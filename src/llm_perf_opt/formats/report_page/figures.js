// Figures of tables that open where they come from.

import { treeOf } from "./formulas.js";
import { openWitness, witnesses } from "./witness.js";

const { words, figures: traced } = JSON.parse(document.getElementById("witnesses").textContent);

document.querySelector("main").addEventListener("click", (event) => {
  const number = event.target.closest("[data-figure]")?.dataset.figure;
  if (number === undefined) return;
  const [label, tree] = traced[number];
  if (!witnesses.has(number)) witnesses.set(number, { label: words[label], tree: treeOf(tree, words) });
  openWitness(number);
});
