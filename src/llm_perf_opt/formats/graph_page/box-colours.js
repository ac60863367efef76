// A box's colour: its stage by hue, or its share of the whole cost by warmth. page.css mixes the colours of the theme.
import { shareOf } from "./numbers.js";

const HUES = 7;

/** Sets what page.css needs to colour an element that stands for a box. */
export function paint(element, box, view, state, ledger) {
  paintHue(element, box, view);
  element.style.setProperty("--heat", `${(100 * heat(box, state, ledger)).toFixed(1)}%`);
}

/** Sets the colour of the box's stage only. */
export function paintHue(element, box, view) {
  element.style.setProperty("--hue", hueOf(box.stage, view));
}

/** A stage's colour by its place among all stages, so that two pages of one run agree. */
export function hueOf(stage, view) {
  return `var(--stage-${Math.max(0, view.stages.indexOf(stage)) % HUES})`;
}

/** A power of the share: a tenth of the cost must still differ from a hundredth. */
function heat(box, state, ledger) {
  return share(box, state, ledger) ** 0.45;
}

/** The part of the whole run that runs in the box, from 0 to 1. */
export function share(box, state, ledger) {
  return Math.min(1, shareOf(ledger.inclusive(box, state.metric), ledger.total(state.metric)));
}
