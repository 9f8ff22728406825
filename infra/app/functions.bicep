// Plan, app and settings. Flex Consumption has a runtime for custom handlers: `custom`, `1.0`.
param suffix string
param location string
param tags object
param appName string
param identityId string
param identityClientId string
param hostStorageName string
param packageContainerUrl string
param insightsConnectionString string
param stateStore string
param stateStorageName string
param stateContainerName string
param sqlServerFqdn string
param sqlDatabase string
param settings object
param functionNames array
param subnetName string
param networkName string
param zoneRedundant bool
param instanceMemoryMB int
param maximumInstanceCount int
param alwaysReadyInstances int

// What the host reads.
var hostSettings = {
  AzureWebJobsStorage__accountName: hostStorageName
  AzureWebJobsStorage__credential: 'managedidentity'
  AzureWebJobsStorage__clientId: identityClientId
  APPLICATIONINSIGHTS_CONNECTION_STRING: insightsConnectionString
  APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identityClientId};Authorization=AAD'
}

// What Highwater reads. The name of the app is a folder of the state: an app made anew finds it again.
var commonSettings = {
  HIGHWATER__APP: appName
  HIGHWATER__STATE__STORE: stateStore
  SqlConnection: 'Server=tcp:${sqlServerFqdn},1433;Database=${sqlDatabase};Authentication=Active Directory Managed Identity;User ID=${identityClientId};Encrypt=Mandatory'
}
var blobStateSettings = {
  HIGHWATER__STATE__CONNECTION: 'StateStorage'
  HIGHWATER__STATE__CONTAINER: stateContainerName
  StateStorage__blobServiceUri: 'https://${stateStorageName}.blob.${environment().suffixes.storage}'
  StateStorage__credential: 'managedidentity'
  StateStorage__clientId: identityClientId
}
var sqlStateSettings = {
  HIGHWATER__STATE__CONNECTION: 'SqlConnection'
}
var alwaysReady = [for name in functionNames: {
  name: 'function:${name}'
  instanceCount: alwaysReadyInstances
}]
var stateSettings = stateStore == 'blob' ? blobStateSettings : sqlStateSettings

resource plan 'Microsoft.Web/serverfarms@2024-11-01' = {
  name: 'plan-${suffix}'
  location: location
  tags: tags
  kind: 'functionapp'
  sku: {
    name: 'FC1'
    tier: 'FlexConsumption'
  }
  properties: {
    reserved: true
    zoneRedundant: zoneRedundant
  }
}

resource app 'Microsoft.Web/sites@2024-11-01' = {
  name: 'func-${suffix}'
  location: location
  tags: union(tags, { 'azd-service-name': 'poller' })
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    keyVaultReferenceIdentity: identityId
    virtualNetworkSubnetId: empty(subnetName) ? null : resourceId('Microsoft.Network/virtualNetworks/subnets', networkName, subnetName)
    siteConfig: {
      minTlsVersion: '1.2'
      ftpsState: 'Disabled'
    }
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: packageContainerUrl
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      runtime: {
        name: 'custom'
        version: '1.0'
      }
      scaleAndConcurrency: {
        instanceMemoryMB: instanceMemoryMB
        maximumInstanceCount: maximumInstanceCount
        alwaysReady: alwaysReadyInstances == 0 ? [] : alwaysReady
      }
    }
  }
}

resource appSettings 'Microsoft.Web/sites/config@2024-11-01' = {
  parent: app
  name: 'appsettings'
  // Of a name that stands in several, the last counts: what the parameters say.
  properties: union(hostSettings, commonSettings, stateSettings, settings)
}

// Packages are deployed with tokens of Microsoft Entra only.
resource scmPublishing 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-11-01' = {
  parent: app
  name: 'scm'
  properties: { allow: false }
}

resource ftpPublishing 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-11-01' = {
  parent: app
  name: 'ftp'
  properties: { allow: false }
}

output name string = app.name
