// The page: a choice comes from the controls, figures follow at once, pictures with the next frame.

import { frontierChart, memoryChart, rooflineChart, timeChart } from "./charts.js";
import { Controls } from "./controls.js";
import { byId, html } from "./elements.js";
import { allFigures, Model } from "./figures.js";
import { leaf, node } from "./formulas.js";
import { inSeconds, shown } from "./texts.js";
import { figureButton, openWitness, witnesses } from "./witness.js";

const data = JSON.parse(document.getElementById("data").textContent);
const model = new Model(data);
const BROKEN = { memory: "The weights leave no room for such a request.", cache: "That many users do not fit: the KV cache is full.", count: "A replica of this plan needs more GPUs.", plan: "This plan does not run on the GPU." };

function answer({ memory, serve, gpu, ranks }, choice) {
  const parts = [];
  if (!memory) return [BROKEN.plan];
  const where = `${ranks} x ${gpu.name}`;
  const need = memory.weights.value + memory.working.value + memory.outside.value + memory.cache.value;
  if (memory.fits) parts.push(`${choice.batch.toLocaleString("en-US")} sequences of ${choice.context.toLocaleString("en-US")} tokens fit on ${where}. `);
  else parts.push(html("span", { class: "over" }, `${shown(need - memory.budget.value, "B")} over`), ` on each GPU of ${where} with ${choice.batch.toLocaleString("en-US")} sequences of ${choice.context.toLocaleString("en-US")} tokens. `);
  if (serve.broken) parts.push(html("span", { class: "over" }, BROKEN[serve.broken]));
  else parts.push(`${choice.users.toLocaleString("en-US")} users on ${choice.count} GPUs: TTFT ${inSeconds(serve.ttft.value)}, TPOT ${inSeconds(serve.tpot.value)}, ${shown(serve.tokens.value, "/s").replace("/s", "")} output tokens/s per GPU.`);
  return parts;
}

function memoryButtons({ memory }) {
  const known = memory ?? {};
  const endless = memory && !known.longest ? "no limit" : undefined;
  return [["weights", "weights"], ["working", "working memory"], ["outside", "outside PyTorch"], ["cache", "KV cache"], ["budget", "limit"], ["room", "room for the cache"], ["largest_batch", "largest batch"], ["longest", "largest context"]].map(
    ([key, label]) => figureButton(`memory-${key}`, label, known[key], key === "longest" ? endless : undefined),
  );
}

function serveButtons({ serve }) {
  return [["ttft", "TTFT"], ["tpot", "TPOT"], ["speed", "tokens/s per user"], ["tokens", "output tokens/s per GPU"], ["requests", "requests"], ["cost", "cost per million requests"]].map(([key, label]) =>
    figureButton(`serve-${key}`, label, serve.broken ? null : serve[key]),
  );
}

function timeButtons({ times, bounds }) {
  return ["prefill", "decode"].flatMap((name) => [
    figureButton(`time-${name}`, name === "decode" ? "decode step" : "prefill", times[name]),
    figureButton(`bound-${name}`, `lower bound of ${name}`, bounds[name]),
    figureButton(`share-${name}`, `${name} over its bound`, times[name] && bounds[name] ? node("quotient", "time over bound", [times[name], bounds[name]]) : null),
  ]);
}

function rooflineButtons({ phases, times, ranks }) {
  return ["prefill", "decode"].flatMap((name) => {
    const { necessary_flops: flops, necessary_bytes: bytes } = phases[name] ?? {};
    const ratio = flops && bytes ? node("quotient", "FLOP per byte", [node("number", "FLOPs", [flops]), node("number", "bytes", [bytes])], "FLOP/B") : null;
    const time = times[name];
    const rate = flops && time ? node("quotient", "rate", [node("number", "FLOPs", [flops]), node("times", "GPU time", [time, leaf("GPUs", ranks)], "s")], "FLOP/s") : null;
    return [figureButton(`intensity-${name}`, `${name}, FLOP/B`, ratio), figureButton(`rate-${name}`, `${name}, per GPU`, rate)];
  });
}

const ROWS = [
  ["flops", "FLOPs"], ["vector_flops", "vector FLOPs"], ["bytes_moved", "bytes moved"], ["launches", "kernel launches"], ["peak_bytes", "peak of activations"],
  ["needed_bytes", "memory of this code"], ["weight_bytes", "weights"], ["parameters", "parameters"], ["cache_bytes", "KV cache"], ["necessary_flops", "necessary FLOPs"], ["necessary_bytes", "necessary bytes"],
];

function codeTable({ phases }) {
  const names = Object.keys(phases);
  // A prefill leaves the cache that the decode step at the same point is handed.
  const treeOf = (name, key) => phases[name]?.[key] ?? (key === "cache_bytes" ? phases.decode?.[key] : null);
  const cells = (key) => names.map((name) => html("td", {}, figureButton(`${name}-${key}`, "", treeOf(name, key))));
  return html(
    "table",
    {},
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "figure"), ...names.map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, ...ROWS.map(([key, label]) => html("tr", {}, html("th", { scope: "row" }, label), ...cells(key)))),
  );
}

function publishedNote(runs) {
  if (!runs.length) return "No published run of this model on this GPU, with such weights and lengths, is known here: none is drawn.";
  const [{ input_tokens: input, output_tokens: output, weight_bits: bits }] = runs;
  const engines = [...new Set(runs.map(({ engine }) => engine))].join(", ");
  const number = runs.length === 1 ? "The circle is a published run" : `The circles are ${runs.length} published runs`;
  return `${number} with ${input.toLocaleString("en-US")} tokens in, ${output.toLocaleString("en-US")} out and ${bits}-bit weights (${engines}): ${data.published.source}.`;
}

function notes({ entry, phases, published }) {
  const unproven = Object.entries(phases).filter(([, figures]) => !figures).map(([name]) => name);
  const texts = [
    unproven.length && `No proven cell has this batch and context for ${unproven.join(" and ")}: trace the point.`,
    entry && !entry.table && "This plan has no step times here: its weights leave no room for a cache, or no table knows its kernels.",
    entry?.table && `Step times come from: ${entry.table.origin}${entry.measured ? "" : ". No kernels of this GPU were measured: its times come from the data sheet"}.`,
    "Batch and context are one step: a prefill of that batch, and a decode step on that context. Users, input and output are a server in a steady state, as llm-perf-opt serve has it.",
    "Figures of the model's own code are of one device without a plan.",
    publishedNote(published),
  ];
  return texts.filter(Boolean).map((text) => html("li", {}, text));
}

let waiting = 0;
function show(choice) {
  const began = performance.now();
  const figures = allFigures(model, choice);
  witnesses.clear();
  byId("answer").replaceChildren(...answer(figures, choice));
  byId("memory-figures").replaceChildren(...memoryButtons(figures));
  byId("serve-figures").replaceChildren(...serveButtons(figures));
  byId("time-figures").replaceChildren(...timeButtons(figures));
  byId("roofline-figures").replaceChildren(...rooflineButtons(figures));
  byId("code-figures").replaceChildren(codeTable(figures));
  byId("notes").replaceChildren(...notes(figures));
  document.body.dataset.figuresMs = String(performance.now() - began);
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    const drawing = performance.now();
    memoryChart(figures);
    timeChart(figures);
    rooflineChart(figures);
    frontierChart(model, choice, figures);
    document.body.dataset.chartsMs = String(performance.now() - drawing);
  });
}

byId("version").textContent = data.version;
const controls = new Controls(byId("controls"), data, show);
byId("figures").addEventListener("click", (event) => {
  const button = event.target.closest("[data-figure]");
  if (button) openWitness(button.dataset.figure);
});
byId("theme").addEventListener("click", () => {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  show(controls.choice);
});
