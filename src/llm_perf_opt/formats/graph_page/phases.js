// The buttons that switch between the phases of a run; a page of one phase has none.
import { byId, html } from "./elements.js";
import { formatCount } from "./numbers.js";
import { oneLine } from "./text-width.js";
import { shownBoxes } from "./visible.js";

/** What a view says of itself, with the number of boxes that are on show now. */
export function captionLines(view, state) {
  const shown = formatCount(BigInt(shownBoxes(view, state).length));
  return view.caption.map((line) => line.replace(/[\d,]+ of them shown/u, `${shown} of them shown`));
}

export function followPhases(phases, store, navigator) {
  const area = byId("phases");
  const buttons = new Map(phases.map((phase) => [phase, html("button", { type: "button", onclick: () => navigator.showPhase(phase) }, oneLine(phase.view.name).slice(0, 40))]));
  area.hidden = phases.length < 2;
  area.replaceChildren(...buttons.values());
  const tell = () => {
    const { view } = store;
    for (const [phase, button] of buttons) button.setAttribute("aria-pressed", phase === store.state.phase);
    byId("title").textContent = view.title;
    document.title = view.title;
  };
  const count = () => {
    byId("caption").textContent = captionLines(store.view, store.state)[0] ?? "";
  };
  store.on(["phase"], tell);
  store.on(["phase", "open", "limits", "wanted"], count);
  tell();
}
