// Checks that bill of materials and third-party notices name exactly what the linker gets. The lists are made
// from cargo's dependency graph; this check reads the command with which the compiler calls the linker instead, for a
// debug build, because link-time optimization merges the crates of a release. What the toolchain adds to a static program
// is read from the command for an empty one.
//
//   node .ci/linked.mjs
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { COMMANDS, HANDLER, LIBC, NOTICES, TARGET, TOOLCHAIN } from "./crates.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const run = (program, ...options) => execFileSync(program, options, { cwd: root, encoding: "utf8", maxBuffer: 1 << 28 });

/** Returns `name version` of every crate of cargo's whose library the linker gets. The rest is the standard library. */
const linkedBy = (name, program) => {
  const options = ["rustc", "--locked", "--quiet", "-p", name, "--bin", program, "--message-format=json"];
  // The compiler prints nothing if cargo does not call it, so each call has another flag.
  const flags = ["--print", "link-args", "--cfg", `linked_${Date.now()}`];
  const lines = run("cargo", ...options, "--", ...flags).split("\n");
  const command = lines.filter((line) => !line.startsWith("{")).join(" ");
  const crates = new Map(); // From the file of a library to its crate.
  for (const line of lines.filter((line) => line.startsWith("{"))) {
    const { reason, filenames = [], package_id: id = "" } = JSON.parse(line);
    if (reason !== "compiler-artifact") continue;
    // `registry+…#name@1.2.3`, or `path+file:///…/name#1.2.3` if the folder has the crate's name.
    const [, name, version] = id.match(/#(?:(.*)@)?(.*)$/);
    for (const file of filenames) crates.set(basename(file), `${name ?? basename(id.split("#")[0])} ${version}`);
  }
  const files = new Set(command.match(/lib[a-z0-9_]+-[0-9a-f]+\.rlib/g));
  if (files.size < 50) throw new Error(`the compiler printed no link command: ${command.slice(0, 200)}`);
  return new Set([...files].flatMap((file) => crates.get(file) ?? []).filter((crate) => !crate.startsWith("highwater")));
};

const noticesOf = (file) => {
  const lines = readFileSync(join(root, file), "utf8").split("\n");
  return new Set(lines.filter((line) => line.includes(" | ")).map((line) => line.split(" | ")[0]));
};
const { components } = JSON.parse(run("node", ".ci/sbom.mjs"));
const bill = () => {
  const crates = components.filter(({ name, purl }) => purl.startsWith("pkg:cargo/") && !name.startsWith("highwater"));
  return new Set(crates.map(({ name, version }) => `${name} ${version}`));
};

let isWrong = false;
const compare = (what, listed, linked) => {
  const missing = [...linked].filter((crate) => !listed.has(crate));
  const superfluous = [...listed].filter((crate) => !linked.has(crate));
  console.log(`${what}: ${listed.size} listed, ${linked.size} linked`);
  if (missing.length > 0) console.error(`linked and not listed: ${missing.join(", ")}`);
  if (superfluous.length > 0) console.error(`listed and not linked: ${superfluous.join(", ")}: add to UNUSED, or remove from TOOLCHAIN, in .ci/crates.mjs`);
  isWrong ||= missing.length + superfluous.length > 0;
};

const handler = linkedBy(HANDLER, "handler");
compare("bill of materials of the handler", bill(), handler);
compare("notices of the handler", noticesOf(NOTICES.get(HANDLER)), handler);
compare("notices of the command line", noticesOf(NOTICES.get(COMMANDS)), linkedBy(COMMANDS, "highwater"));
for (const crate of ["ring", "libsqlite3-sys", "rusqlite", "openssl-sys"]) {
  if ([...handler].some((linked) => linked.startsWith(`${crate} `))) {
    console.error(`the handler links ${crate}`);
    isWrong = true;
  }
}
/** Returns what the linker gets for an empty static program: libraries of the toolchain by their names, and objects. */
const addedByToolchain = () => {
  const folder = mkdtempSync(join(tmpdir(), "linked-"));
  try {
    writeFileSync(join(folder, "empty.rs"), "fn main() {}");
    const options = ["--target", TARGET, "--print", "link-args", "-o", join(folder, "empty"), join(folder, "empty.rs")];
    const words = [...run("rustc", ...options).matchAll(/"([^"]*)"/g)].map(([, word]) => word);
    const libraries = words.flatMap((word) => word.match(/\/lib([a-z0-9_]+)-[0-9a-f]+\.rlib$/)?.[1] ?? []);
    const others = words.filter((word) => /^-l|\/self-contained\/[^/]+\.(o|a)$/.test(word)).map((word) => basename(word));
    return new Set([...libraries, ...others]);
  } finally {
    rmSync(folder, { recursive: true });
  }
};
if (existsSync(LIBC)) {
  compare("toolchain", new Set(TOOLCHAIN.flatMap((part) => part.linked)), addedByToolchain());
} else {
  console.log(`toolchain: not compared, because the target ${TARGET} is not installed (rustup target add ${TARGET})`);
}
const parts = new Set(TOOLCHAIN.map((part) => part.name));
const billed = components.filter(({ purl }) => !purl.startsWith("pkg:cargo/")).flatMap((one) => [one, ...(one.components ?? [])]);
compare("toolchain in the bill of materials", new Set(billed.map(({ name }) => name)), parts);
for (const [program, file] of NOTICES) {
  const lines = readFileSync(join(root, file), "utf8").split("\n");
  const noted = TOOLCHAIN.filter(({ name, licence, origin }) => lines.includes(`${name}: ${licence}, ${origin}`));
  compare(`toolchain in the notices of ${program}`, new Set(noted.map(({ name }) => name)), parts);
}
process.exit(isWrong ? 1 : 0);
