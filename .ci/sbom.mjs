// Prints a bill of materials of the deployable program: CycloneDX 1.5, with every crate that is linked into it,
// its checksum, licence and place in the graph, and what the toolchain adds: the standard library with its crates, the C
// library and the libraries of LLVM. The same sources and toolchain give the same bytes.
//
//   node .ci/sbom.mjs [COMMIT] > highwater.cdx.json
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { HANDLER, TOOLCHAIN, linked, versionOf } from "./crates.mjs";

const lock = readFileSync(join(dirname(fileURLToPath(import.meta.url)), "..", "Cargo.lock"), "utf8");
const checksums = new Map();
for (const block of lock.split("[[package]]")) {
  const field = (name) => block.match(new RegExp(`^${name} = "(.*)"$`, "m"))?.[1];
  if (field("checksum")) checksums.set(`${field("name")} ${field("version")}`, field("checksum"));
}

// The versions of the crates in the standard library are those of its source.
const partOf = (whole) => (part) => {
  const version = part.in ? undefined : versionOf(part);
  const at = whole ? `#${part.name}` : version ? `@${version}` : "";
  const purl = `pkg:generic/${whole ?? part.name}${whole ? `@${versionOf({ name: whole })}` : ""}${at}`;
  const components = TOOLCHAIN.filter((other) => other.in === part.name).map(partOf(part.name));
  return {
    type: "library",
    "bom-ref": purl,
    name: part.name,
    ...(version && { version }),
    licenses: [{ expression: part.licence }],
    purl,
    externalReferences: [{ type: "vcs", url: part.origin }],
    ...(components.length > 0 && { components }),
  };
};
const toolchain = TOOLCHAIN.filter((part) => !part.in).map(partOf());

const [commit] = process.argv.slice(2);
const { root, crates, dependencies } = linked(HANDLER);
const ref = (crate) => `pkg:cargo/${crate.name}@${crate.version}`;
const refs = new Map([root, ...crates].map((crate) => [crate.id, ref(crate)]));
const component = (crate) => {
  const sum = checksums.get(`${crate.name} ${crate.version}`);
  const licence = crate.license?.replace(/\s*\/\s*/g, " OR ");
  return {
    type: crate === root ? "application" : "library",
    "bom-ref": ref(crate),
    name: crate.name,
    version: crate.version,
    ...(sum && { hashes: [{ alg: "SHA-256", content: sum }] }),
    ...(licence && { licenses: [{ expression: licence }] }),
    purl: ref(crate),
    ...(crate.repository && { externalReferences: [{ type: "vcs", url: crate.repository }] }),
  };
};

const properties = commit ? [{ name: "highwater:commit", value: commit }] : [];
const bom = {
  bomFormat: "CycloneDX",
  specVersion: "1.5",
  version: 1,
  metadata: { component: component(root), properties },
  components: [...crates.map(component), ...toolchain],
  dependencies: [root, ...crates].map((crate) => ({
    ref: ref(crate),
    dependsOn: dependencies.get(crate.id).map((id) => refs.get(id)),
  })),
};
process.stdout.write(`${JSON.stringify(bom, null, 2)}\n`);
