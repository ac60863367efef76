// Fits picture and chart to a sheet of paper, which page.css measures out for `printing`.
import { byId } from "./elements.js";

export function followPrinting(chart, viewport) {
  const lay = (isPrinting) => {
    document.documentElement.classList.toggle("printing", isPrinting);
    byId("map").style.visibility = isPrinting ? "hidden" : "";
    chart.draw();
    if (isPrinting) viewport.fit();
    else viewport.showStart();
  };
  addEventListener("beforeprint", () => lay(true));
  addEventListener("afterprint", () => lay(false));
}
