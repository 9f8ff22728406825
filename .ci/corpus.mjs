// Unpacks and packs the corpora of the fuzzing targets. tests/fuzz/corpus/TARGET.jsonl has one input per line: a JSON string,
// or for other bytes than UTF-8 an object with their base64. libFuzzer wants a file for each.
//
//   node .ci/corpus.mjs unpack TARGET.jsonl FOLDER
//   node .ci/corpus.mjs pack FOLDER TARGET.jsonl
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

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
  for (const line of readFileSync(from, "utf8").split("\n").filter(Boolean)) {
    const bytes = bytesOf(line);
    writeFileSync(join(to, createHash("sha256").update(bytes).digest("hex").slice(0, 16)), bytes);
  }
} else if (action === "pack") {
  const lines = readdirSync(from).map((name) => lineOf(readFileSync(join(from, name))));
  // Short ones first, so that a change of the corpus is a small change of the file.
  lines.sort((one, other) => one.length - other.length || (one < other ? -1 : 1));
  writeFileSync(to, `${[...new Set(lines)].join("\n")}\n`);
} else {
  throw new Error("usage: corpus.mjs unpack FILE FOLDER | pack FOLDER FILE");
}
