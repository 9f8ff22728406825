// The crates that are linked into the deployable program, in order, by what cargo itself says. What only helps
// to build it (macros, build scripts, tests) is left out.
import { execFileSync } from "node:child_process";

export const TARGET = "x86_64-unknown-linux-musl";

export const metadata = () => {
  const options = ["--format-version", "1", "--locked", "--no-default-features", "--filter-platform", TARGET];
  return JSON.parse(execFileSync("cargo", ["metadata", ...options], { maxBuffer: 1 << 28 }));
};

/** Returns `{ root, crates, dependencies }`; the last maps a crate's id to the ids it is linked with. */
export const linked = () => {
  const { packages, resolve } = metadata();
  const byId = new Map(packages.map((one) => [one.id, one]));
  const nodes = new Map(resolve.nodes.map((node) => [node.id, node]));
  const isMacro = (id) => byId.get(id).targets.some((target) => target.kind.includes("proc-macro"));
  const dependencies = new Map();
  const follow = (id) => {
    if (dependencies.has(id)) return;
    const normal = nodes.get(id).deps.filter((dep) => dep.dep_kinds.some((kind) => kind.kind === null));
    const ids = normal.map((dep) => dep.pkg).filter((dep) => !isMacro(dep));
    dependencies.set(id, [...new Set(ids)].sort());
    ids.forEach(follow);
  };
  follow(resolve.root);
  const root = byId.get(resolve.root);
  const crates = [...dependencies.keys()].filter((id) => id !== resolve.root).map((id) => byId.get(id));
  const key = (one) => `${one.name} ${one.version}`;
  crates.sort((one, other) => (key(one) < key(other) ? -1 : 1));
  return { root, crates, dependencies };
};
