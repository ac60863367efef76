// Puts the page together.
import { Chart } from "./chart.js";
import { readView } from "./data.js";
import { byId, html } from "./elements.js";
import { Ledger, METRICS } from "./figures.js";
import { Graph } from "./graph.js";
import { followKeys } from "./keyboard.js";
import { drawLegend } from "./legend.js";
import { Navigator } from "./navigator.js";
import { OverviewMap } from "./overview-map.js";
import { Panel } from "./panel.js";
import { followPointer } from "./pointer.js";
import { followPrinting } from "./print.js";
import { Search } from "./search.js";
import { Store } from "./store.js";
import { followTheme } from "./theme.js";
import { Viewport } from "./viewport.js";

function start() {
  const view = readView(byId("view").textContent);
  const ledger = new Ledger(view);
  const store = new Store({
    open: new Set(),
    directions: new Map(), // box -> which way flow runs inside it
    limits: new Map(), // box -> how many of its very many children are drawn
    wanted: new Set(), // boxes drawn beyond that limit
    selected: null,
    focused: null,
    hits: new Set(),
    metric: view.metric,
    colour: "stage",
    fullPaths: false,
  });
  const graph = new Graph(view, store, ledger);
  const map = new OverviewMap(view);
  const viewport = new Viewport(graph, map);
  const navigator = new Navigator(view, store, graph, viewport);
  const chart = new Chart(view, store, ledger, navigator);
  const panel = new Panel(view, store, ledger, navigator);

  store.on(["open", "limits", "wanted", "metric", "fullPaths", "directions"], () => {
    graph.draw();
    map.draw(graph);
  });
  store.on(["selected", "focused", "hits"], () => graph.mark());
  store.on(["metric"], () => chart.draw());
  store.on(["selected", "hits"], () => chart.mark());
  store.on(["selected"], () => panel.draw());
  store.on(["colour", "metric"], () => drawLegend(view, store.state));
  store.on(["colour"], () => colourBy(store.state.colour));

  byId("caption").textContent = view.caption[0] ?? "";
  followPointer(graph, navigator);
  followKeys(graph, navigator, viewport, store);
  followTheme();
  followPrinting(chart, viewport);
  connectTools(store, navigator, viewport);
  byId("metric").value = view.metric;
  new Search(view, store, navigator);
  colourBy(store.state.colour);
  drawLegend(view, store.state);
  chart.draw();
  panel.draw();
  navigator.reset();
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
