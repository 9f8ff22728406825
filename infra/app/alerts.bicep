// Alerts are made of logs, since Flex Consumption has no metric of failed executions. A line of Highwater is
// JSON with its `event`; what an invocation answered is a line of the category `Function.<name>.User`: such JSON where a
// tick did something, else text.
// What to do about each stands in docs/runbooks, in a page of its name.
param suffix string
param location string
param tags object
param insightsId string
param functionNames array
param staleAfter string
param lagMaxSeconds int
param email string

var lines = 'traces | where message startswith "{" | extend line = parse_json(message) | extend event = tostring(line.event), poller = tostring(line["poller.name"])'
var answers = 'traces | extend category = tostring(customDimensions.Category) | where category startswith "Function." and category endswith ".User" | extend functionName = extract("^Function[.](.*)[.]User$", 1, category)'
// Ticks that find nothing new answer with a line each five minutes only, so ticks are counted by what the host called.
var ticks = 'requests | summarize ticks = count() by functionName = name'

// The recovery controller has no poller, and its answers are others.
var timers = union(functionNames, ['highwater_recovery'])

var rules = [
  {
    name: 'failures'
    title: 'Ticks fail'
    about: 'The host has seen at least three failed invocations of a function.'
    severity: 2
    window: 'PT15M'
    query: 'requests | where success == false | project timestamp, functionName = name'
    threshold: 3
    dimension: 'functionName'
  }
  {
    name: 'stopped'
    title: 'A poller waits for somebody'
    about: 'It cannot go on until settings, source or state are mended; the event says what is wrong, its line what to do.'
    severity: 1
    window: 'PT15M'
    query: '${lines} | where event in ("configuration_invalid", "state_vanished", "not_started", "first_run_elsewhere", "fingerprint_mismatch", "position_lost", "schema_changed", "normalize_failed", "tick_panicked", "panic") and tostring(line.level) == "ERROR"'
    threshold: 1
    dimension: 'event'
  }
  {
    name: 'handler'
    title: 'A batch is not taken'
    about: 'The handler has refused or failed at least five times; what follows that batch waits.'
    severity: 2
    window: 'PT30M'
    query: '${lines} | where event == "handler_failed"'
    threshold: 5
    dimension: 'poller'
  }
  {
    name: 'recovery'
    title: 'The recovery controller asks for somebody'
    about: 'It has found what it must not repair by itself; docs/recovery.md lists what that can be.'
    severity: 2
    window: 'PT15M'
    query: '${lines} | where event == "recovery_finding" and tostring(line.level) == "ERROR"'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'quarantine'
    title: 'Rows were set aside'
    about: 'Look at them with highwater quarantine list.'
    severity: 2
    window: 'PT15M'
    query: '${lines} | where event == "row_quarantined"'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'fenced'
    title: 'A stale owner tried to write'
    about: 'It was refused, so nothing is wrong with the data; an instance was frozen or cut off for longer than its lease.'
    severity: 2
    window: 'PT15M'
    query: '${lines} | where event in ("stale_write_blocked", "fence_ahead")'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'paused'
    title: 'A poller is paused'
    about: 'By an operator, by ON_FAILURE=stop, or by a reply of 410; highwater resume lets it run.'
    severity: 3
    window: 'PT1H'
    query: '${answers} | where message contains ": paused by "'
    threshold: 1
    dimension: 'functionName'
  }
  {
    name: 'late'
    title: 'Commits come later than allowed, or are not looked for'
    about: 'Raise SOURCE__SETTLE or lower SOURCE__AUDIT_AFTER.'
    severity: 3
    window: 'PT1H'
    query: '${lines} | where event in ("late_commits_found", "window_differs", "rows_not_audited")'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'journal'
    title: 'The journal misses lines'
    about: 'Ticks go on; what is missing is told by the numbers of the lines.'
    severity: 3
    window: 'PT1H'
    query: '${lines} | where event == "journal_append_failed"'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'behind'
    title: 'A poller does not keep up'
    about: 'More than nine in ten of its ticks of half an hour ended with rows waiting.'
    severity: 2
    window: 'PT30M'
    query: '${ticks} | join kind=inner (${answers} | where message contains ", more to do" | summarize behind = count() by functionName) on functionName | where behind * 10 > ticks * 9'
    threshold: 1
    dimension: 'functionName'
  }
  {
    name: 'lag'
    title: 'Rows come late'
    about: 'In three of four periods of five minutes the last tick that found rows found one older than allowed. Only for the mode timestamp+pk.'
    severity: 2
    window: 'PT30M'
    query: '${lines} | where timestamp > ago(20m) and isnotempty(line.lag_seconds) | extend lag = todouble(line.lag_seconds) | summarize arg_max(timestamp, lag) by poller, period = bin(timestamp, 5m) | where lag > ${lagMaxSeconds} | summarize periods = count() by poller | where periods >= 3'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'retention'
    title: 'Tracked changes are about to be lost'
    about: 'A poller is closer to the oldest change that the database keeps than to the newest one.'
    severity: 1
    window: 'PT30M'
    query: '${lines} | where isnotempty(line.retention_left) | extend left = tolong(line.retention_left), waiting = tolong(line.lag_positions) | summarize arg_max(timestamp, left, waiting) by poller | where left < waiting'
    threshold: 1
    dimension: 'poller'
  }
  {
    name: 'contention'
    title: 'A lease is mostly held by another'
    about: 'More than half of the ticks of half an hour were skipped.'
    severity: 3
    window: 'PT30M'
    query: '${ticks} | join kind=inner (${answers} | where message contains ": skipped: " | summarize skipped = count() by functionName) on functionName | where skipped * 2 > ticks'
    threshold: 1
    dimension: 'functionName'
  }
]

resource people 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(email)) {
  name: 'ag-${suffix}'
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'highwater'
    emailReceivers: [
      {
        name: 'email'
        emailAddress: email
        useCommonAlertSchema: true
      }
    ]
  }
}

resource rule 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for item in rules: {
  name: '${suffix}-${item.name}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: item.title
    description: '${item.about} Runbook: docs/runbooks/${item.name}.md'
    severity: item.severity
    enabled: true
    autoMitigate: true
    // An app that has not run yet has no tables to ask.
    skipQueryValidation: true
    scopes: [insightsId]
    evaluationFrequency: 'PT5M'
    windowSize: item.window
    criteria: {
      allOf: [
        {
          query: item.query
          timeAggregation: 'Count'
          operator: 'GreaterThanOrEqual'
          threshold: item.threshold
          dimensions: [
            {
              name: item.dimension
              operator: 'Include'
              values: ['*']
            }
          ]
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: {
      actionGroups: empty(email) ? [] : [people.id]
    }
  }
}]

// What is missing has no rows and so no dimensions: these two are made for each function.
resource stale 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for name in functionNames: {
  name: '${suffix}-stale-${name}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: 'No good tick of ${name}'
    description: 'No tick of this function has found nothing new or committed rows for the whole window. Runbook: docs/runbooks/stale.md'
    severity: 1
    enabled: true
    autoMitigate: true
    skipQueryValidation: true
    scopes: [insightsId]
    evaluationFrequency: 'PT5M'
    windowSize: staleAfter
    criteria: {
      allOf: [
        {
          query: '${answers} | where functionName == "${name}" | where message contains ": nothing new" or message contains ": committed "'
          timeAggregation: 'Count'
          operator: 'LessThan'
          threshold: 1
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: {
      actionGroups: empty(email) ? [] : [people.id]
    }
  }
}]

resource silent 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for name in timers: {
  name: '${suffix}-silent-${name}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: 'No invocation of ${name}'
    description: 'The host has not called this function for the whole window: it is down, or its timer is off. Runbook: docs/runbooks/silent.md'
    severity: 1
    enabled: true
    autoMitigate: true
    skipQueryValidation: true
    scopes: [insightsId]
    evaluationFrequency: 'PT5M'
    windowSize: staleAfter
    criteria: {
      allOf: [
        {
          query: 'requests | where name == "${name}"'
          timeAggregation: 'Count'
          operator: 'LessThan'
          threshold: 1
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: {
      actionGroups: empty(email) ? [] : [people.id]
    }
  }
}]
