// Unpacks and packs the corpora of the fuzzing targets, since libFuzzer wants a file for each input. A corpus has one input
// per line: a JSON string, or for other bytes than UTF-8 an object with their base64. TARGET.seeds.jsonl is written by
// people, TARGET.jsonl by this script.
//
//   node .ci/corpus.mjs unpack TARGET FOLDER
//   node .ci/corpus.mjs pack FOLDER TARGET      keeps the shortest inputs, up to 128 KiB
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const BYTES_MAX = 128 * 1024;
const fileOf = (target, kind = "") => new URL(`../tests/fuzz/corpus/${target}${kind}.jsonl`, import.meta.url);
const linesOf = (file) => (existsSync(file) ? readFileSync(file, "utf8").split("\n").filter(Boolean) : []);

const [action, from, to] = process.argv.slice(2);
const bytesOf = (line) => {
  const input = JSON.parse(line);
  return typeof input === "string" ? Buffer.from(input, "utf8") : Buffer.from(input.base64, "base64");
};
const lineOf = (bytes) => {
  const text = bytes.toString("utf8");
  const isText = Buffer.from(text, "utf8").equals(bytes);
  return JSON.stringify(isText ? text : { base64: bytes.toString("base64") });
};

if (action === "unpack") {
  mkdirSync(to, { recursive: true });
  for (const line of [fileOf(from, ".seeds"), fileOf(from)].flatMap(linesOf)) {
    const bytes = bytesOf(line);
    writeFileSync(join(to, createHash("sha256").update(bytes).digest("hex").slice(0, 16)), bytes);
  }
} else if (action === "pack") {
  const lines = readdirSync(from).map((name) => lineOf(readFileSync(join(from, name))));
  // Short ones first, so that a change of the corpus is a small change of the file.
  lines.sort((one, other) => one.length - other.length || (one < other ? -1 : 1));
  const seeds = new Set(linesOf(fileOf(to, ".seeds")));
  let room = BYTES_MAX;
  const kept = lines.filter((line) => !seeds.has(line) && (room -= Buffer.byteLength(line) + 1) >= 0);
  writeFileSync(fileOf(to), kept.map((line) => `${line}\n`).join(""));
} else {
  throw new Error("usage: corpus.mjs unpack TARGET FOLDER | pack FOLDER TARGET");
}
