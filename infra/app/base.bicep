// Resources that the app needs before it exists: its identity, the host's storage, its telemetry, and the rights on both.
param suffix string
param hostAccountName string
param location string
param tags object
param zoneRedundant bool
param publicAccess bool

var storageBlobDataOwner = 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
var monitoringMetricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'

// Created before the app, so that role assignments outlive the app.
resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = {
  name: 'id-${suffix}'
  location: location
  tags: tags
}

// The account of the Functions host: timer locks, keys, and the deployed package.
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
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
    networkAcls: {
      bypass: 'None'
      defaultAction: publicAccess ? 'Allow' : 'Deny'
    }
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

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-02-01' = {
  name: 'log-${suffix}'
  location: location
  tags: tags
  properties: {
    retentionInDays: 30
    sku: { name: 'PerGB2018' }
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: 'appi-${suffix}'
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    DisableLocalAuth: true
  }
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

output identityId string = identity.id
output identityName string = identity.name
output identityClientId string = identity.properties.clientId
output identityPrincipalId string = identity.properties.principalId
output hostAccountId string = hostAccount.id
output hostBlobUri string = hostAccount.properties.primaryEndpoints.blob
output packageContainerUrl string = '${hostAccount.properties.primaryEndpoints.blob}${packages.name}'
output workspaceId string = workspace.id
output insightsId string = insights.id
output insightsName string = insights.name
output insightsConnectionString string = insights.properties.ConnectionString
