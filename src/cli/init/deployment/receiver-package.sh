#!/bin/sh
# Builds the receiver for Azure's Linux, and zips it with its function. Needs cargo-zigbuild and zip.
set -eu
cd "$(dirname "$0")"
target=x86_64-unknown-linux-musl
cargo zigbuild --release --target "$target"
cp "${CARGO_TARGET_DIR:-target}/$target/release/receiver" handler
mkdir -p .package
rm -f .package/receiver.zip
zip --quiet .package/receiver.zip handler host.json @@poller@@/function.json
