// Places boxes that arrows connect: a plain chain in a line, anything else by dagre.

export const NODE_GAP = 14;
const RANK_GAP = 24;
const known = new Map();

/** Places by key, lines by link, and the size; the same part is laid out once for each direction, "TB" or "LR". */
export function placedPart(part, direction) {
  const { nodes, links } = part;
  const signature = JSON.stringify([direction, nodes.map(({ key, width, height }) => [key, width, height]), links.map(({ source, target }) => [source, target])]);
  if (!known.has(signature)) {
    const chain = chainOf(nodes, links);
    known.set(signature, chain ? inLine(chain, links, direction) : byDagre(part, direction));
  }
  return known.get(signature);
}

/** The nodes from first to last if each feeds only the next, otherwise null. */
function chainOf(nodes, links) {
  const next = new Map(links.map(({ source, target }) => [source, target]));
  const fed = new Set(links.map(({ target }) => target));
  if (links.length !== nodes.length - 1 || next.size !== links.length || fed.size !== links.length) return null;
  const byKey = new Map(nodes.map((node) => [node.key, node]));
  const chain = [nodes.find((node) => !fed.has(node.key))];
  while (next.has(chain.at(-1).key)) chain.push(byKey.get(next.get(chain.at(-1).key)));
  return chain;
}

function inLine(chain, links, direction) {
  const down = direction === "TB";
  const across = Math.max(...chain.map((node) => (down ? node.width : node.height)));
  const places = new Map();
  const ends = new Map();
  let along = 0;
  for (const { key, width, height } of chain) {
    const [length, breadth] = down ? [height, width] : [width, height];
    const aside = (across - breadth) / 2;
    places.set(key, down ? { x: aside, y: along } : { x: along, y: aside });
    ends.set(key, [along, along + length]);
    along += length + RANK_GAP;
  }
  const point = (at) => (down ? { x: across / 2, y: at } : { x: at, y: across / 2 });
  const lines = new Map(links.map((link) => [link, [point(ends.get(link.source)[1]), point(ends.get(link.target)[0])]]));
  const length = along - RANK_GAP;
  return { width: down ? across : length, height: down ? length : across, places, lines };
}

function byDagre({ nodes, links }, direction) {
  const graph = new vendor.graphlib.Graph();
  graph.setGraph({ rankdir: direction, nodesep: NODE_GAP, ranksep: RANK_GAP, edgesep: 10 });
  for (const { key, width, height } of nodes) graph.setNode(key, { width, height });
  for (const { source, target } of links) graph.setEdge(source, target, {});
  vendor.layout(graph);
  const places = new Map(nodes.map(({ key, width, height }) => {
    const { x, y } = graph.node(key);
    return [key, { x: x - width / 2, y: y - height / 2 }];
  }));
  const lines = new Map(links.map((link) => [link, graph.edge(link.source, link.target).points]));
  const { width, height } = graph.graph();
  return { width, height, places, lines };
}
