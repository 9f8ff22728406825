// A resource group with everything that Highwater needs to run. What it makes and why: README.md.
targetScope = 'subscription'

@description('Names the environment: the resource group, part of each resource, and the folder of the state.')
@minLength(3)
@maxLength(32)
param environmentName string

param location string

@description('App settings of the pollers and schedules. Secrets only as Key Vault references.')
param settings object

@description('Folders in function-definitions; each gets its alerts.')
param functionNames array

@description('The source: its server, such as shop.database.windows.net. Not needed with sqlDemo.')
param sqlServerFqdn string = ''

param sqlDatabase string = ''

@description('Resource id of the logical server. With vnetEnabled it gets a private endpoint; empty for none.')
param sqlServerId string = ''

@description('Makes a small Azure SQL database to try things with.')
param sqlDemo bool = false

@description('Who may create users in the demo database: a user, or better a group, in Microsoft Entra.')
param sqlAdminObjectId string = ''

param sqlAdminName string = ''

@allowed(['User', 'Group', 'Application'])
param sqlAdminType string = 'User'

@description('Where state documents live. With sql, infra/sql/grant.sql gives the rights on the table.')
@allowed(['blob', 'sql'])
param stateStore string = 'blob'

@description('Who runs highwater doctor, pause and the like from elsewhere; gets the state container. Empty for nobody.')
param operatorObjectId string = ''

@allowed(['User', 'Group', 'ServicePrincipal'])
param operatorType string = 'User'

@description('Puts the app in a network of its own, and storage behind private endpoints.')
param vnetEnabled bool = false

@description('Spreads plan and storage over zones, where the region has them.')
param zoneRedundant bool = false

@allowed([512, 2048, 4096])
param instanceMemoryMB int = 512

@minValue(40)
@maxValue(1000)
param maximumInstanceCount int = 40

@description('Instances of each function that are always there: 1 for polls faster than a minute, 2 if zone redundant.')
@minValue(0)
param alwaysReadyInstances int = 0

@description('Who is told of alerts; empty for nobody.')
param alertEmail string = ''

@description('How long a poller may go without a good tick until that is an alert; at least three of its intervals.')
@allowed(['PT15M', 'PT30M', 'PT1H', 'PT6H', 'P1D'])
param staleAfter string = 'PT15M'

@description('Age of the oldest row of a batch, in seconds, from which on a poller of the mode timestamp+pk counts as late.')
@minValue(1)
param lagMaxSeconds int = 300

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = { 'azd-env-name': environmentName }
var hostStorageName = 'sthost${token}'
var stateStorageName = 'ststate${token}'
var stateContainerName = 'db-state'
var server = sqlDemo ? 'sql-${token}${environment().suffixes.sqlServerHostname}' : sqlServerFqdn
var database = sqlDemo ? 'shop' : sqlDatabase
var hasStateStorage = stateStore == 'blob'

resource group 'Microsoft.Resources/resourceGroups@2025-04-01' = {
  name: 'rg-${environmentName}'
  location: location
  tags: tags
}

module identity 'app/identity.bicep' = {
  name: 'identity'
  scope: group
  params: {
    name: 'id-${environmentName}-${token}'
    location: location
    tags: tags
  }
}

module monitoring 'app/monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    suffix: '${environmentName}-${token}'
    location: location
    tags: tags
    identityPrincipalId: identity.outputs.principalId
  }
}

module hostStorage 'app/host-storage.bicep' = {
  name: 'host-storage'
  scope: group
  params: {
    name: hostStorageName
    location: location
    tags: tags
    identityPrincipalId: identity.outputs.principalId
    zoneRedundant: zoneRedundant
    publicAccess: !vnetEnabled
  }
}

module stateStorage 'app/state-storage.bicep' = if (hasStateStorage) {
  name: 'state-storage'
  scope: group
  params: {
    name: stateStorageName
    containerName: stateContainerName
    location: location
    tags: tags
    identityPrincipalId: identity.outputs.principalId
    operatorObjectId: operatorObjectId
    operatorType: operatorType
    zoneRedundant: zoneRedundant
    publicAccess: !vnetEnabled
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
    adminObjectId: sqlAdminObjectId
    adminName: sqlAdminName
    adminType: sqlAdminType
  }
}

module network 'app/network.bicep' = if (vnetEnabled) {
  name: 'network'
  scope: group
  params: {
    suffix: '${environmentName}-${token}'
    location: location
    tags: tags
    hostStorageName: hostStorageName
    stateStorageName: hasStateStorage ? stateStorageName : ''
    sqlServerId: sqlServerId
  }
  dependsOn: [hostStorage, stateStorage]
}

module functions 'app/functions.bicep' = {
  name: 'functions'
  scope: group
  params: {
    suffix: '${environmentName}-${token}'
    location: location
    tags: tags
    appName: environmentName
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    hostStorageName: hostStorageName
    packageContainerUrl: hostStorage.outputs.packageContainerUrl
    insightsConnectionString: monitoring.outputs.connectionString
    stateStore: stateStore
    stateStorageName: stateStorageName
    stateContainerName: stateContainerName
    sqlServerFqdn: server
    sqlDatabase: database
    settings: settings
    functionNames: functionNames
    subnetName: vnetEnabled ? 'functions' : ''
    networkName: 'vnet-${environmentName}-${token}'
    zoneRedundant: zoneRedundant
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    alwaysReadyInstances: alwaysReadyInstances
  }
  dependsOn: [network]
}

module alerts 'app/alerts.bicep' = {
  name: 'alerts'
  scope: group
  params: {
    suffix: environmentName
    location: location
    tags: tags
    insightsId: monitoring.outputs.id
    functionNames: functionNames
    staleAfter: staleAfter
    lagMaxSeconds: lagMaxSeconds
    email: alertEmail
  }
}

// What infra/sql/grant.sh and people need next; azd hands these to its hooks as environment variables.
output AZURE_RESOURCE_GROUP string = group.name
output AZURE_FUNCTION_APP_NAME string = functions.outputs.name
output IDENTITY_NAME string = identity.outputs.name
output IDENTITY_CLIENT_ID string = identity.outputs.clientId
output IDENTITY_PRINCIPAL_ID string = identity.outputs.principalId
output SQL_SERVER_FQDN string = server
output SQL_DATABASE string = database
output STATE_CONTAINER_URL string = hasStateStorage ? 'https://${stateStorageName}.blob.${environment().suffixes.storage}/${stateContainerName}' : ''
