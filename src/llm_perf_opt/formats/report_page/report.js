// The page reads without this script; with it tables sort, filter and copy, the theme switches, the contents follow.
"use strict";
{
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const root = document.documentElement;

  function followTheme(button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const systemIsDark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = root.dataset.theme ?? (systemIsDark ? "dark" : "light");
      root.dataset.theme = now === "dark" ? "light" : "dark";
    });
  }

  // The exact value is in the tooltip where the text is rounded. Null is not known, and sorts last either way.
  function valueOf(cell) {
    if (cell.classList.contains("unknown")) return null;
    if (!cell.classList.contains("number")) return cell.textContent;
    return Number.parseFloat((cell.title || cell.textContent).replaceAll(",", ""));
  }

  function compared(one, other, direction) {
    if (one === null || other === null) return (one === null) - (other === null);
    return direction * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other);
  }

  function sortBy(table, place, header) {
    const before = header.getAttribute("aria-sort");
    const isNumber = header.classList.contains("number");
    const direction = before ? (before === "ascending" ? -1 : 1) : isNumber ? -1 : 1; // the largest first
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[place]), row]);
    rows.sort(([one], [other]) => compared(one, other, direction));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function makeSortable(table) {
    if (table.tBodies[0].rows.length < 2) return;
    [...table.tHead.rows[0].cells].forEach((header, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sortBy(table, place, header));
    });
  }

  // As the format csv writes it: numbers in base units, words quoted, nothing unknown, and no cell begins a formula.
  function csvCell(cell) {
    const value = valueOf(cell);
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    const text = (cell.title || value).replaceAll('"', '""').replace(/(;\s*)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])/g, "$1'");
    return `"${/^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text) ? "'" : ""}${text}"`;
  }

  function csvOf(table) {
    const heads = [...table.tHead.rows[0].cells].map((cell) => `"${cell.textContent.replaceAll('"', '""')}"`).join(",");
    const rows = [...table.tBodies[0].rows, ...(table.tFoot?.rows ?? [])].filter((row) => !row.hidden);
    return [heads, ...rows.map((row) => [...row.cells].map(csvCell).join(","))].join("\n");
  }

  async function copy(button, table) {
    try {
      await navigator.clipboard.writeText(csvOf(table));
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refuses to copy";
    }
    setTimeout(() => { button.textContent = "Copy as CSV"; }, 2000);
  }

  function filterRows(table, words) {
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(words.trim().toLowerCase());
  }

  function addTools(frame) {
    const table = frame.querySelector("table");
    const tools = document.createElement("div");
    const button = document.createElement("button");
    tools.className = "tools";
    button.type = "button";
    button.textContent = "Copy as CSV";
    button.addEventListener("click", () => copy(button, table));
    if (frame.querySelector(".tall")) {
      const box = document.createElement("input");
      box.type = "search";
      box.placeholder = "Filter rows";
      box.setAttribute("aria-label", `Filter rows of ${frame.firstElementChild.getAttribute("aria-label")}`);
      box.addEventListener("input", () => filterRows(table, box.value));
      tools.append(box);
    }
    tools.append(button);
    frame.before(tools);
  }

  // The entry of the last heading above the middle of the window.
  function followReading() {
    const links = new Map(all("nav.side a").map((link) => [link.hash.slice(1), link]));
    const headings = [...links.keys()].map((id) => document.getElementById(id));
    const update = () => {
      const seen = headings.filter((heading) => heading.checkVisibility());
      const passed = seen.filter((heading) => heading.getBoundingClientRect().top < innerHeight / 3);
      const current = passed.at(-1)?.id;
      for (const [id, link] of links) {
        if (id === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    };
    let isWaiting = false;
    addEventListener("scroll", () => {
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => { isWaiting = false; update(); });
    }, { passive: true });
    update();
  }

  // What a link leads to may be folded away.
  function openToHash() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let fold = target?.closest("details:not([open])"); fold; fold = fold.parentElement.closest("details:not([open])")) fold.open = true;
    if (target) target.scrollIntoView();
  }

  // Says by how much a table goes on where it is cut.
  function followScrolling(frame) {
    const table = frame.firstElementChild;
    const update = () => {
      frame.toggleAttribute("data-more", table.scrollLeft + table.clientWidth < table.scrollWidth - 2);
      frame.toggleAttribute("data-below", table.scrollTop + table.clientHeight < table.scrollHeight - 2);
    };
    table.addEventListener("scroll", update, { passive: true });
    new ResizeObserver(update).observe(table);
  }

  // A notebook's frame is as high as what is in it.
  function growFrame() {
    new ResizeObserver(() => {
      if (frameElement) frameElement.style.height = `${document.body.offsetHeight + 2}px`;
    }).observe(document.body);
  }

  function closeAfterChoice(details) {
    details.addEventListener("click", (event) => {
      if (event.target.closest("a")) details.open = false;
    });
  }

  followTheme(document.getElementById("theme"));
  all("main table").forEach(makeSortable);
  all("details.contents").forEach(closeAfterChoice);
  all(".scroll").forEach(followScrolling);
  if (!("notebook" in root.dataset)) all(".card > .scroll").forEach(addTools);
  followReading();
  if ("notebook" in root.dataset) growFrame();
  addEventListener("hashchange", openToHash);
  if (location.hash) openToHash();
  addEventListener("beforeprint", () => all("details:not(.contents)").forEach((details) => { details.open = true; }));
  root.dataset.ready = "yes";
}
