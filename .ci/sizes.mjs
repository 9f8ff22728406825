// Prints the program's size by section, and the code size of each crate.
//
//   node .ci/sizes.mjs BINARY [CRATES]     the largest CRATES, 30 by default
//
// The program needs its symbols, which `.ci/deployable` strips. Afterwards, this links it again with symbols:
//
//   cargo rustc --locked --release -p highwater-handler --target x86_64-unknown-linux-musl -- -C strip=none
//
// Instances of generic functions count for the crate that defines them; drop glue counts for the crate of
// its type. Needs `nm` and `size` of binutils.
import { execFileSync } from "node:child_process";

const OF_RUST = new Set(["core", "alloc", "std"]);
const [binary, shown = "30"] = process.argv.slice(2);
const run = (tool, ...args) => execFileSync(tool, args, { encoding: "utf8", maxBuffer: 1 << 30 });
const megabytes = (bytes) => (bytes / 1e6).toFixed(2).padStart(6);

/** The crate of a symbol. */
const crateOf = (name) => {
  const crates = [...name.matchAll(/(?<![\w:])(?:<|&|\*|mut |const |dyn |\[|\()*([a-z]\w*)::/g)].map((match) => match[1]);
  if (crates.length === 0) return /^_*(aws_lc|[A-Z0-9_]+_|bn_|ec_|p256|x25519|sha|aes|gcm|rsaz|ml_|fiat)/.test(name) ? "C (aws-lc)" : "C and others";
  return crates.find((crate) => !OF_RUST.has(crate)) ?? crates[0];
};

const sections = run("size", "-A", binary)
  .split("\n")
  .map((line) => line.trim().split(/\s+/))
  .filter(([name, size]) => name?.startsWith(".") && Number(size) > 100_000);
console.log("section");
for (const [name, size] of sections) console.log(`${megabytes(Number(size))} MB  ${name}`);

const crates = new Map();
for (const line of run("nm", "--print-size", "--demangle", binary).split("\n")) {
  const [, size, kind, name] = /^\w+ (\w+) ([tTwW]) (.+)$/.exec(line) ?? [];
  if (!kind) continue;
  const crate = crateOf(name);
  crates.set(crate, (crates.get(crate) ?? 0) + parseInt(size, 16));
}
console.log("\ncode of a crate");
const largest = [...crates].sort((a, b) => b[1] - a[1]);
for (const [crate, size] of largest.slice(0, Number(shown))) console.log(`${megabytes(size)} MB  ${crate}`);
const rest = largest.slice(Number(shown)).reduce((sum, [, size]) => sum + size, 0);
console.log(`${megabytes(rest)} MB  ${Math.max(0, largest.length - Number(shown))} others`);
