// Builds the page into src/dada/dashboard/assets. The same sources and lock file give the same bytes.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "..", "src", "dada", "dashboard", "assets");
const common = {
  bundle: true, minify: true, write: false, target: "es2022", charset: "utf8", logLevel: "warning",
  supported: { "template-literal": false },
};

// A digest of everything the build depends on: a test compares it, and so notices a forgotten build.
function fingerprint() {
  const digest = createHash("sha256");
  const sources = readdirSync(join(here, "src")).sort().map((name) => join("src", name));
  for (const name of ["build.mjs", "package.json", "package-lock.json", ...sources]) {
    digest.update(readFileSync(join(here, name)));
  }
  return digest.digest("hex").slice(0, 16);
}

// A page that works from disk cannot load a worker from a file, so its code travels inside the page.
async function workerCode() {
  const result = await build({ ...common, entryPoints: [join(here, "src", "layout.worker.js")], format: "iife" });
  return result.outputFiles[0].text;
}

function workerAsText(code) {
  return {
    name: "worker-as-text",
    setup(context) {
      context.onResolve({ filter: /^layout-worker-code$/ }, ({ path }) => ({ path, namespace: "worker" }));
      context.onLoad({ filter: /.*/, namespace: "worker" }, () => ({ contents: code, loader: "text" }));
    },
  };
}

function licences() {
  const bundled = ["@msgpack/msgpack", "fflate", "graphology-layout-forceatlas2", "uplot"];
  const texts = bundled.map((name) => {
    const folder = join(here, "node_modules", name);
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return `The page contains code of these packages.\n\n${texts.join("\n----\n\n")}`;
}

const mark = fingerprint();
const plugins = [workerAsText(await workerCode())];
const script = await build({ ...common, entryPoints: [join(here, "src", "main.js")], format: "iife", plugins });
const style = await build({ ...common, entryPoints: [join(here, "src", "style.css")] });

mkdirSync(assets, { recursive: true });
writeFileSync(join(assets, "app.js"), `/* built from ${mark} */\n${script.outputFiles[0].text}`);
writeFileSync(join(assets, "app.css"), `/* built from ${mark} */\n${style.outputFiles[0].text}`);
const page = readFileSync(join(here, "src", "index.html"), "utf8");
writeFileSync(join(assets, "index.html"), page.trim().replace(/\s*\n\s*/g, " ") + "\n");
writeFileSync(join(assets, "LICENSES.txt"), licences());
console.log(`built ${mark}: ${Math.round(script.outputFiles[0].contents.length / 1024)} KB of script`);
