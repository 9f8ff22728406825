#!/usr/bin/env python3
"""Packs the command line for people without a Rust toolchain: a wheel (pip, pipx, uvx) and npm packages (npx).

    .ci/installers.py COMMANDS HANDLER OUT [PLATFORM]

COMMANDS is the program `highwater` for PLATFORM (linux-x64 by default), HANDLER the one that is deployed to Azure, which is
always for x86_64 Linux. Both packages install the handler as libexec/highwater/handler, where `highwater package` finds it.
The npm package `highwater` starts the program of the package for the platform, which npm selects. The same input gives the
same bytes.
"""

import base64
import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

# Names of npm, and the tags of wheels: packaging.python.org/specifications/platform-compatibility-tags
PLATFORMS = {
    # Static: no C library is needed.
    "linux-x64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "linux-arm64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    "darwin-arm64": "macosx_11_0_arm64",
}
ROOT = Path(__file__).resolve().parent.parent
SUMMARY = "A polling trigger for Microsoft SQL Server on Azure Functions"
PROGRAM, DATA = 0o755, 0o644

LAUNCHER = """#!/usr/bin/env node
// Starts the program of the package for this platform.
const { spawn } = require("node:child_process");
const { join, dirname } = require("node:path");

const name = `highwater-${process.platform}-${process.arch}`;
let folder;
try {
  folder = dirname(require.resolve(`${name}/package.json`));
} catch {
  console.error(`highwater: there is no program for ${process.platform}-${process.arch}, or npm did not install the package ${name}`);
  process.exit(1);
}
const child = spawn(join(folder, "bin", "highwater"), process.argv.slice(2), { stdio: "inherit" });
// A terminal sends Ctrl-C to the child itself.
const isSent = (signal) => signal === "SIGINT" && process.stdin.isTTY;
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => isSent(signal) || child.kill(signal));
child.on("error", (error) => {
  console.error(`highwater: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (!signal) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
"""


def cargo_version() -> str:
    return re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def licences() -> dict[str, bytes]:
    notices = (ROOT / "docs/third-party-notices-highwater.txt").read_bytes()
    return {"LICENSE": (ROOT / "LICENSE").read_bytes(), "THIRD-PARTY-NOTICES": notices}


def wheel(out: Path, version: str, platform: str, commands: bytes, handler: bytes) -> Path:
    tag = f"py3-none-{PLATFORMS[platform]}"
    info, data = f"highwater-{version}.dist-info", f"highwater-{version}.data"
    metadata = f"Metadata-Version: 2.4\nName: highwater\nVersion: {version}\nSummary: {SUMMARY}\n"
    metadata += "License-Expression: MIT\nLicense-File: LICENSE\nLicense-File: THIRD-PARTY-NOTICES\nRequires-Python: >=3.8\n"
    tags = "".join(f"Tag: py3-none-{part}\n" for part in PLATFORMS[platform].split("."))
    files = [
        (f"{data}/scripts/highwater", commands, PROGRAM),
        (f"{data}/data/libexec/highwater/handler", handler, PROGRAM),
        (f"{info}/METADATA", metadata.encode(), DATA),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: highwater\nRoot-Is-Purelib: false\n{tags}".encode(), DATA),
    ]
    files += [(f"{info}/licenses/{name}", content, DATA) for name, content in licences().items()]
    record = ""
    for name, content, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), DATA))
    path = out / f"highwater-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name)  # of 1980-01-01
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def npm(out: Path, manifest: dict, files: list[tuple[str, bytes, int]]) -> Path:
    manifest = {**manifest, "description": SUMMARY, "license": "MIT"}
    text = json.dumps(manifest, indent=2) + "\n"
    path = out / f"{manifest['name']}-{manifest['version']}.tgz"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        notices = [(name, content, DATA) for name, content in licences().items()]
        for name, content, mode in [("package.json", text.encode(), DATA), *files, *notices]:
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode, entry.mtime = len(content), mode, 499162500  # as `npm pack`: 1985-10-26
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path


def main() -> None:
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    commands, handler, out = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_bytes(), Path(sys.argv[3])
    platform = sys.argv[4] if len(sys.argv) == 5 else "linux-x64"
    if platform not in PLATFORMS:
        sys.exit(f"platform `{platform}` is none of {', '.join(PLATFORMS)}")
    version = cargo_version()
    system, processor = platform.split("-")
    out.mkdir(parents=True, exist_ok=True)
    launcher = {
        "name": "highwater",
        "version": version,
        "bin": {"highwater": "bin/highwater.js"},
        "engines": {"node": ">=18"},
        "optionalDependencies": {f"highwater-{name}": version for name in PLATFORMS},
    }
    program = {"name": f"highwater-{platform}", "version": version, "os": [system], "cpu": [processor]}
    programs = [("bin/highwater", commands, PROGRAM), ("libexec/highwater/handler", handler, PROGRAM)]
    print(wheel(out, version, platform, commands, handler))
    print(npm(out, program, programs))
    print(npm(out, launcher, [("bin/highwater.js", LAUNCHER.encode(), PROGRAM)]))


main()
