// Puts the page together.
import { Address } from "./address.js";
import { Chart } from "./chart.js";
import { readRun } from "./data.js";
import { byId, html } from "./elements.js";
import { Ledger, METRICS } from "./figures.js";
import { Graph } from "./graph.js";
import { followKeys } from "./keyboard.js";
import { drawLegend } from "./legend.js";
import { Navigator } from "./navigator.js";
import { OverviewMap } from "./overview-map.js";
import { Panel } from "./panel.js";
import { followPhases } from "./phases.js";
import { followPointer } from "./pointer.js";
import { followPrinting } from "./print.js";
import { Search } from "./search.js";
import { Store, emptyPicture } from "./store.js";
import { followTheme } from "./theme.js";
import { Viewport } from "./viewport.js";

function start() {
  const run = readRun(byId("view").textContent);
  const phases = run.views.map((view) => ({ view, ledger: new Ledger(view) }));
  const store = new Store({
    ...emptyPicture(),
    phase: phases[run.views.indexOf(run.first)],
    phases: phases.length,
    query: "",
    metric: run.metric,
    colour: "stage",
    fullPaths: false,
  });
  const graph = new Graph(store);
  const map = new OverviewMap(store);
  const viewport = new Viewport(graph, map);
  const navigator = new Navigator(store, graph, viewport);
  const chart = new Chart(store, navigator);
  const panel = new Panel(store, navigator);

  store.on(["phase"], () => chart.forget());
  store.on(["phase", "open", "limits", "wanted", "metric", "fullPaths", "directions"], () => {
    graph.draw();
    map.draw(graph);
  });
  store.on(["selected", "focused", "hits", "match"], () => graph.mark());
  store.on(["phase", "metric"], () => chart.draw());
  store.on(["selected", "hits"], () => chart.mark());
  store.on(["phase", "selected"], () => panel.draw());
  store.on(["open", "limits", "wanted"], () => store.state.selected ?? panel.draw());
  store.on(["phase", "colour", "metric"], () => drawLegend(store.view, store.state));
  store.on(["colour"], () => colourBy(store.state.colour));

  followPointer(graph, navigator);
  followKeys(graph, navigator, viewport, store);
  followTheme();
  followPrinting(chart, viewport);
  followPhases(phases, store, navigator);
  connectTools(store, navigator, viewport);
  const search = new Search(phases, store, navigator);
  colourBy(store.state.colour);
  drawLegend(store.view, store.state);
  chart.draw();
  panel.draw();
  new Address(phases, store, navigator, search);
  performance.mark("ready");
  document.documentElement.dataset.ready = "yes";
}

function colourBy(colour) {
  document.documentElement.dataset.colour = colour;
}

function connectTools(store, navigator, viewport) {
  byId("metric").append(...METRICS.map(({ key, label }) => html("option", { value: key }, label)));
  for (const name of ["metric", "colour"]) {
    byId(name).addEventListener("change", (event) => store.change({ [name]: event.target.value }));
  }
  byId("full-paths").addEventListener("change", (event) => store.change({ fullPaths: event.target.checked }));
  const show = () => {
    byId("metric").value = store.state.metric;
    byId("colour").value = store.state.colour;
    byId("full-paths").checked = store.state.fullPaths;
  };
  store.on(["metric", "colour", "fullPaths"], show);
  show();
  const acts = {
    "open-level": () => navigator.openLevel(),
    "close-level": () => navigator.closeLevel(),
    reset: () => navigator.reset(),
    "zoom-in": () => viewport.scaleBy(1.25),
    "zoom-out": () => viewport.scaleBy(0.8),
    fit: () => viewport.fit(),
  };
  for (const [id, act] of Object.entries(acts)) byId(id).addEventListener("click", act);
}

start();
