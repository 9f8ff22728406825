// Alerts come from logs, since Flex Consumption has no metric of failed executions. A rule covers several conditions,
// because each rule costs money; the dimension alert of a result is the name of a page in docs/runbooks.
// List price per month and rule: $1.50 evaluated every 5 minutes, $0.50 every 15 minutes; $4.50 in all.
param suffix string
param location string
param tags object
param insightsId string
param staleMinutes int
param lagMaxSeconds int
param email string

// A line of Highwater is JSON with its event. The result of an invocation is a line of the category
// Function.<name>.User, which names its poller: JSON if a tick did something, else text.
var lines = 'traces | where message startswith "{" | extend line = parse_json(message) | extend event = tostring(line.event), poller = tostring(line["poller.name"])'
var answers = 'traces | extend category = tostring(customDimensions.Category) | where category startswith "Function." and category endswith ".User" | extend functionName = extract("^Function[.](.*)[.]User$", 1, category), poller = extract("poller `([^`]+)`", 1, message)'
// Idle ticks return a line only every five minutes, so ticks are counted by the host's requests.
var ticks = 'requests | summarize ticks = count() by functionName = name'

// A poller that logged anything within a day has to succeed again within staleMinutes.
var stale = '${answers} | where isnotempty(poller) and (message contains ": nothing new" or message contains ": committed ") | project poller, at = timestamp | union (${lines} | where isnotempty(poller) | project poller, at = ago(1d)) | summarize at = max(at) by poller | where at < ago(${staleMinutes}m) | project alert = "stale", poller'
var silent = 'requests | where name != "highwater_status" and name != "highwater_health" | summarize calls = countif(timestamp > ago(${staleMinutes}m)) | where calls == 0 | project alert = "silent", poller = ""'
var stopped = '${lines} | where event in ("configuration_invalid", "state_vanished", "not_started", "first_run_elsewhere", "fingerprint_mismatch", "position_lost", "schema_changed", "normalize_failed", "tick_panicked", "panic") and tostring(line.level) == "ERROR" | project alert = "stopped", poller'
var retention = '${lines} | where isnotempty(line.retention_left) | extend left = tolong(line.retention_left), waiting = tolong(line.lag_positions) | summarize arg_max(timestamp, left, waiting) by poller | where left < waiting | project alert = "retention", poller'

// A call of a function that runs several pollers fails only if all of them fail, so their lines count too.
var failures = 'requests | where success == false | project poller = name, kind = "call" | union (${lines} | where tostring(line.level) == "ERROR" and isnotempty(line["error.type"]) and isnotempty(poller) | project poller, kind = "tick") | summarize found = count() by poller, kind | where found >= 3 | project alert = "failures", poller'
var handler = '${lines} | where event == "handler_failed" | summarize found = count() by poller | where found >= 5 | project alert = "handler", poller'
var recovery = '${lines} | where event == "recovery_finding" and tostring(line.level) == "ERROR" | project alert = "recovery", poller'
var quarantine = '${lines} | where event in ("row_quarantined", "key_quarantined") | project alert = "quarantine", poller'
var breaker = '${lines} | where event == "breaker_opened" | project alert = "breaker", poller'
var fenced = '${lines} | where event in ("stale_write_blocked", "fence_ahead") | project alert = "fenced", poller'

var behind = '${answers} | where message contains ", more to do" | summarize found = count() by functionName, poller | join kind=inner (${ticks}) on functionName | where found * 10 > ticks * 9 | project alert = "behind", poller'
var lag = '${lines} | where timestamp > ago(20m) and isnotempty(line.lag_seconds) | extend lag = todouble(line.lag_seconds) | summarize arg_max(timestamp, lag) by poller, period = bin(timestamp, 5m) | where lag > ${lagMaxSeconds} | summarize periods = count() by poller | where periods >= 3 | project alert = "lag", poller'

var paused = '${answers} | where message contains ": paused by " | project alert = "paused", poller'
var contention = '${answers} | where message contains ": skipped: " | summarize found = count() by functionName, poller | join kind=inner (${ticks}) on functionName | where found * 2 > ticks | project alert = "contention", poller'
var late = '${lines} | where event in ("late_commits_found", "window_differs", "rows_not_audited") | project alert = "late", poller'
var journal = '${lines} | where event == "journal_append_failed" | project alert = "journal", poller'

var rules = [
  {
    name: 'stale'
    title: 'A poller has stopped succeeding'
    about: 'No tick of a poller has committed rows or found nothing new (stale), or the host has called no function (silent).'
    severity: 1
    frequency: 'PT5M'
    window: 'P1D'
    queries: [stale, silent]
  }
  {
    name: 'stopped'
    title: 'A poller needs an operator'
    about: 'A poller cannot continue until its settings, source or state are fixed (stopped), or is about to lose tracked changes (retention).'
    severity: 1
    frequency: 'PT5M'
    window: 'PT15M'
    queries: [stopped, retention]
  }
  {
    name: 'failing'
    title: 'Ticks or batches fail'
    about: 'Invocations fail (failures), the handler fails (handler), rows were quarantined (quarantine), so many in a row that the target may reject everything (breaker), the recovery controller needs an operator (recovery), or a stale owner was refused (fenced).'
    severity: 2
    frequency: 'PT15M'
    window: 'PT30M'
    queries: [failures, handler, recovery, quarantine, breaker, fenced]
  }
  {
    name: 'slow'
    title: 'A poller does not keep up'
    about: 'Nine in ten ticks left rows waiting (behind), or rows are older than allowed (lag).'
    severity: 2
    frequency: 'PT15M'
    window: 'PT30M'
    queries: [behind, lag]
  }
  {
    name: 'notice'
    title: 'A poller needs attention'
    about: 'A poller is paused (paused), another instance holds its lease (contention), commits came late or are not audited (late), or journal lines are missing (journal).'
    severity: 3
    frequency: 'PT15M'
    window: 'PT1H'
    queries: [paused, contention, late, journal]
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
    description: '${item.about} Runbook: docs/runbooks/<alert>.md'
    severity: item.severity
    enabled: true
    autoMitigate: true
    // The tables of an app that has not run yet do not exist.
    skipQueryValidation: true
    scopes: [insightsId]
    evaluationFrequency: item.frequency
    windowSize: item.window
    criteria: {
      allOf: [
        {
          query: '${item.queries[0]} | union (${join(skip(item.queries, 1), ') | union (')})'
          timeAggregation: 'Count'
          operator: 'GreaterThanOrEqual'
          threshold: 1
          dimensions: [
            {
              name: 'alert'
              operator: 'Include'
              values: ['*']
            }
            {
              name: 'poller'
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

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(insightsId, 'highwater')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Highwater'
    category: 'workbook'
    sourceId: insightsId
    serializedData: replace(loadTextContent('workbook.json'), '{insights}', insightsId)
  }
}
