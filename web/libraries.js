// What the page takes from others: one global, `vendor`, made by build.mjs.
export { graphlib, layout } from "@dagrejs/dagre";
export { hierarchy, partition } from "d3-hierarchy";
export { select } from "d3-selection";
export { zoom, zoomIdentity } from "d3-zoom";
