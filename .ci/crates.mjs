// The crates that are linked into a program, in order, according to cargo. Build-time crates (macros, build scripts,
// tests) are excluded, and so are crates that no linked crate uses. .ci/linked.mjs compares the result with the linker.
import { execFileSync } from "node:child_process";

export const TARGET = "x86_64-unknown-linux-musl";
/** The packages of the deployed handler and of the command line. */
export const [HANDLER, COMMANDS] = ["highwater-handler", "highwater-cli"];

/** Where the third-party notices of each program are. */
export const NOTICES = new Map([
  [HANDLER, "docs/third-party-notices.txt"],
  [COMMANDS, "docs/third-party-notices-highwater.txt"],
]);

/** Dependencies that a linked crate declares and never uses, so that the compiler does not load them. */
const UNUSED = new Map([
  ["adler2", "miniz_oxide has simd-adler32 in its place"],
  ["num-traits", "tiberius needs it only for a feature that is off"],
]);

const cargo = (...options) => execFileSync("cargo", [...options, "--locked"], { encoding: "utf8", maxBuffer: 1 << 28 });

/** Names and versions of a package's crates, with the features of a separate build. */
const tree = (name) => {
  const lines = cargo("tree", "-p", name, "-e", "normal", "--target", TARGET, "--prefix", "none");
  return new Set(lines.split("\n").map((line) => line.split(" ").slice(0, 2).join(" ")));
};

/** Returns `{ root, crates, dependencies }`; the last maps a crate's id to the ids it is linked with. */
export const linked = (name) => {
  // The metadata unify the features of all packages of the workspace, so they may include more crates.
  const { packages, resolve } = JSON.parse(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET));
  const built = tree(name);
  const byId = new Map(packages.map((one) => [one.id, one]));
  const nodes = new Map(resolve.nodes.map((node) => [node.id, node]));
  const isMacro = (id) => byId.get(id).targets.some((target) => target.kind.includes("proc-macro"));
  const isBuilt = (id) => built.has(`${byId.get(id).name} v${byId.get(id).version}`);
  const dependencies = new Map();
  const follow = (id) => {
    if (dependencies.has(id)) return;
    const normal = nodes.get(id).deps.filter((dep) => dep.dep_kinds.some((kind) => kind.kind === null));
    const isUsed = (id) => !UNUSED.has(byId.get(id).name);
    const ids = normal.map((dep) => dep.pkg).filter((dep) => !isMacro(dep) && isBuilt(dep) && isUsed(dep));
    dependencies.set(id, [...new Set(ids)].sort());
    ids.forEach(follow);
  };
  const root = packages.find((one) => one.name === name);
  follow(root.id);
  const crates = [...dependencies.keys()].filter((id) => id !== root.id).map((id) => byId.get(id));
  crates.sort(inOrder);
  return { root, crates, dependencies };
};

const key = (one) => `${one.name} ${one.version}`;
export const inOrder = (one, other) => (key(one) < key(other) ? -1 : 1);
