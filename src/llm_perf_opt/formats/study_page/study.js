"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const { words, columns } = data;
  const count = columns.model.length;
  const request = data.is_pages ? "page" : "request";
  const HUES = 7;
  const HIT = 14; // pixels within which the nearest point answers to the pointer
  const MANY = 80;
  const MARGIN = { left: 78, right: 18, top: 16, bottom: 46 };
  const SVG = "http://www.w3.org/2000/svg";

  const middle = (name) => (row) => {
    const low = columns[`${name}_low`][row];
    const high = columns[`${name}_high`][row];
    return low === null || high === null ? null : Math.sqrt(low * high);
  };
  const edges = (name) => (row) => [columns[`${name}_low`][row], columns[`${name}_high`][row]];
  const over = (name, divisor) => ({
    of: (row) => scaled(middle(name)(row), divisor(row)),
    band: (row) => edges(name)(row).map((value) => scaled(value, divisor(row))),
  });
  const scaled = (value, divisor) => (value === null || !divisor ? null : value / divisor);
  const one = () => 1;
  const devices = (row) => columns.device_count[row];
  const watts = (row) => columns.watts[row];
  const seconds = (value) =>
    value >= 1 ? `${digits(value)} s` : value >= 1e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
  const ACROSS = [
    { id: "run_s", name: `Time of a whole ${request}`, text: seconds, ...over("run_s", one) },
    { id: "tpot_s", name: "Time per output token", text: seconds, ...over("tpot_s", one) },
    { id: "ttft_s", name: "Time to first token", text: seconds, ...over("ttft_s", one) },
  ];
  const UP = [
    { id: "tokens", name: "Tokens/s per device", best: 1, text: digits, ...over("tokens_per_s", devices) },
    { id: "requests", name: `${plural(request)}/s per device`, best: 1, text: digits, ...over("requests_per_s", devices) },
    { id: "token-cost", name: `${data.currency} per million tokens`, best: -1, text: digits, ...over("token_cost", one) },
    { id: "request-cost", name: `${data.currency} per million ${request}s`, best: -1, text: digits, ...over("request_cost", one) },
    { id: "watt", name: `${plural(request)}/s per watt`, best: 1, text: digits, ...over("requests_per_s", watts) },
  ];
  const COLOURS = ["model", "device", "plan", "weights"].filter((name) => words[name].length > 1);
  const FILTERS = ["model", "device", "plan", "weights", "workload"].filter((name) => words[name].length > 1);
  const TITLES = { model: "Model", device: "Device", plan: "Plan", weights: "Weights", workload: "Workload" };

  const state = { across: null, up: null, colour: COLOURS[0] || "model", off: {}, picked: null, zoom: vendor.zoomIdentity, at: null };
  for (const name of FILTERS) state.off[name] = new Set();

  const element = (id) => document.getElementById(id);
  const svg = element("chart");
  const tip = element("tip");

  function plural(word) {
    return word[0].toUpperCase() + word.slice(1) + "s";
  }

  function digits(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
    return Number(value.toPrecision(3)).toLocaleString("en");
  }

  function add(parent, tag, attributes = {}, text = null) {
    const node = parent instanceof SVGElement ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  }

  function isShown(row) {
    return FILTERS.every((name) => !state.off[name].has(columns[name][row]));
  }

  function rows() {
    const found = [];
    for (let row = 0; row < count; row += 1) {
      if (isShown(row) && state.across.of(row) > 0 && state.up.of(row) > 0) found.push(row);
    }
    return found;
  }

  // What no other point beats: shorter along x, and better along y than everything before it.
  function frontier(found) {
    const ordered = [...found].sort((a, b) => state.across.of(a) - state.across.of(b) || better(b) - better(a));
    const kept = [];
    let best = -Infinity;
    for (const row of ordered) {
      if (better(row) > best) {
        best = better(row);
        kept.push(row);
      }
    }
    return kept;
  }

  function better(row) {
    return state.up.best * Math.log(state.up.of(row));
  }

  function span(values) {
    if (!values.length) return [0.1, 10];
    const low = Math.min(...values);
    const high = Math.max(...values);
    const room = Math.max(Math.pow(high / low, 0.06), 1.08);
    return [low / room, high * room];
  }

  function scale([low, high], from, to) {
    const slope = (to - from) / Math.log(high / low);
    const place = (value) => from + Math.log(value / low) * slope;
    place.value = (pixel) => low * Math.exp((pixel - from) / slope);
    return place;
  }

  function ticks(low, high) {
    const found = [];
    const many = Math.log10(high / low);
    const steps = many > 4 ? [1] : many > 1.4 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of steps) {
        const value = step * Math.pow(10, power);
        if (value >= low && value <= high) found.push(value);
      }
    }
    return found;
  }

  let places = { x: null, y: null, found: [], front: [] };

  function draw() {
    const width = svg.clientWidth || 800;
    const height = svg.clientHeight || 480;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const found = rows();
    const front = frontier(found);
    const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const base = {
      x: scale(span(found.map(state.across.of)), inner.left, inner.right),
      y: scale(span(found.map(state.up.of)), inner.bottom, inner.top),
    };
    const x = scale([inner.left, inner.right].map((pixel) => base.x.value(state.zoom.invertX(pixel))), inner.left, inner.right);
    const y = scale([inner.bottom, inner.top].map((pixel) => base.y.value(state.zoom.invertY(pixel))), inner.bottom, inner.top);
    places = { x, y, found, front, inner };
    axes(inner, x, y);
    const clip = add(add(svg, "defs"), "clipPath", { id: "inside" });
    add(clip, "rect", { x: inner.left, y: inner.top, width: inner.right - inner.left, height: inner.bottom - inner.top });
    const drawn = add(svg, "g", { "clip-path": "url(#inside)" });
    const path = front.map((row) => `${x(state.across.of(row)).toFixed(1)},${y(state.up.of(row)).toFixed(1)}`);
    if (path.length > 1) add(drawn, "polyline", { class: "front-line", points: path.join(" ") });
    const fronts = new Set(front);
    for (const row of found) if (!fronts.has(row)) dot(drawn, row, x, y, 4, "");
    const size = front.length > MANY ? 4 : 5.5; // a dense frontier is a line already
    for (const row of front) dot(drawn, row, x, y, size, front.length > MANY ? " front dense" : " front");
    add(drawn, "g", { id: "over" });
    tell(found, front);
  }

  function dot(parent, row, x, y, radius, kind) {
    const number = columns[state.colour][row];
    const [cx, cy] = [x(state.across.of(row)), y(state.up.of(row))].map((place) => Number(place.toFixed(1)));
    const side = radius * 1.7; // colours come round again: then points are squares
    const node = Math.floor(number / HUES) % 2
      ? add(parent, "rect", { x: cx - side / 2, y: cy - side / 2, width: side, height: side })
      : add(parent, "circle", { cx, cy, r: radius });
    node.setAttribute("class", `point hue-${number % HUES}${kind}`);
    if (kind) {
      node.setAttribute("tabindex", "0");
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", sentence(row));
      node.addEventListener("focus", () => point(row));
      node.addEventListener("blur", leave);
    }
  }

  function axes(inner, x, y) {
    const grid = add(svg, "g", { "aria-hidden": "true" });
    let last = -Infinity;
    for (const value of ticks(x.value(inner.left), x.value(inner.right))) {
      const at = x(value);
      add(grid, "line", { class: "grid", x1: at, x2: at, y1: inner.top, y2: inner.bottom });
      if (at - last > 58) {
        add(grid, "text", { x: at, y: inner.bottom + 16, "text-anchor": "middle" }, state.across.text(value));
        last = at;
      }
    }
    last = Infinity;
    for (const value of ticks(y.value(inner.bottom), y.value(inner.top))) {
      const at = y(value);
      add(grid, "line", { class: "grid", x1: inner.left, x2: inner.right, y1: at, y2: at });
      if (last - at > 20) {
        add(grid, "text", { x: inner.left - 8, y: at + 4, "text-anchor": "end" }, state.up.text(value));
        last = at;
      }
    }
    add(svg, "text", { class: "axis-name", x: inner.right, y: inner.bottom + 36, "text-anchor": "end" }, `${state.across.name} →`);
    const middleY = (inner.top + inner.bottom) / 2;
    const turned = { class: "axis-name", x: 14, y: middleY, "text-anchor": "middle", transform: `rotate(-90 14 ${middleY})` };
    add(svg, "text", turned, `${state.up.name} →`);
  }

  function sentence(row) {
    const parts = ["model", "device", "plan", "weights"].map((name) => words[name][columns[name][row]]);
    const shown = `${state.across.name} ${state.across.text(state.across.of(row))}, ${state.up.name} ${state.up.text(state.up.of(row))}`;
    return `${parts.join(", ")}, global batch ${columns.global_batch[row]}: ${shown}`;
  }

  function tell(found, front) {
    const shown = state.picked === null ? front : state.picked.filter((row) => found.includes(row));
    element("frontier-title").textContent = state.picked === null ? "On the frontier" : "Selected";
    const best = front.length ? front[front.length - 1] : null;
    element("chart-words").textContent = found.length
      ? `${found.length.toLocaleString("en")} points, ${front.length} of them on the frontier. Best along “${state.up.name}”: ${sentence(best)}.`
      : "No point has both figures: choose other axes, or switch filters on again.";
    tableOf(shown);
  }

  function tableOf(shown) {
    const place = element("picked");
    place.replaceChildren();
    const table = add(place, "table");
    const named = [...ACROSS, ...UP].filter((axis) => shown.some((row) => axis.of(row) !== null));
    const head = add(add(table, "thead"), "tr");
    for (const name of ["Model", "Device", "Plan", "Weights", "Global batch", "Context"]) add(head, "th", { scope: "col" }, name);
    for (const axis of named) add(head, "th", { scope: "col", class: "number" }, axis.name);
    const body = add(table, "tbody");
    for (const row of shown.slice(0, 200)) {
      const line = add(body, "tr");
      add(line, "th", { scope: "row" }, words.model[columns.model[row]]);
      const machine = `${columns.device_count[row] > 1 ? `${columns.device_count[row]}x ` : ""}${words.device[columns.device[row]]}`;
      for (const text of [machine, words.plan[columns.plan[row]], words.weights[columns.weights[row]]]) add(line, "td", {}, text);
      for (const name of ["global_batch", "context"]) add(line, "td", { class: "number" }, columns[name][row] === null ? "?" : columns[name][row].toLocaleString("en"));
      for (const axis of named) {
        const value = axis.of(row);
        const [low, high] = axis.band(row);
        const cell = add(line, "td", { class: "number" }, value === null ? "?" : axis.text(value));
        if (value !== null) cell.title = `${axis.text(low)} to ${axis.text(high)}`;
      }
    }
  }

  function point(row) {
    state.at = row;
    const { x, y } = places;
    const layer = element("over");
    layer.replaceChildren();
    const [cx, cy] = [x(state.across.of(row)), y(state.up.of(row))];
    const [left, right] = state.across.band(row).map(x);
    const [top, bottom] = state.up.band(row).map(y);
    add(layer, "line", { class: "band", x1: left, x2: right, y1: cy, y2: cy });
    add(layer, "line", { class: "band", x1: cx, x2: cx, y1: top, y2: bottom });
    add(layer, "circle", { class: "halo", cx, cy, r: 8 });
    tip.replaceChildren();
    add(tip, "strong", {}, words.model[columns.model[row]]);
    const many = columns.device_count[row] > 1 ? `${columns.device_count[row]}x ` : "";
    add(tip, "div", {}, `${many}${words.device[columns.device[row]]}, ${words.plan[columns.plan[row]]}, weights ${words.weights[columns.weights[row]]}`);
    const list = add(tip, "dl");
    const facts = [["Global batch", String(columns.global_batch[row])], ["Context", columns.context[row] === null ? "?" : columns.context[row].toLocaleString("en")]];
    for (const axis of [...ACROSS, ...UP]) {
      if (axis.of(row) !== null) facts.push([axis.name, axis.band(row).map(axis.text).join(" – ")]);
    }
    for (const [name, value] of facts) {
      add(list, "dt", {}, name);
      add(list, "dd", {}, value);
    }
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const wide = tip.offsetWidth;
    tip.style.left = `${cx + 16 + wide > box.width ? Math.max(4, cx - wide - 16) : cx + 16}px`;
    tip.style.top = `${Math.max(4, Math.min(cy - 20, box.height - tip.offsetHeight - 4))}px`;
  }

  function leave() {
    state.at = null;
    tip.hidden = true;
    const layer = element("over");
    if (layer) layer.replaceChildren();
  }

  function near(event) {
    const box = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    let least = HIT * HIT;
    for (const row of places.found) {
      const far = (places.x(state.across.of(row)) - px) ** 2 + (places.y(state.up.of(row)) - py) ** 2;
      if (far < least) [best, least] = [row, far];
    }
    return best;
  }

  // The chart: hover, zoom, and a brush that picks rows for the table.
  const isBrush = (event) => element("brushing").checked || event.shiftKey;
  const zoom = vendor.zoom().scaleExtent([1, 200])
    .filter((event) => event.type === "wheel" || (!isBrush(event) && !event.button))
    .on("zoom", (event) => {
      state.zoom = event.transform;
      leave();
      draw();
    });
  const surface = vendor.select(svg).call(zoom).on("dblclick.zoom", null);
  let start = null;
  svg.addEventListener("pointerdown", (event) => {
    if (!isBrush(event) || event.button) return;
    const box = svg.getBoundingClientRect();
    start = [event.clientX - box.left, event.clientY - box.top];
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => {
    if (start === null) {
      const row = near(event);
      if (row === null) leave();
      else if (row !== state.at) point(row);
      return;
    }
    const area = reach(event);
    const layer = element("over");
    layer.replaceChildren();
    add(layer, "rect", { class: "brush", x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top });
  });
  svg.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const area = reach(event);
    start = null;
    const isClick = area.right - area.left < 4 && area.bottom - area.top < 4;
    state.picked = isClick ? null : places.found.filter((row) => {
      const [x, y] = [places.x(state.across.of(row)), places.y(state.up.of(row))];
      return x >= area.left && x <= area.right && y >= area.top && y <= area.bottom;
    });
    element("over").replaceChildren();
    tell(places.found, places.front);
  });
  svg.addEventListener("pointerleave", () => start === null && leave());

  function reach(event) {
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return { left: Math.min(x, start[0]), right: Math.max(x, start[0]), top: Math.min(y, start[1]), bottom: Math.max(y, start[1]) };
  }

  function choose(id, options, chosen, changed) {
    const list = element(id);
    for (const option of options) add(list, "option", { value: option.id }, option.name);
    list.value = chosen;
    list.addEventListener("change", () => {
      changed(list.value);
      surface.call(zoom.transform, vendor.zoomIdentity);
      draw();
    });
  }

  function known(axis) {
    for (let row = 0; row < count; row += 1) if (axis.of(row) !== null) return true;
    return false;
  }

  function filters() {
    const form = element("filters");
    form.replaceChildren();
    for (const name of FILTERS) {
      const group = add(form, "fieldset");
      add(group, "legend", {}, TITLES[name]);
      words[name].forEach((word, place) => {
        const label = add(group, "label");
        const box = add(label, "input", { type: "checkbox" });
        box.checked = !state.off[name].has(place);
        box.addEventListener("change", () => {
          state.off[name][box.checked ? "delete" : "add"](place);
          draw();
        });
        if (name === state.colour) add(label, "span", { class: `dot hue-${place % HUES}${Math.floor(place / HUES) % 2 ? " square" : ""}`, "aria-hidden": "true" });
        add(label, "span", {}, word || "as it comes");
      });
      for (const [text, isOn] of [["All", true], ["None", false]]) {
        const button = add(group, "button", { type: "button" }, text);
        button.addEventListener("click", () => {
          state.off[name] = new Set(isOn ? [] : words[name].keys());
          filters();
          draw();
        });
      }
    }
  }

  const across = ACROSS.filter(known);
  const up = UP.filter(known);
  if (count && across.length && up.length) {
    element("explore").hidden = false;
    state.across = across[data.is_pages ? 0 : Math.min(1, across.length - 1)];
    state.up = up.find((axis) => axis.id === (data.is_pages ? "requests" : "tokens")) || up[0];
    choose("across", across, state.across.id, (id) => { state.across = across.find((axis) => axis.id === id); });
    choose("up", up, state.up.id, (id) => { state.up = up.find((axis) => axis.id === id); });
    choose("colour", COLOURS.map((name) => ({ id: name, name: TITLES[name].toLowerCase() })), state.colour, (id) => {
      state.colour = id;
      filters();
    });
    element("zoom-in").addEventListener("click", () => surface.call(zoom.scaleBy, 1.5));
    element("zoom-out").addEventListener("click", () => surface.call(zoom.scaleBy, 1 / 1.5));
    element("reset").addEventListener("click", () => {
      state.picked = null;
      surface.call(zoom.transform, vendor.zoomIdentity);
      draw();
    });
    element("brushing").addEventListener("change", () => svg.classList.toggle("brushing", element("brushing").checked));
    filters();
    draw();
    new ResizeObserver(draw).observe(element("stage"));
  }
}
