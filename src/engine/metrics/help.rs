//! What each instrument measures, in one sentence: the description in OTLP, and `# HELP` in Prometheus text.

/// Descriptions by name.
const HELP: [(&str, &str); 50] = [
    ("highwater.tick.failures", "Failed ticks."),
    (
        "highwater.lag",
        "Age of the oldest undelivered row, as far as ticks know; 0 if none is waiting.",
    ),
    ("highwater.last_success.timestamp", "Unix time of the last tick that did not fail."),
    ("highwater.batches.committed", "Committed batches."),
    ("highwater.rows.committed", "Committed rows."),
    ("highwater.build_info", "Version and commit of this program; always 1."),
    ("highwater.rows.fetched", "Rows read, including rows that are read again."),
    ("highwater.rows.redelivered", "Rows delivered again after a failure."),
    ("highwater.rows.quarantined", "Rows whose keys were quarantined."),
    ("highwater.keys.parked", "Parked keys, by whether they are retried or wait for an operator."),
    ("highwater.breaker.openings", "Times that the breaker opened."),
    ("highwater.breaker.open", "Whether the breaker is open."),
    ("highwater.notifications", "Notifications of operators, by outcome."),
    ("highwater.rows.late", "Rows committed later than the settle window allows."),
    (
        "highwater.rows.not_audited",
        "Delivered rows that will not be read again because there is no room for their window.",
    ),
    ("highwater.windows.audited", "Closed windows that were read again."),
    ("highwater.recovery.takeovers", "Leases taken over from a crashed holder."),
    ("highwater.journal.append_failures", "Appends to the journal that failed, or may have."),
    ("highwater.log.lines_dropped", "Log lines dropped since the process started."),
    ("highwater.rows.behind", "Rows after the checkpoint, up to COUNT_ROWS_MAX."),
    ("highwater.lag.positions", "Positions between the checkpoint and the newest readable one."),
    ("highwater.lag.held_back", "Positions that cannot be read yet."),
    ("highwater.retention.left", "Versions until change tracking clean-up loses changes."),
    ("highwater.checkpoint.position", "Leading part of the checkpoint."),
    ("highwater.checkpoint.age", "Time since the checkpoint moved."),
    ("highwater.state.bytes", "Size of the state document."),
    (
        "highwater.state.generation",
        "Generation of the state; another one after a reset or restore.",
    ),
    (
        "highwater.last_success.age",
        "Time since the last tick that did not fail, or since the first one started.",
    ),
    ("highwater.poller.state", "State of each poller: 1 for the current one, 0 for the others."),
    ("highwater.tick.duration", "Duration of a tick."),
    ("highwater.fetch.duration", "Duration of a read of the source."),
    ("db.client.operation.duration", "Duration of database client operations."),
    ("faas.invoke_duration", "Duration of a function invocation."),
    ("faas.invocations", "Successful function invocations."),
    ("faas.errors", "Failed function invocations."),
    ("faas.coldstarts", "First function invocations of a process."),
    ("highwater.handler.duration", "Duration of a handler call."),
    ("highwater.commit.duration", "Duration of a commit."),
    ("highwater.batch.size", "Rows in a committed batch."),
    ("highwater.batch.lag", "Age of the oldest row of a committed batch when it was read."),
    ("highwater.lease.active", "Leases held."),
    ("highwater.lease.acquire.duration", "Time until a lease was granted."),
    ("highwater.lease.acquire.attempts", "Lease requests."),
    ("highwater.lease.remaining", "Remaining time of the lease when a commit started."),
    ("highwater.lease.heartbeats", "Lease renewals."),
    ("highwater.lease.expirations", "Leases whose holder crashed."),
    ("highwater.recovery.requeues", "In-flight batches that became free again."),
    (
        "highwater.recovery.requeue.delay",
        "Time from the last write of a crashed holder until its batch was free again.",
    ),
    ("highwater.fence.rejections", "Rejected writes under a stale token."),
    ("highwater.recovery.orphans", "Documents that the last recovery scan found in a condition."),
];

/// Returns the description of an instrument; empty for an unknown name.
pub(super) fn help(name: &str) -> &'static str {
    HELP.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text)
}
