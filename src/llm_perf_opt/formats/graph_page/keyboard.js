// Keys, as in any tree: arrows walk, open and close; Enter and Space select.
import { byId } from "./elements.js";

const PAN = 120;

export function followKeys(graph, navigator, viewport, store) {
  const walk = treeKeys(navigator, store);
  graph.tree.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.altKey || event.metaKey ? undefined : walk[event.key];
    if (!act || !event.target.matches(".box")) return;
    event.preventDefault();
    act(graph.view.boxes[Number(event.target.dataset.box)]);
  });
  const page = pageKeys(navigator, viewport);
  document.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.altKey || event.metaKey ? undefined : page[event.key];
    if (!act || event.target.closest("input, select, textarea, dialog")) return;
    event.preventDefault();
    act();
  });
}

function treeKeys(navigator, store) {
  const step = (box, by) => {
    const shown = navigator.shown;
    const next = shown[shown.indexOf(box) + by];
    if (next) navigator.focus(next);
  };
  const isOpen = (box) => store.state.open.has(box);
  return {
    ArrowDown: (box) => step(box, 1),
    ArrowUp: (box) => step(box, -1),
    ArrowRight: (box) => (isOpen(box) ? step(box, 1) : navigator.setOpen(box, true)),
    ArrowLeft: (box) => {
      if (isOpen(box)) navigator.setOpen(box, false);
      else if (box.parent) navigator.focus(box.parent);
    },
    Home: () => navigator.focus(navigator.shown[0]),
    End: () => navigator.focus(navigator.shown.at(-1)),
    Enter: (box) => navigator.select(box),
    " ": (box) => navigator.select(box),
    "*": (box) => (box.parent ? box.parent.children : [box]).forEach((sibling) => navigator.setOpen(sibling, true)),
  };
}

function pageKeys(navigator, viewport) {
  return {
    "/": () => byId("query").focus(),
    "+": () => viewport.scaleBy(1.25),
    "=": () => viewport.scaleBy(1.25),
    "-": () => viewport.scaleBy(0.8),
    0: () => viewport.fit(),
    PageUp: () => viewport.moveBy(0, PAN * 3),
    PageDown: () => viewport.moveBy(0, -PAN * 3),
    Escape: () => navigator.clear(),
  };
}
