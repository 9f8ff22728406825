// State documents have an account of their own: in the host's, whose blobs the app owns, a role on one
// container would say nothing.
param name string
param containerName string
param location string
param tags object
param identityPrincipalId string
param operatorObjectId string
param operatorType string
param zoneRedundant bool
param publicAccess bool

var storageBlobDataContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'

resource account 'Microsoft.Storage/storageAccounts@2025-01-01' = {
  name: name
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

// A poller writes its document up to several times a minute: with versioning each write would leave a
// version, and soft delete keeps a hidden copy of each for as long as it is told to.
resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-01-01' = {
  parent: account
  name: 'default'
  properties: {
    isVersioningEnabled: false
    deleteRetentionPolicy: {
      enabled: true
      days: 1
    }
    containerDeleteRetentionPolicy: {
      enabled: true
      days: 7
    }
  }
}

resource container 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-01-01' = {
  parent: blobs
  name: containerName
  properties: { publicAccess: 'None' }
}

resource contributor 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(container.id, identityPrincipalId, storageBlobDataContributor)
  scope: container
  properties: {
    principalId: identityPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', storageBlobDataContributor)
  }
}

resource operator 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(operatorObjectId)) {
  name: guid(container.id, operatorObjectId, storageBlobDataContributor)
  scope: container
  properties: {
    principalId: operatorObjectId
    principalType: operatorType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', storageBlobDataContributor)
  }
}
