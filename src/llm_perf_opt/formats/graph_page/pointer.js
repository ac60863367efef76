// Clicks on boxes: once selects, on the triangle or twice opens and closes.

export function followPointer(graph, navigator) {
  graph.tree.addEventListener("click", (event) => {
    const box = boxAt(event, graph);
    if (!box || event.target.closest(".more")) return;
    if (event.target.closest(".toggle")) navigator.toggle(box);
    else navigator.select(box);
    graph.elements.get(box).focus({ preventScroll: true });
  });
  graph.tree.addEventListener("dblclick", (event) => {
    const box = boxAt(event, graph);
    if (box && !event.target.closest(".toggle, .more")) navigator.toggle(box);
  });
}

function boxAt(event, graph) {
  const element = event.target.closest(".box");
  return element ? graph.view.boxes[Number(element.dataset.box)] : null;
}
