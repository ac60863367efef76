// Bundles the third-party libraries of each page into one file with their licences: `npm ci && npm run build`.
import { build } from "esbuild";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";

const pages = new URL("../src/llm_perf_opt/formats/", import.meta.url);
const bundles = [
  // dagre is published with graphlib inside it, so what this bundle holds follows from what its packages need.
  { entry: "libraries.js", globalName: "vendor", folder: "graph_page/vendor/", roots: ["@dagrejs/dagre", "d3-hierarchy", "d3-selection", "d3-zoom"] },
  { entry: "plot.js", globalName: "Plot", folder: "explore_page/vendor/", roots: [] },
];
const lock = JSON.parse(await readFile(new URL("package-lock.json", import.meta.url), "utf8"));

/** Packages with all that they need. */
function withNeeds(names) {
  const needed = names.flatMap((name) => Object.keys(lock.packages[`node_modules/${name}`].dependencies ?? {}));
  const all = [...new Set([...names, ...needed])];
  return all.length === names.length ? all : withNeeds(all);
}

/** The packages with code in a bundle, by their folders. */
function packagesIn(metafile) {
  const [output] = Object.values(metafile.outputs);
  const taken = Object.entries(output.inputs).filter(([, { bytesInOutput }]) => bytesInOutput > 0);
  const names = taken.map(([path]) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
  return names.filter(Boolean);
}

async function licenceOf(name) {
  const folder = new URL(`node_modules/${name}/`, import.meta.url);
  const { version, license } = JSON.parse(await readFile(new URL("package.json", folder), "utf8"));
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  const text = (await readFile(new URL(file, folder), "utf8")).trim();
  return { name, heading: `${name} ${version} (${license})`, text };
}

for (const { entry, globalName, folder, roots } of bundles) {
  const result = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: "iife",
    globalName,
    target: "es2022",
    charset: "ascii",
    legalComments: "none",
    metafile: true,
    outfile: entry,
    write: false,
  });
  const target = new URL(folder, pages);
  await mkdir(target, { recursive: true });
  const names = [...new Set([...packagesIn(result.metafile), ...withNeeds(roots)])].sort();
  const licences = await Promise.all(names.map(licenceOf));
  const notice = `/* Bundled by web/build.mjs, not edited by hand: ${licences.map(({ heading }) => heading).join(", ")}. */\n`;
  await writeFile(new URL(entry, target), notice + result.outputFiles[0].text);
  await writeFile(
    new URL("LICENCES.txt", target),
    licences.map(({ heading, text }) => `${heading}\n${"-".repeat(heading.length)}\n${text}\n`).join("\n\n"),
  );
}
