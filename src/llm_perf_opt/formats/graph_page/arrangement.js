// Chooses in each open box whether flow runs down or to the right, so that the whole picture can be shown large.
import { layoutView } from "./layout.js";
import { DIRECTIONS, extent } from "./level-layout.js";
import { shownBoxes } from "./visible.js";

const OUTER = 3; // levels above this one hold the large parts of a model
const EFFORT = 240000; // tries times the square of the boxes on show: a count and no clock, so that a page looks the same each time

/**
 * Box -> direction for an area of this aspect (width by height). Starting from a few plain choices, boxes are turned one
 * at a time as long as that helps. It is done when the whole picture changes; a single box that opens or closes later
 * leaves the rest as it is.
 */
export function bestDirections(view, state, ledger, aspect) {
  const measure = (directions) => reach(layoutView(view, { ...state, directions }, ledger), aspect);
  const owners = [null, ...state.open];
  const [down, right] = DIRECTIONS;
  const plans = [() => down, () => right, (level) => (level < OUTER ? down : right), (level) => (level < OUTER ? right : down)];
  const starts = [new Map(), ...plans.map((plan) => new Map(owners.map((box) => [box, plan(box?.level ?? 0)])))];
  const climbed = starts.map((start) => climb(start, owners, measure, EFFORT / shownBoxes(view, state).length ** 2));
  return climbed.reduce((first, second) => (second.size < first.size ? second : first)).directions;
}

/** Mostly the side that limits the scale; a little of the other, so that a turn which only prepares the next one counts. */
function reach(layout, aspect) {
  return extent(layout, aspect) + 0.1 * (layout.width / aspect + layout.height);
}

function climb(start, owners, measure, tries) {
  let best = { directions: start, size: measure(start) };
  let left = tries;
  for (let turned = true; turned; ) {
    turned = false;
    for (const box of owners) {
      for (const direction of DIRECTIONS.filter((one) => one !== best.directions.get(box))) {
        left -= 1;
        if (left < 0) return best;
        const directions = new Map(best.directions).set(box, direction);
        const size = measure(directions);
        if (size < best.size - 1) {
          best = { directions, size };
          turned = true;
        }
      }
    }
  }
  return best;
}
