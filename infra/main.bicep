// A resource group with everything that Highwater needs. Values come from main.parameters.json; README.md lists them.
targetScope = 'subscription'

@description('Name of the environment. It names the resource group and is part of each resource name.')
@minLength(1)
@maxLength(64)
param environmentName string

// The regions of the vendor's Flex Consumption quickstarts.
@allowed([
  'australiaeast'
  'australiasoutheast'
  'brazilsouth'
  'canadacentral'
  'centralindia'
  'centralus'
  'eastasia'
  'eastus'
  'eastus2'
  'eastus2euap'
  'francecentral'
  'germanywestcentral'
  'italynorth'
  'japaneast'
  'koreacentral'
  'northcentralus'
  'northeurope'
  'norwayeast'
  'southafricanorth'
  'southcentralus'
  'southeastasia'
  'southindia'
  'spaincentral'
  'swedencentral'
  'uaenorth'
  'uksouth'
  'ukwest'
  'westcentralus'
  'westeurope'
  'westus'
  'westus2'
  'westus3'
])
@metadata({ azd: { type: 'location' } })
param location string

@description('Name of the first poller: lower-case letters, digits and _. Further pollers go into settings.')
param pollerName string = 'orders'

@description('URL that receives the rows of the first poller, such as https://hooks.contoso.com/orders')
@minLength(1)
param handlerUrl string

@description('Table of the first poller, such as dbo.orders')
@minLength(1)
param sourceTable string

@description('Column that moves with each change, such as a rowversion column')
@minLength(1)
param sourceCursor string

@description('Key columns of the table, separated by commas, such as id')
@minLength(1)
param sourceKey string

@description('How changes are found.')
@allowed(['rowversion', 'change_tracking', 'timestamp+pk', 'integer+pk'])
param sourceMode string = 'rowversion'

@description('When the timer fires: six fields, seconds first, in UTC.')
param pollSchedule string = '*/30 * * * * *'

@description('Further app settings, such as more pollers. They override the ones above. Secrets as Key Vault references.')
@secure()
param settings object = {}

@description('Timer functions of the package. Each one scales and is billed separately.')
param functionNames array = ['poll']

@description('Host name of the source, such as shop.database.windows.net. Not needed with sqlDemo.')
param sqlServerFqdn string = ''

param sqlDatabase string = ''

@description('Resource id of the source server. With vnetEnabled it gets a private endpoint.')
param sqlServerId string = ''

@description('Creates a small Azure SQL demo database.')
param sqlDemo bool = false

@description('Display name of the administrator of the demo server.')
param sqlAdminName string = 'deployer'

@description('Microsoft Entra id of that administrator: the object id of a user or group, or the client id of an application. The deployer if empty.')
param sqlAdminSid string = ''

@description('Kind of that administrator. That of the deployer if empty.')
@allowed(['', 'User', 'Group', 'Application'])
param sqlAdminType string = ''

@description('Public address from which the deployer reaches the demo server; infra/check.sh finds it.')
param deployerAddress string = ''

@description('Where state documents are kept. For sql, infra/sql/grant.sql grants the rights on the tables.')
@allowed(['blob', 'sql'])
param stateStore string = 'blob'

@description('Existing storage account for the state; a new one if empty. It keeps the state when this group is deleted.')
param stateAccount string = ''

@description('Resource group of that account.')
param stateAccountGroup string = ''

@description('Locks a new state account against deletion. Needs Owner or User Access Administrator.')
param stateLock bool = true

@description('Folder of the state. Two deployments of one app, such as blue and green, use the same. The environment name if empty.')
param appName string = ''

@description('Object id of the deployer, who gets access to the state container. No access if empty.')
param principalId string = ''

@allowed(['User', 'Group', 'ServicePrincipal'])
param principalType string = 'User'

@description('Puts the app into its own network, and storage behind private endpoints.')
param vnetEnabled bool = false

@description('Lets the app answer requests from the Internet: the status page and deployments.')
param appPublicAccess bool = true

@description('Spreads plan and storage over zones. Raises alwaysReadyInstances to at least 2.')
param zoneRedundant bool = false

@allowed([512, 2048, 4096])
param instanceMemoryMB int = 512

@description('Maximum instances of each function. A timer runs on one.')
@minValue(1)
@maxValue(1000)
param maximumInstanceCount int = 1

@description('Instances of each timer function that never stop. 0 scales to zero.')
@minValue(0)
param alwaysReadyInstances int = 1

@description('RollingUpdate (preview) lets ticks finish during a deployment; Recreate ends them.')
@allowed(['Recreate', 'RollingUpdate'])
param siteUpdateStrategy string = 'Recreate'

@description('Email address for alerts. No emails if empty.')
param alertEmail string = ''

@description('Minutes without a successful tick after which a poller counts as stale; at least three intervals.')
@minValue(5)
@maxValue(1440)
param staleMinutes int = 15

@description('Runtime of a receiver in the folder receiver, which is deployed with the poller and gets its rows. None if empty.')
@allowed(['', 'custom', 'dotnet-isolated', 'node', 'python'])
param receiverRuntime string = ''

@description('Version of that runtime, such as 3.12.')
param receiverVersion string = ''

@description('Database of the receiver: what its setting DATABASE holds, for C# a connection string.')
@secure()
param receiverDatabase string = ''

@description('Secret that signs the rows for the receiver: whsec_ and base64.')
@secure()
param webhookSecret string = ''

@description('Age in seconds of the oldest row in a batch from which a poller counts as late; mode timestamp+pk.')
@minValue(1)
param lagMaxSeconds int = 300

var token = toLower(uniqueString(subscription().id, environmentName, location))
// Environment names may contain _ . ( ); names of sites may not.
var cleanName = take(toLower(replace(replace(replace(replace(environmentName, '_', '-'), '.', '-'), '(', ''), ')', '')), 32)
var suffix = '${cleanName}-${token}'
var tags = { 'azd-env-name': environmentName }
var hasStateAccount = stateStore == 'blob'
var createsStateAccount = hasStateAccount && empty(stateAccount)
var stateAccountName = empty(stateAccount) ? 'ststate${token}' : stateAccount
var stateContainerName = 'db-state'
var source = sqlDemo
  ? { server: 'sql-${token}${environment().suffixes.sqlServerHostname}', database: 'shop' }
  : empty(sqlServerFqdn) || empty(sqlDatabase)
      ? fail('No source: set sqlServerFqdn and sqlDatabase (SOURCE_SQL_SERVER, SOURCE_SQL_DATABASE), or sqlDemo.')
      : { server: sqlServerFqdn, database: sqlDatabase }
var isReachable = !vnetEnabled || stateStore == 'blob' || !empty(sqlServerId)
var network = isReachable
  ? { enabled: vnetEnabled, name: 'vnet-${suffix}' }
  : fail('With vnetEnabled and stateStore sql the server needs a private endpoint: set sqlServerId (SOURCE_SQL_SERVER_ID).')
var adminType = !empty(sqlAdminType) ? sqlAdminType : principalType == 'ServicePrincipal' ? 'Application' : principalType
var adminSid = !empty(sqlAdminSid)
  ? sqlAdminSid
  : sqlDemo && adminType == 'Application'
      ? fail('An application is known to SQL by its client id: set sqlAdminSid (SQL_ADMIN_SID).')
      : principalId

// The receiver's address is known once it exists.
var rowsUrl = empty(receiverRuntime) ? handlerUrl : 'https://${receiver!.outputs.hostName}/api/${pollerName}'
var signing = empty(receiverRuntime)
  ? {}
  : empty(webhookSecret)
      ? fail('The receiver accepts signed rows only: set webhookSecret (WEBHOOK_SECRET).')
      : {
          'HIGHWATER__POLLERS__${toUpper(pollerName)}__HANDLER__SIGNING_SECRETS': 'WEBHOOK_SECRET'
          WEBHOOK_SECRET: webhookSecret
        }

resource group 'Microsoft.Resources/resourceGroups@2025-04-01' = {
  name: 'rg-${environmentName}'
  location: location
  tags: tags
}

module base 'app/base.bicep' = {
  name: 'base'
  scope: group
  params: {
    suffix: suffix
    hostAccountName: 'sthost${token}'
    location: location
    tags: tags
    zoneRedundant: zoneRedundant
    publicAccess: !vnetEnabled
  }
}

module state 'app/state.bicep' = if (hasStateAccount) {
  name: 'state-${token}'
  scope: resourceGroup(empty(stateAccountGroup) ? group.name : stateAccountGroup)
  params: {
    accountName: stateAccountName
    creates: createsStateAccount
    containerName: stateContainerName
    location: location
    tags: tags
    identityPrincipalId: base.outputs.identityPrincipalId
    operatorObjectId: principalId
    operatorType: principalType
    zoneRedundant: zoneRedundant
    publicAccess: !vnetEnabled
    workspaceId: base.outputs.workspaceId
    lock: stateLock && !sqlDemo
  }
}

module sqlServer 'app/sql-demo.bicep' = if (sqlDemo) {
  name: 'sql-demo'
  scope: group
  params: {
    serverName: 'sql-${token}'
    databaseName: 'shop'
    location: location
    tags: tags
    adminSid: adminSid
    adminName: sqlAdminName
    adminType: adminType
    deployerAddress: deployerAddress
  }
}

module privateNetwork 'app/network.bicep' = if (vnetEnabled) {
  name: 'network'
  scope: group
  params: {
    suffix: suffix
    location: location
    tags: tags
    hostAccountId: base.outputs.hostAccountId
    stateAccountId: hasStateAccount ? state!.outputs.accountId : ''
    sqlServerId: sqlServerId
  }
}

module receiver 'app/receiver.bicep' = if (!empty(receiverRuntime)) {
  name: 'receiver'
  scope: group
  params: {
    suffix: suffix
    hostAccountName: 'strecv${token}'
    location: location
    tags: tags
    runtime: receiverRuntime
    runtimeVersion: receiverVersion
    database: receiverDatabase
    webhookSecret: webhookSecret
    insightsName: base.outputs.insightsName
    zoneRedundant: zoneRedundant
  }
}

module functions 'app/functions.bicep' = {
  name: 'functions'
  scope: group
  params: {
    suffix: suffix
    location: location
    tags: tags
    appName: empty(appName) ? cleanName : appName
    identityId: base.outputs.identityId
    identityClientId: base.outputs.identityClientId
    hostBlobUri: base.outputs.hostBlobUri
    packageContainerUrl: base.outputs.packageContainerUrl
    insightsConnectionString: base.outputs.insightsConnectionString
    stateStore: stateStore
    stateAccountName: stateAccountName
    stateContainerName: stateContainerName
    sqlServerFqdn: source.server
    sqlDatabase: source.database
    pollerName: pollerName
    handlerUrl: rowsUrl
    sourceTable: sourceTable
    sourceCursor: sourceCursor
    sourceKey: sourceKey
    sourceMode: sourceMode
    pollSchedule: pollSchedule
    settings: union(signing, settings)
    functionNames: functionNames
    subnetName: network.enabled ? 'functions' : ''
    networkName: network.name
    publicAccess: appPublicAccess
    zoneRedundant: zoneRedundant
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    alwaysReadyInstances: zoneRedundant ? max(alwaysReadyInstances, 2) : alwaysReadyInstances
    siteUpdateStrategy: siteUpdateStrategy
  }
  dependsOn: [privateNetwork, state]
}

module alerts 'app/alerts.bicep' = {
  name: 'alerts'
  scope: group
  params: {
    suffix: cleanName
    location: location
    tags: tags
    insightsId: base.outputs.insightsId
    staleMinutes: staleMinutes
    lagMaxSeconds: lagMaxSeconds
    email: alertEmail
  }
}

// Inputs of infra/sql/grant.sh; azd passes outputs to its hooks as environment variables.
output AZURE_RESOURCE_GROUP string = group.name
output AZURE_FUNCTION_APP_NAME string = functions.outputs.name
output IDENTITY_NAME string = base.outputs.identityName
output IDENTITY_CLIENT_ID string = base.outputs.identityClientId
output IDENTITY_PRINCIPAL_ID string = base.outputs.identityPrincipalId
output SOURCE_TABLE string = sourceTable
output SQL_SERVER_FQDN string = source.server
output SQL_DATABASE string = source.database
output STATE_CONTAINER_URL string = hasStateAccount ? 'https://${stateAccountName}.blob.${environment().suffixes.storage}/${stateContainerName}' : ''
output RECEIVER_APP_NAME string = empty(receiverRuntime) ? '' : receiver!.outputs.name
output RECEIVER_IDENTITY_NAME string = empty(receiverRuntime) ? '' : receiver!.outputs.identityName
