// State documents have a separate account: in the host's account the app owns every blob, so a role on one
// container would restrict nothing. In an existing account, only the container and its role assignments are created.
param accountName string
param creates bool
param containerName string
param location string
param tags object
param identityPrincipalId string
param operatorObjectId string
param operatorType string
param zoneRedundant bool
param publicAccess bool
param workspaceId string
param lock bool

var storageBlobDataContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'

resource account 'Microsoft.Storage/storageAccounts@2025-01-01' = if (creates) {
  name: accountName
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

// A poller writes its document up to several times a minute. With versioning, each write would leave a version;
// soft delete would keep a hidden copy of each one for its retention time.
resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-01-01' = if (creates) {
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

// Who moved or deleted a checkpoint. Reads are not recorded: each tick reads, and the roles decide who may.
resource audit 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (creates) {
  name: 'state-writes'
  scope: blobs
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'StorageWrite'
        enabled: true
      }
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
  }
}

resource container 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-01-01' = {
  #disable-next-line use-parent-property // the account may be an existing one
  name: '${accountName}/default/${containerName}'
  properties: { publicAccess: 'None' }
  dependsOn: [blobs]
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

// Deleting the group would delete the checkpoints.
resource protection 'Microsoft.Authorization/locks@2020-05-01' = if (creates && lock) {
  name: 'keep-checkpoints'
  scope: account
  properties: {
    level: 'CanNotDelete'
    notes: 'Holds the checkpoints of Highwater. Delete this lock before the account.'
  }
}

output accountId string = resourceId('Microsoft.Storage/storageAccounts', accountName)
