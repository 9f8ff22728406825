// Mechanical mutants for `.ci/mutants.mjs`: a function's body replaced by a constant, an operator by another one, a match
// guard by a constant, a `!` or a field deleted. `cargo mutants` lists them; `.ci/mutants.mjs` builds and runs them.
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";

// Every mutant of these files must be caught or explained.
const COMPLETE = ["src/engine/document.rs", "src/engine/document/**", "src/engine/lease.rs", "src/engine/lease/**", "src/engine/tick/isolate.rs"];
// Other versions list other mutants, so explanations could get out of date.
const VERSION = "27.1.0";
const EXPLAINED = ".ci/mutants-explained.txt";

// Returns the path of `cargo-mutants` in the pinned version. If it is not installed, it is built below `target`.
function tool(root) {
  const folder = join(root, "target", "tools");
  const own = join(folder, "bin", "cargo-mutants");
  const isPinned = (path) => (spawnSync(path, ["mutants", "--version"], { encoding: "utf8" }).stdout ?? "").trim() === `cargo-mutants ${VERSION}`;
  const found = ["cargo-mutants", own].find(isPinned);
  if (found) return found;
  const target = join(folder, "build");
  execFileSync("cargo", ["install", "cargo-mutants", "--version", VERSION, "--locked", "--debug", "--root", folder, "--target-dir", target], { stdio: "inherit" });
  rmSync(target, { recursive: true, force: true });
  return own;
}

// A mutant as `.ci/mutants.mjs` wants it: its name, the file, the text that is replaced, its replacement, and where the
// text begins. Names contain no line numbers; those that occur again in a file are numbered.
function listed(root, include, exclude) {
  const files = [...include.flatMap((glob) => ["--file", glob]), ...exclude.flatMap((glob) => ["--exclude", glob])];
  const json = execFileSync(tool(root), ["mutants", "--list", "--json", "--workspace", ...files], { cwd: root, encoding: "utf8", maxBuffer: 1 << 30 });
  const seen = new Map();
  const sources = new Map();
  return JSON.parse(json).map(({ name: full, file, span, replacement }) => {
    const name = full.replace(/:\d+:\d+:/, ":");
    if (!sources.has(file)) sources.set(file, readFileSync(join(root, file), "utf8"));
    const source = sources.get(file);
    const starts = [0, ...Array.from(source.matchAll(/\n/g), ({ index }) => index + 1)];
    const [from, to] = [span.start, span.end].map(({ line, column }) => starts[line - 1] + column - 1);
    seen.set(name, (seen.get(name) ?? 0) + 1);
    const numbered = seen.get(name) > 1 ? `${name} (${seen.get(name)})` : name;
    return [numbered, file, source.slice(from, to), replacement, from];
  });
}

// Returns the reason of each mutant that no test can catch: its name on one line, the reason on the next, indented.
function explained(root) {
  const path = join(root, EXPLAINED);
  const reasons = new Map();
  let name;
  for (const line of existsSync(path) ? readFileSync(path, "utf8").split("\n") : []) {
    if (line.startsWith("#") || line.trim() === "") continue;
    if (line.startsWith(" ")) {
      reasons.set(name, line.trim());
    } else {
      name = line;
      reasons.set(name, "");
    }
  }
  return reasons;
}

// What `complete` and `elsewhere` ask for: the mutants, and the reasons of those that need not be caught.
//   complete           all of the files above
//   complete 2/8       each eighth of them, the second eighth
//   complete 30        thirty of them without an explanation, different ones with each commit
//   complete WORD...   those whose name contains one of the words
//   elsewhere 30       thirty of the other files of the workspace, different ones with each commit
//   elsewhere WORD...  those of the other files whose name contains one of the words
export function mechanical(root, [mode, ...words]) {
  const commits = Number(execFileSync("git", ["rev-list", "--count", "HEAD"], { cwd: root }));
  const reasons = explained(root);
  const isComplete = mode === "complete";
  const all = isComplete ? listed(root, COMPLETE, []) : listed(root, ["src/**"], COMPLETE);
  const names = new Set(all.map(([name]) => name));
  const stale = isComplete ? [...reasons].filter(([name, reason]) => !names.has(name) || reason === "") : [];
  if (stale.length > 0) {
    for (const [name, reason] of stale) console.error(`${EXPLAINED}: ${reason === "" ? "no reason" : "no such mutant"}: ${name}`);
    process.exit(1);
  }
  return { list: chosen(all, reasons, commits, words), reasons };
}

function chosen(all, reasons, commits, words) {
  if (words.length === 0) return all;
  const [, shard, shards] = /^(\d+)\/(\d+)$/.exec(words[0]) ?? [];
  if (shards) return all.filter((_, n) => n % Number(shards) === Number(shard) - 1);
  if (!/^\d+$/.test(words[0])) return all.filter(([name]) => words.some((word) => name.includes(word)));
  const open = all.filter(([name]) => !reasons.has(name));
  const count = Math.min(Number(words[0]), open.length);
  // A stride spreads a sample over all files, and consecutive commits over all mutants.
  const stride = Math.ceil(open.length / count);
  return Array.from({ length: count }, (_, n) => open[(n * stride + commits) % open.length]).filter((one, n, some) => some.indexOf(one) === n);
}
