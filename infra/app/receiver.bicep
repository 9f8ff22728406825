// A receiver that is deployed with the poller, as `highwater init --handler` writes it: an app with an identity, a plan and a
// storage account of its own. It has no right on the source, nor on the state.
param suffix string
param hostAccountName string
param location string
param tags object
param runtime string
param runtimeVersion string
@secure()
param database string
@secure()
param webhookSecret string
param insightsName string
param zoneRedundant bool

// Only C# records the ids of events in a database that instances share. Receivers in the other languages use a file of
// their instance: with a second instance, a redelivered event is applied twice. Raise this once `once` uses a database.
var instancesMax = runtime == 'dotnet-isolated' ? 40 : 1
var storageBlobDataOwner = 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
var monitoringMetricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = {
  name: 'id-receiver-${suffix}'
  location: location
  tags: tags
}

resource hostAccount 'Microsoft.Storage/storageAccounts@2025-01-01' = {
  name: hostAccountName
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: zoneRedundant ? 'Standard_ZRS' : 'Standard_LRS' }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    // Even with a private network, which the receiver is not part of. Only identities with a role get in, and the account
    // holds the host's keys and the package, no rows.
    publicNetworkAccess: 'Enabled'
  }
}

resource hostBlobs 'Microsoft.Storage/storageAccounts/blobServices@2025-01-01' = {
  parent: hostAccount
  name: 'default'
}

resource packages 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-01-01' = {
  parent: hostBlobs
  name: 'app-package'
  properties: { publicAccess: 'None' }
}

// The host creates its own containers, so no smaller role or scope is sufficient.
resource hostOwner 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(hostAccount.id, identity.id, storageBlobDataOwner)
  scope: hostAccount
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', storageBlobDataOwner)
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: insightsName
}

resource publisher 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(insights.id, identity.id, monitoringMetricsPublisher)
  scope: insights
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringMetricsPublisher)
  }
}

var identityId = identity.id

resource plan 'Microsoft.Web/serverfarms@2024-11-01' = {
  name: 'plan-receiver-${suffix}'
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
  name: 'func-receiver-${suffix}'
  location: location
  tags: union(tags, { 'azd-service-name': 'receiver' })
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
    siteConfig: {
      minTlsVersion: '1.2'
    }
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${hostAccount.properties.primaryEndpoints.blob}${packages.name}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      runtime: {
        name: runtime
        version: runtimeVersion
      }
      scaleAndConcurrency: {
        instanceMemoryMB: 512
        maximumInstanceCount: instancesMax
      }
    }
  }
}

resource appSettings 'Microsoft.Web/sites/config@2024-11-01' = {
  parent: app
  name: 'appsettings'
  properties: {
    AzureWebJobsStorage__blobServiceUri: hostAccount.properties.primaryEndpoints.blob
    AzureWebJobsStorage__credential: 'managedidentity'
    AzureWebJobsStorage__clientId: identity.properties.clientId
    APPLICATIONINSIGHTS_CONNECTION_STRING: insights.properties.ConnectionString
    APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identity.properties.clientId};Authorization=AAD'
    WEBHOOK_SECRETS: webhookSecret
    DATABASE: database
  }
}

resource scmPublishing 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-11-01' = {
  parent: app
  name: 'scm'
  properties: { allow: false }
}

output name string = app.name
output hostName string = app.properties.defaultHostName
output identityName string = identity.name
