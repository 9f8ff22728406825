// A demo database. It has no passwords, only Microsoft Entra logins.
param serverName string
param databaseName string
param location string
param tags object
param adminSid string
param adminName string
param adminType string
param deployerAddress string

resource server 'Microsoft.Sql/servers@2023-08-01' = {
  name: serverName
  location: location
  tags: tags
  properties: {
    minimalTlsVersion: '1.2'
    publicNetworkAccess: 'Enabled'
    administrators: {
      administratorType: 'ActiveDirectory'
      azureADOnlyAuthentication: true
      principalType: adminType
      login: adminName
      sid: adminSid
      tenantId: tenant().tenantId
    }
  }
}

resource database 'Microsoft.Sql/servers/databases@2023-08-01' = {
  parent: server
  name: databaseName
  location: location
  tags: tags
  sku: {
    name: 'Basic'
    tier: 'Basic'
  }
}

// The addresses of Flex Consumption are unknown, so the firewall admits all of Azure.
resource azureServices 'Microsoft.Sql/servers/firewallRules@2023-08-01' = {
  parent: server
  name: 'AllowAllWindowsAzureIps'
  properties: {
    startIpAddress: '0.0.0.0'
    endIpAddress: '0.0.0.0'
  }
}

// infra/sql/grant.sh runs on the deployer's machine.
resource deployer 'Microsoft.Sql/servers/firewallRules@2023-08-01' = if (!empty(deployerAddress)) {
  parent: server
  name: 'deployer'
  properties: {
    startIpAddress: deployerAddress
    endIpAddress: deployerAddress
  }
}
