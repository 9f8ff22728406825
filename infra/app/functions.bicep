// Plan, app and settings. Flex Consumption has a runtime for custom handlers: custom, 1.0.
param suffix string
param location string
param tags object
param appName string
param identityId string
param identityClientId string
param hostBlobUri string
param packageContainerUrl string
param insightsConnectionString string
param stateStore string
param stateAccountName string
param stateContainerName string
param sqlServerFqdn string
param sqlDatabase string
param pollerName string
param handlerUrl string
param sourceTable string
param sourceCursor string
param sourceKey string
param sourceMode string
param pollSchedule string
@secure()
param settings object
param functionNames array
param subnetName string
param networkName string
param publicAccess bool
param zoneRedundant bool
param instanceMemoryMB int
param maximumInstanceCount int
param alwaysReadyInstances int
param siteUpdateStrategy string

// Settings of the host. Only the blob endpoint: with an account name, the host also tries tables, for which the
// identity has no role (AZFD0003).
var hostSettings = {
  AzureWebJobsStorage__blobServiceUri: hostBlobUri
  AzureWebJobsStorage__credential: 'managedidentity'
  AzureWebJobsStorage__clientId: identityClientId
  APPLICATIONINSIGHTS_CONNECTION_STRING: insightsConnectionString
  APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identityClientId};Authorization=AAD'
}

// Settings of Highwater. The name of the app is a folder of the state: a re-created app finds its state again.
var commonSettings = {
  HIGHWATER__APP: appName
  HIGHWATER__STATE__STORE: stateStore
  HIGHWATER__FUNCTIONS__POLL__POLLERS: 'all'
  SqlConnection: 'Server=tcp:${sqlServerFqdn},1433;Database=${sqlDatabase};Authentication=Active Directory Managed Identity;User ID=${identityClientId};Encrypt=Mandatory'
}
var blobStateSettings = {
  HIGHWATER__STATE__CONNECTION: 'StateStorage'
  HIGHWATER__STATE__CONTAINER: stateContainerName
  StateStorage__blobServiceUri: 'https://${stateAccountName}.blob.${environment().suffixes.storage}'
  StateStorage__credential: 'managedidentity'
  StateStorage__clientId: identityClientId
}
var sqlStateSettings = {
  HIGHWATER__STATE__CONNECTION: 'SqlConnection'
}

var poller = 'HIGHWATER__POLLERS__${toUpper(pollerName)}'
var pollerSettings = {
  POLL_SCHEDULE: pollSchedule
  '${poller}__SOURCE__CONNECTION': 'SqlConnection'
  '${poller}__SOURCE__TABLE': sourceTable
  '${poller}__SOURCE__MODE': sourceMode
  '${poller}__SOURCE__CURSOR': sourceCursor
  '${poller}__SOURCE__KEY': sourceKey
  '${poller}__HANDLER__KIND': 'http'
  '${poller}__HANDLER__URL': handlerUrl
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

// Each property is from the vendor's quickstarts or documentation: sources in docs/reference/deployment.md.
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
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
    virtualNetworkSubnetId: empty(subnetName) ? null : resourceId('Microsoft.Network/virtualNetworks/subnets', networkName, subnetName)
    siteConfig: {
      minTlsVersion: '1.2'
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
        maximumInstanceCount: max(maximumInstanceCount, alwaysReadyInstances)
        alwaysReady: alwaysReadyInstances == 0 ? [] : alwaysReady
      }
      #disable-next-line BCP037 // the service supports it; the types of this API version lack it
      siteUpdateStrategy: {
        type: siteUpdateStrategy
      }
    }
  }
}

resource appSettings 'Microsoft.Web/sites/config@2024-11-01' = {
  parent: app
  name: 'appsettings'
  // If a name occurs twice, the last value applies: the one from the parameters.
  properties: union(hostSettings, commonSettings, stateSettings, pollerSettings, settings)
}

// Packages are deployed with Microsoft Entra tokens only.
resource scmPublishing 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-11-01' = {
  parent: app
  name: 'scm'
  properties: { allow: false }
}

output name string = app.name
