#!/bin/sh
# Checks variables, tools and region before anything is created, and finds what the demo database needs. azd runs it
# before `azd up` and `azd provision`. It changes nothing but variables of the azd environment.
set -eu
here=$(dirname "$0")
wrong=0

fail() {
  echo "check.sh: $1" >&2
  wrong=1
}
# Keeps a variable for azd, and for the rest of this script.
keep() {
  azd env set "$1" "$2"
  eval "$1=\$2"
  echo "check.sh: set $1 to $2"
}

# azd puts values into JSON as plain text.
for name in $(sed -n 's/.*\${\([A-Z_]*\)[=}].*/\1/p' "$here/main.parameters.json"); do
  eval "value=\${$name:-}"
  case $value in
    *[\"\\]*)
      case $name in
        RECEIVER_DATABASE | WEBHOOK_SECRET) value="(a secret)" ;;
      esac
      fail "$name must not contain a quotation mark or a backslash: $value" ;;
  esac
done

# sqlcmd takes the names of tables as text, and splits them at blanks and commas: grant.sh would fail after everything
# else was created. In a project that `highwater init --handler` wrote, the table has a default.
table=${SOURCE_TABLE:-$(sed -n 's/.*\${SOURCE_TABLE=\([^}]*\)}.*/\1/p' "$here/main.parameters.json")}
[ -n "${SOURCE_TABLES:-}" ] || SOURCE_TABLES=$table
for name in SOURCE_TABLES TRACKED_TABLES TARGET_TABLES FENCE_TABLE LEDGER_TABLE STATE_TABLE JOURNAL_TABLE; do
  eval "value=\${$name:-}"
  case $value in
    *[[:blank:],]*) fail "$name must not contain a blank or a comma, separate tables by semicolons: $value" ;;
  esac
done

# In a project that `highwater init --handler` wrote, the runtime has a default.
receiver=${RECEIVER_RUNTIME:-$(sed -n 's/.*\${RECEIVER_RUNTIME=\([a-z-]*\)}.*/\1/p' "$here/main.parameters.json")}
if [ -n "$receiver" ] && [ -z "${WEBHOOK_SECRET:-}" ]; then
  azd env set WEBHOOK_SECRET "whsec_$(head -c 32 /dev/urandom | base64)"
  echo "check.sh: set WEBHOOK_SECRET to a new secret"
fi

if [ "${SQL_DEMO:-false}" = true ]; then
  [ -n "${SOURCE_TABLE:-}" ] || keep SOURCE_TABLE dbo.orders
  [ -n "${SOURCE_CURSOR:-}" ] || keep SOURCE_CURSOR version
  [ -n "${SOURCE_KEY:-}" ] || keep SOURCE_KEY id
  if [ -z "${DEPLOYER_ADDRESS:-}" ] && [ "${GRANT_SQL:-true}" != false ]; then
    address=$(curl --fail --silent --show-error --max-time 10 https://api.ipify.org || true)
    case $address in
      *[!0-9.]* | '') fail "the demo server must admit this machine, and its public address was not found; set it: azd env set DEPLOYER_ADDRESS 203.0.113.7" ;;
      *) keep DEPLOYER_ADDRESS "$address" ;;
    esac
  fi
else
  [ -n "${SOURCE_SQL_SERVER:-}" ] || fail "no source server; set it: azd env set SOURCE_SQL_SERVER shop.database.windows.net (or try a demo database: azd env set SQL_DEMO true)"
  [ -n "${SOURCE_SQL_DATABASE:-}" ] || [ -z "${SOURCE_SQL_SERVER:-}" ] || fail "no source database; set it: azd env set SOURCE_SQL_DATABASE shop"
fi

# The rule of the program itself, which refuses to start with such a handler.
host=${HANDLER_URL:-}
host=${host#*://}
host=${host%%[/:?#]*}
case .$host in
  *.example.com | *.example.org | *.example.net | *.invalid)
    fail "HANDLER_URL is ${HANDLER_URL:-}, a name reserved for documentation; rows must not go there. Set your own: azd env set HANDLER_URL https://hooks.contoso.com/orders" ;;
esac
case ${POLLER_NAME:-orders} in
  [!a-z]* | *[!a-z0-9_]* | *__* | *_)
    fail "POLLER_NAME is ${POLLER_NAME:-}; use lower-case letters, digits and single underscores, starting with a letter" ;;
esac
case ${AZURE_ENV_NAME:-} in
  *.) fail "AZURE_ENV_NAME is $AZURE_ENV_NAME; a resource group's name must not end with a dot: azd env new NAME" ;;
esac

if [ -n "${AZURE_LOCATION:-}" ]; then
  regions=$(sed -n "/^@allowed(\[\$/,/^\])/s/^  '\([a-z0-9]*\)'\$/\1/p" "$here/main.bicep")
  case " $(echo $regions) " in
    *" $AZURE_LOCATION "*) ;;
    *) fail "AZURE_LOCATION is $AZURE_LOCATION, where Flex Consumption may not be available; choose one of: $(echo $regions)" ;;
  esac
fi

if [ "${STATE_STORE:-blob}" = sql ] && [ -z "${STATE_TABLE:-}" ]; then
  fail "STATE_STORE is sql, and the app needs rights on its table: create it with what 'highwater ddl state' prints, then azd env set STATE_TABLE dbo.highwater_state"
fi
if [ "${VNET_ENABLED:-false}" = true ]; then
  if [ "${STATE_STORE:-blob}" = sql ] && [ -z "${SOURCE_SQL_SERVER_ID:-}" ]; then
    fail "VNET_ENABLED with STATE_STORE=sql needs a private endpoint of the server: azd env set SOURCE_SQL_SERVER_ID /subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Sql/servers/NAME"
  fi
  echo "check.sh: VNET_ENABLED needs the provider Microsoft.App; once in a subscription: az provider register --namespace Microsoft.App"
fi

if [ "${GRANT_SQL:-true}" != false ]; then
  "$here/sql/grant.sh" --check-tool || wrong=1
fi
exit $((wrong * 2))
