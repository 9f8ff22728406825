// A network for the app, and private endpoints for what it reads and writes.
param suffix string
param location string
param tags object
param hostStorageName string
param stateStorageName string
param sqlServerId string

var blobZone = 'privatelink.blob.${environment().suffixes.storage}'
var sqlZone = 'privatelink${environment().suffixes.sqlServerHostname}'
var hostStorageId = resourceId('Microsoft.Storage/storageAccounts', hostStorageName)
var stateStorageId = resourceId('Microsoft.Storage/storageAccounts', stateStorageName)

resource network 'Microsoft.Network/virtualNetworks@2024-07-01' = {
  name: 'vnet-${suffix}'
  location: location
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: ['10.20.0.0/16']
    }
    subnets: [
      {
        name: 'functions'
        properties: {
          addressPrefix: '10.20.0.0/24'
          delegations: [
            {
              name: 'flex'
              properties: { serviceName: 'Microsoft.App/environments' }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: '10.20.1.0/24'
          privateEndpointNetworkPolicies: 'Disabled'
        }
      }
    ]
  }
}

resource blobDns 'Microsoft.Network/privateDnsZones@2024-06-01' = {
  name: blobZone
  location: 'global'
  tags: tags
}

resource blobDnsLink 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = {
  parent: blobDns
  name: 'vnet-${suffix}'
  location: 'global'
  properties: {
    registrationEnabled: false
    virtualNetwork: { id: network.id }
  }
}

resource hostEndpoint 'Microsoft.Network/privateEndpoints@2024-07-01' = {
  name: 'pe-host-${suffix}'
  location: location
  tags: tags
  properties: {
    subnet: { id: '${network.id}/subnets/endpoints' }
    privateLinkServiceConnections: [
      {
        name: 'blob'
        properties: {
          privateLinkServiceId: hostStorageId
          groupIds: ['blob']
        }
      }
    ]
  }
}

resource hostEndpointDns 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-07-01' = {
  parent: hostEndpoint
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: 'blob'
        properties: { privateDnsZoneId: blobDns.id }
      }
    ]
  }
}

resource stateEndpoint 'Microsoft.Network/privateEndpoints@2024-07-01' = if (!empty(stateStorageName)) {
  name: 'pe-state-${suffix}'
  location: location
  tags: tags
  properties: {
    subnet: { id: '${network.id}/subnets/endpoints' }
    privateLinkServiceConnections: [
      {
        name: 'blob'
        properties: {
          privateLinkServiceId: stateStorageId
          groupIds: ['blob']
        }
      }
    ]
  }
}

resource stateEndpointDns 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-07-01' = if (!empty(stateStorageName)) {
  parent: stateEndpoint
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: 'blob'
        properties: { privateDnsZoneId: blobDns.id }
      }
    ]
  }
}

resource sqlDns 'Microsoft.Network/privateDnsZones@2024-06-01' = if (!empty(sqlServerId)) {
  name: sqlZone
  location: 'global'
  tags: tags
}

resource sqlDnsLink 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = if (!empty(sqlServerId)) {
  parent: sqlDns
  name: 'vnet-${suffix}'
  location: 'global'
  properties: {
    registrationEnabled: false
    virtualNetwork: { id: network.id }
  }
}

resource sqlEndpoint 'Microsoft.Network/privateEndpoints@2024-07-01' = if (!empty(sqlServerId)) {
  name: 'pe-sql-${suffix}'
  location: location
  tags: tags
  properties: {
    subnet: { id: '${network.id}/subnets/endpoints' }
    privateLinkServiceConnections: [
      {
        name: 'sql'
        properties: {
          privateLinkServiceId: sqlServerId
          groupIds: ['sqlServer']
        }
      }
    ]
  }
}

resource sqlEndpointDns 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-07-01' = if (!empty(sqlServerId)) {
  parent: sqlEndpoint
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: 'sql'
        properties: { privateDnsZoneId: sqlDns.id }
      }
    ]
  }
}
