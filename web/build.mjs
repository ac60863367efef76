// Bundles the third-party libraries into one file with their licences: `npm ci && npm run build`.
import { build } from "esbuild";
import { readFile, readdir, writeFile } from "node:fs/promises";

const target = new URL("../src/llm_perf_opt/formats/graph_page/vendor/", import.meta.url);

const result = await build({
  entryPoints: ["libraries.js"],
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "vendor",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  write: false,
});

const lock = JSON.parse(await readFile(new URL("package-lock.json", import.meta.url), "utf8"));
const packages = Object.entries(lock.packages)
  .filter(([path, entry]) => path && !entry.dev)
  .map(([path]) => path.replace("node_modules/", ""));

async function licenceOf(name) {
  const folder = new URL(`node_modules/${name}/`, import.meta.url);
  const { version, license } = JSON.parse(await readFile(new URL("package.json", folder), "utf8"));
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  const text = (await readFile(new URL(file, folder), "utf8")).trim();
  return { name, heading: `${name} ${version} (${license})`, text };
}

const licences = await Promise.all(packages.sort().map(licenceOf));
const notice = `/* Bundled by web/build.mjs, not edited by hand: ${licences.map((one) => one.heading).join(", ")}. */\n`;
await writeFile(new URL("libraries.js", target), notice + result.outputFiles[0].text);
await writeFile(
  new URL("LICENCES.txt", target),
  licences.map((one) => `${one.heading}\n${"-".repeat(one.heading.length)}\n${one.text}\n`).join("\n\n"),
);
