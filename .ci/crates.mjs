// The crates that are linked into a program, in order, according to cargo. Build-time crates (macros, build scripts,
// tests) are excluded, and so are crates that no linked crate uses. Also what is linked and is not a crate of Cargo.lock.
// .ci/linked.mjs compares the result with the linker.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

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

const RUST = "https://github.com/rust-lang/rust";
const LLVM = "https://github.com/llvm/llvm-project";
const OF_RUST = ["Copyright (c) The Rust Project Developers (see https://thanks.rust-lang.org)"];

/**
 * What the toolchain adds to a static program: licence and origin, copyrights, the texts of the licences (files of
 * `share/doc/rust/licenses` in the toolchain), and the libraries and objects by which it reaches the linker. `in` names the
 * part that contains it.
 */
export const TOOLCHAIN = [
  {
    name: "rust-std",
    licence: "(MIT OR Apache-2.0) AND Unicode-3.0",
    origin: RUST,
    rights: OF_RUST,
    texts: ["MIT", "Unicode-3.0"],
    linked: ["alloc", "core", "panic_unwind", "rustc_std_workspace_alloc", "rustc_std_workspace_core", "std", "std_detect", "unwind"],
  },
  ...[
    ["addr2line", "Apache-2.0 OR MIT", "gimli-rs/addr2line", "Copyright (c) 2016-2018 The gimli Developers"],
    ["adler2", "0BSD OR MIT OR Apache-2.0", "oyvindln/adler2", "Copyright (C) Jonas Schievink <jonasschievink@gmail.com>"],
    ["cfg_if", "MIT OR Apache-2.0", "rust-lang/cfg-if", "Copyright (c) 2014 Alex Crichton"],
    ["gimli", "MIT OR Apache-2.0", "gimli-rs/gimli", "Copyright (c) 2015 The Rust Project Developers"],
    ["hashbrown", "MIT OR Apache-2.0", "rust-lang/hashbrown", "Copyright (c) 2016 Amanieu d'Antras"],
    ["libc", "MIT OR Apache-2.0", "rust-lang/libc", "Copyright (c) 2014-2020 The Rust Project Developers"],
    ["memchr", "Unlicense OR MIT", "BurntSushi/memchr", "Copyright (c) 2015 Andrew Gallant"],
    ["miniz_oxide", "MIT OR Zlib OR Apache-2.0", "Frommi/miniz_oxide", "Copyright (c) 2017 Frommi", "Copyright (c) 2017-2024 oyvindln"],
    ["object", "Apache-2.0 OR MIT", "gimli-rs/object", "Copyright (c) 2015 The Gimli Developers"],
    ["rustc_demangle", "MIT OR Apache-2.0", "rust-lang/rustc-demangle", "Copyright (c) 2014 Alex Crichton"],
  ].map(([name, licence, repository, ...rights]) => ({
    name, licence, origin: `https://github.com/${repository}`, rights, texts: ["MIT"], linked: [name], in: "rust-std",
  })),
  {
    name: "compiler_builtins",
    licence: "MIT AND Apache-2.0 WITH LLVM-exception AND (MIT OR Apache-2.0)",
    origin: "https://github.com/rust-lang/compiler-builtins",
    rights: OF_RUST,
    texts: ["MIT", "Apache-2.0", "LLVM-exception"],
    linked: ["compiler_builtins"],
  },
  {
    name: "musl",
    licence: "MIT AND BSD-2-Clause",
    origin: "https://musl.libc.org",
    rights: ["Copyright (c) 2005-2020 Rich Felker, et al.", "Copyright (c) 2001-2009 Ville Laurikari (regular expressions)"],
    texts: ["MIT", "BSD-2-Clause"],
    linked: ["-lc", "crti.o", "crtn.o", "rcrt1.o"],
  },
  {
    name: "llvm-libunwind",
    licence: "Apache-2.0 WITH LLVM-exception",
    origin: LLVM,
    rights: ["Copyright (c) The LLVM Project contributors"],
    texts: ["Apache-2.0", "LLVM-exception"],
    linked: ["-lunwind"],
  },
  {
    name: "llvm-compiler-rt",
    licence: "Apache-2.0 WITH LLVM-exception",
    origin: LLVM,
    rights: ["Copyright (c) The LLVM Project contributors"],
    texts: ["Apache-2.0", "LLVM-exception"],
    linked: ["crtbeginS.o", "crtendS.o"],
  },
];

const rustc = (...options) => execFileSync("rustc", options, { encoding: "utf8" }).trim();
export const SYSROOT = rustc("--print", "sysroot");
/** The C library of static programs that comes with the toolchain; absent if the target is not installed. */
export const LIBC = join(SYSROOT, "lib/rustlib", TARGET, "lib/self-contained/libc.a");

/** Returns the version of a part of the toolchain; `undefined` if it cannot be read here. */
export const versionOf = ({ name }) => {
  const of = (field) => rustc("-vV").match(new RegExp(`^${field}: (.*)$`, "m"))[1];
  if (name === "musl") return existsSync(LIBC) ? readFileSync(LIBC, "latin1").match(/\0(1\.\d+\.\d+)\0/)[1] : undefined;
  return of(name.startsWith("llvm-") ? "LLVM version" : "release");
};

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
