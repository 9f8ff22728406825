// Writes the third-party notices of the handler and of the command line, and a compressed copy of the first for
// `package`: every crate that is linked into the program, with the text of its licence from the sources that cargo has
// fetched, and what the toolchain adds, with the texts that the toolchain has. Run it after a change of Cargo.lock:
//
//   node .ci/notices.mjs
//
// If a crate offers several licences, its MIT text is used if there is one, because it is the shortest. Texts that
// differ only in their copyright lines are printed once.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { COMMANDS, HANDLER, NOTICES, SYSROOT, TOOLCHAIN, inOrder, linked } from "./crates.mjs";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
const COMPRESSED = join(ROOT, "src/cli/package/contents/third-party-notices.txt.gz");
const IS_LICENCE = /^(licen[cs]e|copying|notice|unlicense|copyright)/i;
const IS_COPYRIGHT = /^\W*(copyright|©|\(c\))/i;

const textsOf = (crate) => {
  const folder = dirname(crate.manifest_path);
  let files = readdirSync(folder).filter((name) => IS_LICENCE.test(name) && !/\.(rs|html|hbs)$/.test(name));
  const may = / OR |\//.test(crate.license ?? "");
  const mit = files.filter((name) => /mit/i.test(name));
  if (may && mit.length > 0) files = [...mit, ...files.filter((name) => /^notice/i.test(name))];
  return files.sort().flatMap((name) => {
    try {
      return [readFileSync(join(folder, name), "utf8").replace(/\r/g, "").trim()];
    } catch (error) {
      if (error.code === "EISDIR") return [];
      throw error;
    }
  });
};

/** Texts of the licences of the toolchain, by the name of their part. Names of holders are placeholders in them. */
const ofToolchain = TOOLCHAIN.flatMap(({ name, rights, texts }) =>
  texts.map((text) => [name, rights, readFileSync(join(SYSROOT, "share/doc/rust/licenses", `${text}.txt`), "utf8").trim()]),
);

const write = (name, program) => {
  // Our own crates need no notice.
  const crates = linked(name).crates.filter((crate) => crate.source !== null).sort(inOrder);
  const groups = new Map(); // From the words of a text without its copyright lines, to the text and its crates.
  const without = [];
  const label = (crate) => `${crate.name} ${crate.version}`;
  const add = (owner, text, rights) => {
    const isShort = text.length < 4_000; // A longer text may contain such a line as part of the licence.
    const lines = text.split("\n");
    const own = isShort ? lines.filter((line) => IS_COPYRIGHT.test(line)).map((line) => line.trim()) : [];
    const body = isShort ? lines.filter((line) => !IS_COPYRIGHT.test(line)).join("\n").trim() : text;
    const words = body.replace(/\s+/g, " ");
    const group = groups.get(words) ?? { body, owners: [] };
    group.owners.push({ label: owner, rights: own.every((line) => line.includes("<year>")) ? rights : own });
    groups.set(words, group);
  };
  for (const crate of crates) {
    const texts = textsOf(crate);
    if (texts.length === 0) without.push(crate);
    for (const text of texts) add(label(crate), text, []);
  }
  for (const [name, rights, text] of ofToolchain) add(name, text, rights);

  const parts = [
    "Third-party notices",
    "",
    `Highwater's own licence is in the file LICENSE. Its program \`${program}\` is linked with the crates below. Each line has name,`,
    "version, licence and origin; the texts of the licences follow. A static program also contains these parts of the toolchain:",
    "the Rust standard library with the crates it is made of, the C library musl, and the libraries of LLVM.",
    "",
    ...TOOLCHAIN.map(({ name, licence, origin }) => `${name}: ${licence}, ${origin}`),
    "",
    ...crates.map((crate) => [label(crate), crate.license ?? "see its text", crate.repository ?? ""].join(" | ").trimEnd()),
    "",
  ];
  if (without.length > 0) {
    parts.push("-".repeat(80), "These come without a text; the licence that their line names applies as published by its owner:", "");
    parts.push(...without.map((crate) => `${label(crate)}: ${crate.authors.join(", ") || "its authors"}`), "");
  }
  for (const { body, owners } of groups.values()) {
    parts.push("-".repeat(80));
    for (const { label: name, rights } of owners) parts.push([name, ...rights].join("\n    "));
    parts.push("", body, "");
  }
  const text = parts.map((part) => part.replace(/[^\S\n]+$/gm, "")).join("\n");
  writeFileSync(join(ROOT, NOTICES.get(name)), text);
  console.log(`${program}: ${crates.length} crates, ${groups.size} texts, ${without.length} without one`);
  return text;
};

writeFileSync(COMPRESSED, gzipSync(write(HANDLER, "handler"), { level: 9 }));
write(COMMANDS, "highwater");
