// The four pictures, drawn by Observable Plot from the figures; colours are variables of the page's style.

import { html } from "./elements.js";
import { frontier } from "./figures.js";
import { shown } from "./texts.js";

const GIBI = 2 ** 30;
const STYLE = { background: "transparent", color: "currentColor", fontFamily: "inherit", fontSize: "11px" };
const MARGINS = { marginLeft: 52, marginRight: 18, marginTop: 22, marginBottom: 36, className: "plot" };

function draw(id, options, description) {
  const place = document.getElementById(id);
  const drawing = Plot.plot({ ...MARGINS, style: STYLE, width: Math.max(260, place.clientWidth), ariaLabel: description, ...options });
  drawing.setAttribute("role", "img");
  return [place, drawing];
}

function legend(entries) {
  return html("ul", { class: "legend" }, ...entries.map(([name, place]) => html("li", {}, html("i", { class: `swatch bar-${place}` }), name)));
}

/** Weights, working memory, what is outside PyTorch, and the cache, against the share of the GPU in use. */
export function memoryChart({ memory, gpu }) {
  if (!memory) return document.getElementById("memory-chart").replaceChildren();
  const parts = ["weights", "working", "outside", "cache"];
  const names = ["weights", "working memory", "outside PyTorch", "KV cache"];
  let before = 0;
  const bars = parts.map((part, place) => {
    const size = Number(memory[part].value) / GIBI;
    before += size;
    return { x1: before - size, x2: before, place };
  });
  const budget = Number(memory.budget.value) / GIBI;
  const visible = gpu.visible / GIBI;
  const words = `${parts.map((part, place) => `${names[place]} ${shown(memory[part].value, "B")}`).join(", ")}; ${shown(memory.budget.value, "B")} of the GPU are in use.`;
  const [place, drawing] = draw(
    "memory-chart",
    {
      height: 92,
      marginLeft: 8,
      x: { label: "GiB on each GPU", domain: [0, Math.max(before, visible) * 1.04], labelAnchor: "right" },
      y: { axis: null },
      marks: [
        Plot.barX(bars, { x1: "x1", x2: "x2", fill: (bar) => `var(--bar-${bar.place})`, insetTop: 4, insetBottom: 4 }),
        Plot.ruleX([visible], { stroke: "currentColor", strokeDasharray: "2,3" }),
        Plot.ruleX([budget], { stroke: "var(--over)", strokeWidth: 2 }),
        Plot.text([budget], { x: (limit) => limit, frameAnchor: "top", dy: -10, text: () => "limit", fill: "var(--over)" }),
      ],
    },
    words,
  );
  place.replaceChildren(legend(names.map((name, number) => [name, number])), drawing);
}

/** Prefill and decode as multiples of their lower bounds. */
export function timeChart({ times, bounds }) {
  const place = document.getElementById("time-chart");
  const rows = ["prefill", "decode"].filter((name) => times[name] && bounds[name]).map((name) => ({ name, ratio: times[name].value / bounds[name].value, text: `${shown(times[name].value, "s")}, bound ${shown(bounds[name].value, "s")}` }));
  if (!rows.length) return place.replaceChildren();
  const largest = Math.max(1.5, ...rows.map(({ ratio }) => ratio));
  const [, drawing] = draw(
    "time-chart",
    {
      height: 150,
      marginLeft: 58,
      x: { label: "time over its lower bound", domain: [0, largest * 1.1], ticks: 5 },
      y: { label: null, domain: ["prefill", "decode"] },
      marks: [
        Plot.barX(rows, { x: "ratio", y: "name", fill: "var(--bar-0)", fillOpacity: 0.75, insetTop: 4, insetBottom: 4 }),
        Plot.ruleX([1], { stroke: "var(--over)", strokeWidth: 2 }),
        Plot.text([1], { x: (bound) => bound, frameAnchor: "top", dy: -10, text: () => "lower bound", fill: "var(--over)" }),
        Plot.text(rows, { x: 0, y: "name", text: "text", textAnchor: "start", dx: 8, fill: "currentColor", stroke: "var(--surface)", strokeWidth: 4, fontSize: 12 }),
      ],
    },
    rows.map(({ name, text }) => `${name}: ${text}`).join("; "),
  );
  place.replaceChildren(drawing);
}

/** Necessary work over necessary bytes, and the rate at which the step reaches it, for each GPU of a replica. */
export function rooflineChart({ gpu, ranks, phases, times }) {
  const place = document.getElementById("roofline-chart");
  const points = ["prefill", "decode"].flatMap((name) => {
    const figures = phases[name];
    if (!times[name] || !figures?.necessary_flops || !figures.necessary_bytes) return [];
    const flops = Number(figures.necessary_flops.value);
    return [{ name, x: flops / Number(figures.necessary_bytes.value), y: flops / times[name].value / ranks / 1e12 }];
  });
  const dtypes = [...new Set(Object.values(phases).flatMap((figures) => (figures?.stages ?? []).flatMap(({ flops }) => flops.map(([dtype]) => dtype))))];
  const peak = Math.max(...dtypes.map((dtype) => gpu.peaks[dtype] ?? 0)) / 1e12;
  if (!points.length || !(peak > 0)) return place.replaceChildren(html("p", {}, "No step times are known here, so there is no point to draw."));
  const rate = gpu.bandwidth / 1e12;
  const low = Math.min(0.5, ...points.map(({ x }) => x / 2));
  const high = Math.max((peak / rate) * 8, ...points.map(({ x }) => x * 2));
  const roof = [low, peak / rate, high].map((x) => ({ x, y: Math.min(peak, x * rate) }));
  const words = points.map(({ name, x, y }) => `${name}: ${shown(x, "")} FLOP/B, ${shown(y * 1e12, "FLOP/s")} on each GPU`).join("; ");
  const [, drawing] = draw(
    "roofline-chart",
    {
      height: 230,
      x: { type: "log", label: "necessary FLOP per byte", domain: [low, high], ticks: 5, tickFormat: "~g" },
      y: { type: "log", label: "TFLOP/s per GPU", ticks: 5, tickFormat: "~g", domain: [Math.min(low * rate, ...points.map(({ y }) => y)) / 2, peak * 2] },
      marks: [
        Plot.gridX({ stroke: "currentColor", strokeOpacity: 0.12, ticks: 5 }),
        Plot.gridY({ stroke: "currentColor", strokeOpacity: 0.12, ticks: 5 }),
        Plot.line(roof, { x: "x", y: "y", stroke: "currentColor", strokeWidth: 1.5 }),
        Plot.dot(points, { x: "x", y: "y", r: 6, fill: ({ name }) => (name === "decode" ? "var(--bar-0)" : "var(--bar-3)") }),
        Plot.text(points, { x: "x", y: "y", text: "name", dy: 14, fill: "currentColor", stroke: "var(--surface)", strokeWidth: 4 }),
      ],
    },
    words,
  );
  place.replaceChildren(drawing);
}

/** Output tokens/s per GPU against tokens/s per user: every plan, the frontier, the chosen load, and published runs. */
export function frontierChart(model, choice, { serve, published }) {
  const place = document.getElementById("frontier-chart");
  const { points, best } = frontier(model, choice);
  if (!points.length) return place.replaceChildren(html("p", {}, "No plan of this GPU has step times and room for such a request."));
  const pointed = [
    ...points.map((point) => ({ ...point, who: `${point.plan}, ${point.sequences} sequences` })),
    ...published.map((run) => ({ ...run, who: `measured: ${run.engine}, ${run.gpus} GPUs, ${run.users} users` })),
  ];
  const chosen = serve.speed ? [{ speed: serve.speed.value, tokens: serve.tokens.value }] : [];
  const words = `The frontier runs from ${shown(best[0].speed, "")} tokens/s per user with ${shown(best[0].tokens, "")} tokens/s per GPU to ${shown(best.at(-1).speed, "")} with ${shown(best.at(-1).tokens, "")}.`;
  const [, drawing] = draw(
    "frontier-chart",
    {
      height: 230,
      x: { type: "log", label: "tokens/s per user", ticks: 5, tickFormat: "~g", nice: true },
      y: { type: "log", label: "output tokens/s per GPU", ticks: 5, tickFormat: "~s", nice: true },
      marks: [
        Plot.gridX({ stroke: "currentColor", strokeOpacity: 0.12, ticks: 5 }),
        Plot.gridY({ stroke: "currentColor", strokeOpacity: 0.12, ticks: 5 }),
        Plot.dot(points, { x: "speed", y: "tokens", r: 2, fill: "currentColor", fillOpacity: 0.35 }),
        Plot.line(best, { x: "speed", y: "tokens", stroke: "var(--bar-1)", strokeWidth: 2 }),
        Plot.dot(published, { x: "speed", y: "tokens", r: 3.5, stroke: "var(--bar-3)", strokeWidth: 1.5, className: "measured" }),
        Plot.dot(chosen, { x: "speed", y: "tokens", r: 6, fill: "var(--bar-0)", stroke: "var(--surface)" }),
        Plot.tip(pointed, Plot.pointer({ x: "speed", y: "tokens", fill: "var(--surface)", title: ({ who, speed, tokens }) => `${who}\n${shown(speed, "")} tokens/s per user\n${shown(tokens, "")} tokens/s per GPU` })),
      ],
    },
    words,
  );
  place.replaceChildren(drawing);
}
