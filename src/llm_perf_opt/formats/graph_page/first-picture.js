// The picture that a phase begins with: as many of its open boxes as can be read in the window.
import { bestDirections } from "./arrangement.js";
import { share } from "./box-colours.js";
import { layoutView } from "./layout.js";
import { openAtFirst, shownBoxes } from "./visible.js";
import { scaleToFit } from "./viewport.js";

const READABLE = 0.76; // the smallest letters are then 8 pixels high, names 10
const GAIN = 1.8; // more than turning boxes ever gained
const FEWEST = 4; // boxes; a picture of fewer says nothing, so it is rather cut

/** `open` and `directions` for a window of this width and height. Outer boxes come first, then the costly ones. */
export function firstPicture(view, state, ledger, room) {
  const all = openAtFirst(view);
  const cost = (box) => share(box, state, ledger);
  const ordered = [...all].sort((one, other) => one.level - other.level || cost(other) - cost(one) || one.number - other.number);
  const opened = (count) => ({ ...state, open: new Set(ordered.slice(0, count)) });
  const picture = (count) => arranged(view, opened(count), ledger, room);
  if (!view.fits) return picture(ordered.length);
  const mayFit = (count) => GAIN * scaleToFit(layoutView(view, opened(count), ledger), room) >= READABLE;
  const readable = (count) => {
    const tried = mayFit(count) ? picture(count) : null;
    return tried && tried.scale >= READABLE ? tried : null;
  };
  const whole = readable(ordered.length);
  if (whole) return whole;
  let best = picture(fewest(view, state, ordered));
  let low = best.open.size;
  let high = ordered.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    const tried = readable(middle);
    if (tried) [best, low] = [tried, middle];
    else high = middle;
  }
  return best;
}

function arranged(view, state, ledger, room) {
  const directions = bestDirections(view, state, ledger, room.width / room.height);
  return { open: state.open, directions, scale: scaleToFit(layoutView(view, { ...state, directions }, ledger), room) };
}

/** How many boxes must be open before there is something to see. */
function fewest(view, state, ordered) {
  const shown = (count) => shownBoxes(view, { ...state, open: new Set(ordered.slice(0, count)) }).length;
  let count = 0;
  while (count < ordered.length && shown(count) < FEWEST) count += 1;
  return count;
}
