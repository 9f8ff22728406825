#!/bin/sh
# Grants the app's identity its rights in the database: runs grant.sql as the logged-in user (`az login`, `azd auth login`).
# azd runs it after `azd provision`, with the outputs of the templates and the variables of `azd env set`. Without azd:
#   SQL_SERVER_FQDN=… SQL_DATABASE=… IDENTITY_NAME=… IDENTITY_CLIENT_ID=… SOURCE_TABLES=dbo.orders infra/sql/grant.sh
# With GRANT_SQL=false it prints the script instead, for an administrator of the database.
set -eu
here=$(dirname "$0")
lists='SOURCE_TABLES TRACKED_TABLES TARGET_TABLES FENCE_TABLE LEDGER_TABLE STATE_TABLE JOURNAL_TABLE'

fail() {
  echo "grant.sh: $1" >&2
  exit 2
}

# The sqlcmd of the ODBC driver cannot log in with the token of `az login`.
check_tool() {
  command -v sqlcmd >/dev/null ||
    fail "sqlcmd is missing; install go-sqlcmd: https://aka.ms/go-sqlcmd (or print the script instead: azd env set GRANT_SQL false)"
  case $(sqlcmd --version 2>&1 || true) in
    *[Uu]nknown*) ;;
    *[Vv]ersion*[0-9]*) return ;;
  esac
  fail "$(command -v sqlcmd) is the sqlcmd of the ODBC driver, not go-sqlcmd; install go-sqlcmd and put it first in PATH: https://aka.ms/go-sqlcmd (or print the script instead: azd env set GRANT_SQL false)"
}
if [ "${1:-}" = --check-tool ]; then
  check_tool
  exit 0
fi

SOURCE_TABLES=${SOURCE_TABLES:-${SOURCE_TABLE:-}}
for name in SQL_SERVER_FQDN SQL_DATABASE IDENTITY_NAME IDENTITY_CLIENT_ID; do
  eval "value=\${$name:-}"
  [ -n "$value" ] || fail "$name is not set"
done
[ -n "$SOURCE_TABLES${TARGET_TABLES:-}${STATE_TABLE:-}" ] ||
  fail "no tables are set; set SOURCE_TABLES, such as: azd env set SOURCE_TABLES dbo.orders"
# Values become part of the statements as text. sqlcmd itself reads commas.
for name in IDENTITY_NAME IDENTITY_CLIENT_ID $lists; do
  eval "value=\${$name:-}"
  case $value in
    *[\'\",\ \|\&\\]* | *'$('*) fail "$name must not contain a quotation mark, comma, blank, |, &, backslash or \$(: $value" ;;
  esac
  eval "$name=\${value:-none}"
done

if [ "${GRANT_SQL:-true}" = false ]; then
  script=
  for name in IDENTITY_NAME IDENTITY_CLIENT_ID $lists; do
    eval "value=\$$name"
    script="${script}s|\$($name)|$value|g;"
  done
  echo "grant.sh: GRANT_SQL is false. Let a Microsoft Entra administrator run this in $SQL_DATABASE on $SQL_SERVER_FQDN:" >&2
  sed "$script" "$here/grant.sql"
  exit 0
fi

check_tool
run() {
  sqlcmd -S "tcp:$SQL_SERVER_FQDN,1433" -d "$SQL_DATABASE" --authentication-method ActiveDirectoryDefault -b "$@"
}
if [ "${SQL_DEMO:-false}" = true ]; then
  run -i "$here/demo.sql"
fi
set --
for name in IDENTITY_NAME IDENTITY_CLIENT_ID $lists; do
  eval "value=\$$name"
  set -- "$@" -v "$name=$value"
done
run -i "$here/grant.sql" "$@"
