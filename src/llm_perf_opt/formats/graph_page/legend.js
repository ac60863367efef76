// What the colours mean.
import { hueOf } from "./box-colours.js";
import { byId, html } from "./elements.js";
import { metricNamed } from "./figures.js";
import { oneLine } from "./text-width.js";

export function drawLegend(view, state) {
  byId("legend").replaceChildren(...(state.colour === "stage" ? stageKeys(view) : [costKey(state)]));
}

function stageKeys(view) {
  return view.stagesSeen.map((stage) => {
    const key = html("span", { class: "key" }, html("i"), oneLine(stage).slice(0, 40));
    key.style.setProperty("--hue", hueOf(stage, view));
    return key;
  });
}

function costKey(state) {
  return html("span", { class: "key" }, "0 %", html("i", { class: "ramp" }), `100 % of all ${metricNamed(state.metric).label.toLowerCase().replace("flops", "FLOPs")}`);
}
