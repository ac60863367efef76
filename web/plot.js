// The charts of the page that recomputes a model: one global, `Plot`, made by build.mjs.
export { axisX, axisY, barX, dot, gridX, gridY, line, plot, pointer, ruleX, ruleY, text, tip } from "@observablehq/plot";
