// One line that a screen reader speaks and that shows for a moment.
import { byId } from "./elements.js";

let quiet = 0;

/** Say what just happened. */
export function announce(text) {
  const status = byId("status");
  status.textContent = text;
  status.classList.add("shown");
  clearTimeout(quiet);
  quiet = setTimeout(() => status.classList.remove("shown"), 2500);
}
