#!/bin/sh
# Gives the app's identity its rights in the database: grant.sql, as who is logged in (`az login`, `azd auth login`).
# azd runs this after `azd provision`, with what the templates put out and `azd env set` has set; without azd:
#   SQL_SERVER_FQDN=… SQL_DATABASE=… IDENTITY_NAME=… IDENTITY_PRINCIPAL_ID=… SOURCE_TABLES=dbo.orders infra/sql/grant.sh
set -eu
here=$(dirname "$0")
none=none

for name in SQL_SERVER_FQDN SQL_DATABASE IDENTITY_NAME IDENTITY_PRINCIPAL_ID; do
  eval "value=\${$name:-}"
  [ -n "$value" ] || { echo "grant.sh: $name is not set" >&2; exit 2; }
done
if [ "${SQL_DEMO:-false}" = true ]; then
  SOURCE_TABLES=${SOURCE_TABLES:-dbo.orders}
fi
if [ -z "${SOURCE_TABLES:-}${TARGET_TABLES:-}${STATE_TABLE:-}" ]; then
  echo "grant.sh: no tables are named; set SOURCE_TABLES, such as: azd env set SOURCE_TABLES dbo.orders" >&2
  exit 2
fi
# Values are put into the statements as text. Commas are read by sqlcmd itself.
for name in IDENTITY_NAME IDENTITY_PRINCIPAL_ID SOURCE_TABLES TRACKED_TABLES TARGET_TABLES FENCE_TABLE LEDGER_TABLE STATE_TABLE; do
  eval "value=\${$name:-}"
  case $value in
    *[\'\",\ ]* | *'$('*) echo "grant.sh: $name must have no quote, comma, blank or \$(: $value" >&2; exit 2 ;;
  esac
done
command -v sqlcmd >/dev/null || { echo "grant.sh: sqlcmd is missing: https://aka.ms/go-sqlcmd" >&2; exit 2; }

run() {
  sqlcmd -S "tcp:$SQL_SERVER_FQDN,1433" -d "$SQL_DATABASE" --authentication-method ActiveDirectoryDefault -b "$@"
}
if [ "${SQL_DEMO:-false}" = true ]; then
  run -i "$here/demo.sql"
fi
run -i "$here/grant.sql" \
  -v "IDENTITY_NAME=$IDENTITY_NAME" -v "IDENTITY_PRINCIPAL_ID=$IDENTITY_PRINCIPAL_ID" \
  -v "SOURCE_TABLES=${SOURCE_TABLES:-$none}" -v "TRACKED_TABLES=${TRACKED_TABLES:-$none}" \
  -v "TARGET_TABLES=${TARGET_TABLES:-$none}" -v "FENCE_TABLE=${FENCE_TABLE:-$none}" \
  -v "LEDGER_TABLE=${LEDGER_TABLE:-$none}" -v "STATE_TABLE=${STATE_TABLE:-$none}"
