#!/bin/sh
# Provides the zip that azd deploys: a copy of the released one that HIGHWATER_PACKAGE names, else a build.
#   azd env set HIGHWATER_PACKAGE highwater-0.1.0-app.zip
set -eu
zip=$1
if [ -z "${HIGHWATER_PACKAGE:-}" ]; then
  exec "$(dirname "$0")/../.ci/deployable" "$zip"
fi
if [ ! -f "$HIGHWATER_PACKAGE" ]; then
  echo "package.sh: HIGHWATER_PACKAGE is $HIGHWATER_PACKAGE, which does not exist; download the zip of a release, or build one: azd env set HIGHWATER_PACKAGE ''" >&2
  exit 2
fi
# A zip begins with these two letters; a saved error page does not.
if [ "$(head -c 2 "$HIGHWATER_PACKAGE")" != PK ]; then
  echo "package.sh: $HIGHWATER_PACKAGE is not a zip; download the file highwater-VERSION-app.zip of a release" >&2
  exit 2
fi
mkdir -p "$(dirname "$zip")"
cp "$HIGHWATER_PACKAGE" "$zip"
