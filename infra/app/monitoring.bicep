// Logs, which the host sends as the app's identity: the component takes no keys.
param suffix string
param location string
param tags object
param identityPrincipalId string

var monitoringMetricsPublisher = '3913510d-42f4-4e42-8a64-420c390055eb'

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
  name: guid(insights.id, identityPrincipalId, monitoringMetricsPublisher)
  scope: insights
  properties: {
    principalId: identityPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringMetricsPublisher)
  }
}

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(insights.id, 'highwater')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Highwater'
    category: 'workbook'
    sourceId: insights.id
    serializedData: replace(loadTextContent('workbook.json'), '{insights}', insights.id)
  }
}

output id string = insights.id
output connectionString string = insights.properties.ConnectionString
