// A small map of the whole picture, with the part that the window shows; it hides while all is in sight.
import { paintHue } from "./box-colours.js";
import { byId, svg } from "./elements.js";

const WIDEST = 160;
const HIGHEST = 100;

export class OverviewMap {
  constructor(store) {
    this.store = store;
    this.area = byId("map");
    this.onPoint = () => {};
    this.area.addEventListener("pointerdown", (event) => this.point(event));
    this.area.addEventListener("pointermove", (event) => {
      if (event.buttons) this.point(event);
    });
  }

  /** How much of the window's lower edge it takes; nothing while it is hidden. */
  get height() {
    return this.area.hidden ? 0 : this.area.offsetHeight + 10;
  }

  point(event) {
    const { left, top } = this.area.getBoundingClientRect();
    this.onPoint((event.clientX - left) / this.scale, (event.clientY - top) / this.scale);
  }

  /** One mark for each box on show. */
  draw(graph) {
    const { width, height, frames } = graph.layout;
    this.scale = Math.min(WIDEST / width, HIGHEST / height);
    this.size = { width, height };
    const marks = [...frames.keys()].map((box) => {
      const { x, y, width: across, height: down } = graph.placeOf(box);
      const mark = svg("rect", { class: "mark", x: x * this.scale, y: y * this.scale, width: across * this.scale, height: down * this.scale });
      paintHue(mark, box, this.store.view);
      return mark;
    });
    this.window = svg("rect", { class: "frame" });
    this.area.replaceChildren(svg("svg", { width: width * this.scale, height: height * this.scale }, ...marks, this.window));
  }

  /** Shows what the window shows. */
  frame(transform, canvas) {
    if (!this.window) return;
    const { k } = transform;
    const seen = { x: -transform.x / k, y: -transform.y / k, width: canvas.clientWidth / k, height: canvas.clientHeight / k };
    for (const [name, value] of Object.entries(seen)) this.window.setAttribute(name, value * this.scale);
    const { width, height } = this.size;
    this.area.hidden = seen.x <= 0 && seen.y <= 0 && seen.x + seen.width >= width && seen.y + seen.height >= height;
  }
}
