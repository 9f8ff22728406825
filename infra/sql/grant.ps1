# grant.sh for PowerShell: gives the app's identity its rights in the database, as who is logged in.
$ErrorActionPreference = 'Stop'
$values = @{}
foreach ($name in 'SQL_SERVER_FQDN', 'SQL_DATABASE', 'IDENTITY_NAME', 'IDENTITY_PRINCIPAL_ID') {
  $values[$name] = [Environment]::GetEnvironmentVariable($name)
  if (-not $values[$name]) { throw "grant.ps1: $name is not set" }
}
$lists = 'SOURCE_TABLES', 'TRACKED_TABLES', 'TARGET_TABLES', 'FENCE_TABLE', 'LEDGER_TABLE', 'STATE_TABLE'
foreach ($name in $lists) { $values[$name] = [Environment]::GetEnvironmentVariable($name) }
$demo = $env:SQL_DEMO -eq 'true'
if ($demo -and -not $values['SOURCE_TABLES']) { $values['SOURCE_TABLES'] = 'dbo.orders' }
if (-not ($values['SOURCE_TABLES'] -or $values['TARGET_TABLES'] -or $values['STATE_TABLE'])) {
  throw 'grant.ps1: no tables are named; set SOURCE_TABLES, such as: azd env set SOURCE_TABLES dbo.orders'
}
$variables = @()
foreach ($name in @('IDENTITY_NAME', 'IDENTITY_PRINCIPAL_ID') + $lists) {
  $value = $values[$name]
  if (-not $value) { $value = 'none' }
  # Values are put into the statements as text. Commas are read by sqlcmd itself.
  if ($value -match '[''", ]|\$\(') { throw "grant.ps1: $name must have no quote, comma, blank or `$(: $value" }
  $variables += @('-v', "$name=$value")
}
$server = @('-S', "tcp:$($values['SQL_SERVER_FQDN']),1433", '-d', $values['SQL_DATABASE'])
$server += @('--authentication-method', 'ActiveDirectoryDefault', '-b')
if ($demo) {
  & sqlcmd @server -i (Join-Path $PSScriptRoot 'demo.sql')
  if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
}
& sqlcmd @server -i (Join-Path $PSScriptRoot 'grant.sql') @variables
exit $LASTEXITCODE
