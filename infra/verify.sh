#!/bin/sh
# Checks in your subscription what only a deployment can show: docs/reference/deployment.md. It creates an azd
# environment with a demo database, which costs about a dollar a day until `azd down`. Needs azd, az, go-sqlcmd, curl.
#   infra/verify.sh https://YOUR-ENDPOINT highwater-0.1.0-app.zip [REGION]
set -eu
fail() {
  echo "verify.sh: $1" >&2
  exit 2
}
[ $# -ge 2 ] || fail "usage: infra/verify.sh HANDLER_URL ZIP [REGION]"
handler=$1 zip=$2 region=${3:-westeurope}
for tool in azd az sqlcmd curl; do
  command -v "$tool" >/dev/null || fail "$tool is missing; see docs/how-to/deploy.md"
done
[ -f "$zip" ] || fail "$zip does not exist; download highwater-VERSION-app.zip of a release"
zip=$(cd "$(dirname "$zip")" && pwd)/$(basename "$zip")
cd "$(dirname "$0")/.."
name=highwater-verify
seen=$(mktemp)
failed=0

# say WHAT COMMAND…: runs the command and prints whether it succeeded.
say() {
  what=$1
  shift
  if "$@" >"$seen" 2>&1; then
    echo "ok      $what"
  else
    echo "FAILED  $what"
    sed 's/^/        /' "$seen"
    failed=1
  fi
}
# within MINUTES COMMAND…: repeats the command every 30 s until it succeeds.
within() {
  left=$(($1 * 2))
  shift
  until "$@"; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || return 1
    sleep 30
  done
}
value() { azd env get-value "$1"; }
query() {
  az monitor app-insights query --app "$insights" --resource-group "$group" --offset "${2:-1h}" --analytics-query "$1" \
    --query 'tables[0].rows[0][0]' --output tsv
}
counts() { [ "$(query "$1 | count")" -gt 0 ]; }
sql() {
  sqlcmd -S "tcp:$(value SQL_SERVER_FQDN),1433" -d "$(value SQL_DATABASE)" --authentication-method ActiveDirectoryDefault -b "$@"
}

# Without these, az asks whether to install them, and the prompt would be hidden.
az extension add --upgrade --only-show-errors --name application-insights
az extension add --upgrade --only-show-errors --name scheduled-query
say 'bicep build' az bicep build --file infra/main.bicep --stdout
say 'bicep lint' az bicep lint --file infra/main.bicep
# A second run reuses the environment of the first.
azd env select "$name" 2>"$seen" ||
  azd env new "$name" --subscription "$(az account show --query id --output tsv)" --location "$region" --no-prompt
# The environment stays and costs money, however this script ends.
trap 'rm -f "$seen"; echo "Remove it: azd down --environment $name --force --purge"' EXIT
trap 'exit 130' HUP INT TERM
azd env set SQL_DEMO true
azd env set HANDLER_URL "$handler"
azd env set HIGHWATER_PACKAGE "$zip"
say 'azd provision --preview' azd provision --preview --no-prompt
say 'azd up, including the grants' azd up --no-prompt
group=$(value AZURE_RESOURCE_GROUP) app=$(value AZURE_FUNCTION_APP_NAME)
insights=$(az resource list --resource-group "$group" --resource-type Microsoft.Insights/components --query '[0].name' --output tsv)
listed() { [ "$(az functionapp function list --resource-group "$group" --name "$app" --query 'length(@)' --output tsv)" = 2 ]; }
say 'the host lists both functions' within 5 listed
say 'the rows of the demo table are committed' within 15 counts 'traces | where message contains "committed "'
before=$(query 'traces | where message contains "committed " | count')
sql -Q "INSERT INTO dbo.orders (customer, amount) VALUES (N'Alan', 7.25)"
more() { [ "$(query 'traces | where message contains "committed " | count')" -gt "$before" ]; }
say 'its commit is logged' within 15 more
no_error() { [ "$(query 'traces | where severityLevel >= 3 | count')" = 0 ]; }
say 'no error is logged' no_error
# azd runs the hook with the values of the environment.
say 'grants can run again' azd hooks run postprovision --no-prompt
for rule in $(az resource list --resource-group "$group" --resource-type Microsoft.Insights/scheduledQueryRules --query '[].name' --output tsv); do
  text=$(az monitor scheduled-query show --resource-group "$group" --name "$rule" --query 'criteria.allOf[0].query' --output tsv)
  say "Kusto reads the query of $rule" query "$text" 1d
done
azd env set SITE_UPDATE_STRATEGY RollingUpdate
say 'the update strategy is accepted' azd provision --no-prompt
say 'a second deployment' azd deploy poller --from-package "$zip" --no-prompt
say 'ticks continue afterwards' within 10 counts 'traces | where timestamp > ago(5m) and message contains "nothing new"'
exit "$failed"
