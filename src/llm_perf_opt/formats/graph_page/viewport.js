// Pan and zoom of the graph. The wheel pans, as in any page; with Ctrl, or by a pinch, it zooms.
import { byId } from "./elements.js";

const EDGE = 16;
const LEGIBLE = 0.78;
const STILL_LEGIBLE = 0.62; // good enough when it shows everything

/** The scale at which a layout fills a window, with a little room around it. */
export function scaleToFit({ width, height }, room) {
  return Math.min(1.1, (room.width - 2 * EDGE) / width, (room.height - 2 * EDGE) / height);
}

export class Viewport {
  constructor(graph, map) {
    this.graph = graph;
    this.map = map;
    map.onPoint = (x, y) => this.centre(x, y);
    this.canvas = byId("canvas");
    this.transform = vendor.zoomIdentity;
    this.zoom = vendor
      .zoom()
      .scaleExtent([0.05, 4])
      .filter((event) => (event.type === "wheel" ? event.ctrlKey : !event.button))
      .on("zoom", ({ transform }) => this.apply(transform));
    this.surface = vendor.select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("wheel", (event) => this.wheelPan(event), { passive: false });
  }

  apply(transform) {
    this.transform = transform;
    this.map.frame(transform, this.canvas);
    this.graph.tree.style.transform = `translate(${transform.x}px, ${transform.y}px) scale(${transform.k})`;
  }

  wheelPan(event) {
    if (event.ctrlKey) return;
    event.preventDefault();
    const step = event.deltaMode === 1 ? 16 : 1;
    this.moveBy(-event.deltaX * step, -event.deltaY * step);
  }

  /** Moves the picture by screen pixels. */
  moveBy(x, y) {
    this.surface.call(this.zoom.translateBy, x / this.transform.k, y / this.transform.k);
  }

  scaleBy(factor) {
    this.surface.call(this.zoom.scaleBy, factor);
  }

  /** The window that the picture is seen through. */
  get room() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  get aspect() {
    return this.room.width / this.room.height;
  }

  /** The whole picture, in the middle. */
  fit() {
    const { width, height } = this.graph.layout;
    const { clientWidth, clientHeight } = this.canvas;
    const scale = scaleToFit(this.graph.layout, this.room);
    this.set((clientWidth - width * scale) / 2, (clientHeight - height * scale) / 2, scale);
  }

  /** The whole picture if it can be read then, otherwise its upper left part. */
  showStart() {
    this.fit();
    if (this.transform.k >= STILL_LEGIBLE) return;
    const { width } = this.graph.layout;
    const { clientWidth } = this.canvas;
    const scale = Math.min(1, Math.max(LEGIBLE, (clientWidth - 2 * EDGE) / width));
    this.set(Math.max(EDGE, (clientWidth - width * scale) / 2), EDGE, scale);
  }

  set(x, y, scale) {
    this.surface.call(this.zoom.transform, vendor.zoomIdentity.translate(x, y).scale(scale));
  }

  /** Brings a point of the picture to the middle of the window. */
  centre(x, y) {
    this.surface.call(this.zoom.translateTo, x, y);
  }

  /** Brings a box into sight, if it is not, and out from under the map. */
  reveal(box) {
    if (this.transform.k < 0.35) this.surface.call(this.zoom.scaleTo, LEGIBLE);
    const { x, y, width, height } = this.graph.placeOf(box);
    const { k } = this.transform;
    const [left, top] = this.transform.apply([x, y]);
    const moveX = shift(left, left + width * k, this.canvas.clientWidth);
    const moveY = shift(top, top + height * k, this.canvas.clientHeight - this.map.height);
    if (moveX || moveY) this.moveBy(moveX, moveY);
  }

  /** Runs a change of the layout while `box` stays where it is on the screen. */
  holding(box, change) {
    const before = this.graph.placeOf(box);
    change();
    const after = this.graph.placeOf(box);
    this.surface.call(this.zoom.translateBy, before.x - after.x, before.y - after.y);
  }
}

/** How far to move a span that is not in sight: to the middle, or, if it is too long for that, to its start. */
function shift(start, end, room) {
  if (start >= EDGE && end <= room - EDGE) return 0;
  if (end - start > room - 2 * EDGE) return start >= EDGE && start < room / 2 ? 0 : EDGE - start;
  return (room - start - end) / 2;
}
