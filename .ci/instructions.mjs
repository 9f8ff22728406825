// Counts the instructions of the hot paths under callgrind, and fails if one needs more than before.
//
//   node .ci/instructions.mjs           compares with `instructions.json` in this folder
//   node .ci/instructions.mjs --write   updates that file, after an intended change
//   node .ci/instructions.mjs --release prints the counts of the deployed profile, without a comparison
//
// It counts the sections of `tests/counts` in a separate profile, `counts`. Its counts change with those of the
// program, and do not depend on the machine's load. They depend slightly on the seeds of hash maps and on the
// compiler's version, so there is a tolerance. SHA-256 is counted separately and not compared, because callgrind
// lacks the processor instructions for it.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const BASELINE = join(ROOT, ".ci/instructions.json");
// Allowed increase. Seeds of hash maps cause less than a tenth of it.
const TOLERANCE = 0.03;
// Rows per section, as in `tests/counts/main.rs`.
const ROWS = 100;
const SECTIONS = [
  ["read", ROWS, "cells of the driver to rows, each"],
  ["normalize", ROWS, "rows to events, each"],
  ["encode", ROWS, "events to id and body, each"],
  ["document", 2, "transition and stored form, each write"],
  ["idle-tick", 1, "tick without rows"],
];
// An idle tick may take a millisecond, at one instruction per nanosecond.
const IDLE_TICK_MAX = 1_000_000;

const released = process.argv.includes("--release");

function build() {
  // Sections are found by function names, so symbols are needed.
  const profile = released ? ["--release", "--config", 'profile.release.strip="none"'] : ["--profile", "counts"];
  const out = execFileSync("cargo", ["test", "-p", "highwater-counts", "--no-run", "--test", "counts", "--message-format=json", ...profile], {
    cwd: ROOT,
    encoding: "utf8",
    maxBuffer: 1 << 28,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const messages = out.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  const built = messages.find((message) => message.executable && message.target.name === "counts");
  return built.executable;
}

// Sums the own cost of each function. Costs of its callees follow `calls=`, and are counted there.
function collected(file) {
  const names = new Map();
  let [name, skip, all, sha] = ["", false, 0, 0];
  for (const line of readFileSync(file, "utf8").split("\n")) {
    const fn = /^fn=\((\d+)\)(?: (.*))?$/.exec(line);
    if (fn) {
      if (fn[2]) names.set(fn[1], fn[2]);
      name = names.get(fn[1]);
      continue;
    }
    // A name may be defined at its first call.
    const called = /^cfn=\((\d+)\) (.*)$/.exec(line);
    if (called) names.set(called[1], called[2]);
    if (line.startsWith("calls=")) {
      skip = true;
      continue;
    }
    const cost = /^[+\-*\d]\S* (\d+)$/.exec(line);
    if (!cost) continue;
    if (!skip) {
      all += Number(cost[1]);
      if (/sha2|sha256/i.test(name)) sha += Number(cost[1]);
    }
    skip = false;
  }
  return { all, sha };
}

function count(binary, section) {
  const folder = join(ROOT, "target/instructions");
  mkdirSync(folder, { recursive: true });
  const file = join(folder, `${section}.out`);
  const tool = ["--tool=callgrind", "--toggle-collect=*counts::counted*", `--callgrind-out-file=${file}`];
  execFileSync("valgrind", ["--quiet", ...tool, binary, section], { stdio: ["ignore", "ignore", "inherit"] });
  return collected(file);
}

const binary = build();
const before = (() => {
  if (released) return {};
  try {
    return JSON.parse(readFileSync(BASELINE, "utf8"));
  } catch {
    return {};
  }
})();
const now = {};
const failures = [];
const number = (value) => Math.round(value).toLocaleString("en");
console.log(`${"section".padEnd(12)}${"before".padStart(11)}${"now".padStart(11)}${"".padStart(9)}${"SHA-256".padStart(11)}`);
for (const [section, of, what] of SECTIONS) {
  const { all, sha } = count(binary, section);
  now[section] = Math.round((all - sha) / of);
  const change = before[section] ? now[section] / before[section] - 1 : NaN;
  const shown = Number.isNaN(change) ? "new" : `${change < 0 ? "" : "+"}${(change * 100).toFixed(1)} %`;
  const cells = [number(before[section] ?? 0), number(now[section]), shown, number(sha / of)];
  const widths = [11, 11, 9, 11];
  console.log(section.padEnd(12) + cells.map((cell, at) => cell.padStart(widths[at])).join("") + `  ${what}`);
  if (all === 0) failures.push(`${section}: nothing was collected: is \`counted\` still a function?`);
  if (!released && (change > TOLERANCE || Number.isNaN(change))) {
    failures.push(`${section}: ${number(now[section])} instructions, ${number(before[section] ?? 0)} before`);
  }
  if (section === "idle-tick" && all > IDLE_TICK_MAX) failures.push(`${section}: above ${number(IDLE_TICK_MAX)}`);
}
if (process.argv.includes("--write")) {
  writeFileSync(BASELINE, `${JSON.stringify(now, null, 2)}\n`);
} else if (failures.length > 0) {
  console.error(`${failures.join("\n")}\nwhere that is meant, run it with --write and commit the file`);
  process.exit(1);
}
