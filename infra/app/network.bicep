// A network for the app, and private endpoints for the services that it uses.
param suffix string
param location string
param tags object
param hostAccountId string
param stateAccountId string
param sqlServerId string

var blobZone = 'privatelink.blob.${environment().suffixes.storage}'
var sqlZone = 'privatelink${environment().suffixes.sqlServerHostname}'
var zoneNames = empty(sqlServerId) ? [blobZone] : [blobZone, sqlZone]
var host = [{ name: 'host', id: hostAccountId, member: 'blob', zone: blobZone }]
var state = empty(stateAccountId) ? [] : [{ name: 'state', id: stateAccountId, member: 'blob', zone: blobZone }]
var sql = empty(sqlServerId) ? [] : [{ name: 'sql', id: sqlServerId, member: 'sqlServer', zone: sqlZone }]
var targets = concat(host, state, sql)

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

resource zones 'Microsoft.Network/privateDnsZones@2024-06-01' = [for zone in zoneNames: {
  name: zone
  location: 'global'
  tags: tags
}]

resource links 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [for (zone, index) in zoneNames: {
  parent: zones[index]
  name: 'vnet-${suffix}'
  location: 'global'
  properties: {
    registrationEnabled: false
    virtualNetwork: { id: network.id }
  }
}]

resource endpoints 'Microsoft.Network/privateEndpoints@2024-07-01' = [for target in targets: {
  name: 'pe-${target.name}-${suffix}'
  location: location
  tags: tags
  properties: {
    subnet: { id: '${network.id}/subnets/endpoints' }
    privateLinkServiceConnections: [
      {
        name: target.member
        properties: {
          privateLinkServiceId: target.id
          groupIds: [target.member]
        }
      }
    ]
  }
}]

resource records 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-07-01' = [for (target, index) in targets: {
  parent: endpoints[index]
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: target.member
        properties: { privateDnsZoneId: resourceId('Microsoft.Network/privateDnsZones', target.zone) }
      }
    ]
  }
  dependsOn: [zones]
}]
