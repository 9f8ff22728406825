//! The table of settings: names, defaults and meanings.

mod flow;
mod notify;
mod recovery;
mod source;

pub(super) use self::flow::*;
pub(super) use self::notify::*;
pub(super) use self::recovery::*;
pub(super) use self::source::*;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, with `<NAME>` for a poller and `<FUNCTION>` for a function's folder. A step of a handler chain has
    /// settings with the same names after `HANDLER__STEP__<STEP>__`.
    pub name: &'static str,
    /// The default.
    pub fallback: Fallback,
    /// Its meaning, in one line.
    pub about: &'static str,
}

/// The default of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// It must be set.
    Required,
    /// This value.
    Text(&'static str),
    /// A default that is not a value of the setting, described in words.
    Words(&'static str),
}

impl Setting {
    const fn new(name: &'static str, fallback: Fallback, about: &'static str) -> Self {
        Self { name, fallback, about }
    }

    /// Returns the setting's name with `segment` instead of its placeholder: `POLLER`, or `POLLER/STEP` for a
    /// step of a handler chain.
    pub fn name_for(&self, segment: Option<&str>) -> String {
        let segment = segment.unwrap_or_default();
        if let Some((poller, step)) = segment.split_once('/') {
            let of_step = format!("__HANDLER__STEP__{step}__");
            return self.name.replace("<NAME>", poller).replace("__HANDLER__", &of_step);
        }
        self.name.replace("<NAME>", segment).replace("<FUNCTION>", segment)
    }
}

/// Prefix of every setting of a poller.
const OF_A_POLLER: &str = "HIGHWATER__POLLERS__<NAME>__";

/// Sections of the reference page: the heading, and the prefixes of their settings.
const SECTIONS: &[(&str, &[&str])] = &[
    ("Application", &["HIGHWATER__"]),
    ("Source", &["SOURCE__", "PARTITIONS"]),
    ("Handler", &["HANDLER__"]),
    (
        "Failures",
        &["RETRY_", "ON_", "ATTEMPTS_", "PARK_", "RECORD_", "BISECT_", "CRASHES_", "BREAKER_"],
    ),
    ("Ticks, lease and journal", &[""]),
];

/// Settings that most deployments never change; the reference page lists them separately.
const ADVANCED: &[&str] = &[
    "HIGHWATER__APP",
    "HIGHWATER__STATE__TABLE",
    "HIGHWATER__STATE__JOURNAL_TABLE",
    "HIGHWATER__STOP_GRACE",
    "HIGHWATER__HEALTH__ANONYMOUS",
    "HIGHWATER__RECOVERY__MODE",
    "HIGHWATER__RECOVERY__STUCK_AFTER",
    "HIGHWATER__RECOVERY__PAUSED_MAX",
    "SOURCE__ON_SCHEMA_CHANGE",
    "SOURCE__AUDIT_AFTER",
    "HANDLER__ENV",
    "HANDLER__FENCE_TABLE",
    "HANDLER__LEDGER_TABLE",
    "HANDLER__LEDGER_DAYS",
    "HANDLER__MESSAGE_EVENTS_MAX",
    "HANDLER__MESSAGE_ENCODING",
    "HANDLER__TRIES_MAX",
    "HANDLER__CONCURRENCY",
    "HANDLER__CA",
    "HANDLER__STALL_MAX",
    "BATCH_ROWS_MIN",
    "VALUE_BYTES_MAX",
    "BATCHES_MAX",
    "TICK_TIME_MAX",
    "PREFETCH",
    "OVERLAP_COMMIT",
    "STATE_REFRESH",
    "STATUS_INTERVAL",
    "COUNT_ROWS_MAX",
    "PARK_RETRIES_MAX",
    "PARK_AGE_MAX",
    "RECORD_AGE_MAX",
    "BISECT_ON_ERROR",
    "CRASHES_MAX",
    "BREAKER_ROWS",
    "ON_MISSING_STATE",
    "JOURNAL_RETENTION",
];

/// Returns [`SETTINGS`] as Markdown: one table per section, with an anchor for each setting.
pub fn settings_table() -> String {
    let tables = SECTIONS.iter().flat_map(|(section, _)| {
        let common = table_of(section, false).map(|table| format!("## {section}\n\n{table}"));
        let heading = format!("## {section}: advanced");
        common
            .into_iter()
            .chain(table_of(section, true).map(|table| format!("{heading}\n\n{table}")))
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Returns the anchor of a setting on the reference page.
fn anchor(name: &str) -> String {
    let name = name.strip_prefix(OF_A_POLLER).unwrap_or(name).trim_start_matches("HIGHWATER__");
    name.to_lowercase().replace("__", "-").replace(['<', '>'], "")
}

/// Returns where the documentation explains a setting of the table.
pub(super) fn page_of(setting: &Setting) -> String {
    format!("docs/reference/settings.md#{}", anchor(setting.name))
}

fn table_of(section: &str, is_advanced: bool) -> Option<String> {
    let rows = SETTINGS.iter().filter_map(|Setting { name, fallback, about }| {
        let name = name.strip_prefix(OF_A_POLLER).unwrap_or(name);
        let is_in = |(_, starts): &&(&str, &[&str])| starts.iter().any(|s| name.starts_with(s));
        let own = SECTIONS.iter().find(is_in).map(|(heading, _)| *heading);
        if own != Some(section) || ADVANCED.contains(&name) != is_advanced {
            return None;
        }
        let default = match fallback {
            Required => "required".to_owned(),
            Text(text) => format!("`{text}`"),
            Words(words) => (*words).to_owned(),
        };
        let anchor = anchor(name);
        Some(format!("| <a id=\"{anchor}\"></a>`{name}` | {default} | {about} |\n"))
    });
    let rows: String = rows.collect();
    let heading = "| setting | default | meaning |\n|---|---|---|\n";
    (!rows.is_empty()).then(|| format!("{heading}{rows}"))
}

/// Returns the setting meant by a name with single underscores, such as `HIGHWATER_STATE_STORE`.
pub(crate) fn meant_by_single_underscores(name: &str) -> Option<String> {
    let single = |name: &str| name.replace("__", "_");
    let is_single = name.strip_prefix("HIGHWATER_").is_some_and(|rest| !rest.starts_with('_'));
    let name = is_single.then(|| single(name))?;
    let meant = SETTINGS.iter().filter_map(|setting| {
        let Some((before, after)) = setting.name.split_once('<') else {
            return (single(setting.name) == name).then(|| (0, setting.name.to_owned()));
        };
        let (_, after) = after.split_once('>')?;
        let segment = name.strip_prefix(&single(before))?.strip_suffix(&single(after))?;
        (!segment.is_empty()).then(|| (segment.len(), format!("{before}{segment}{after}")))
    });
    // If several match, the one with the longest ending, that is, the shortest poller name.
    meant.min().map(|(_, meant)| meant)
}

/// All settings, in the order of the reference page.
pub const SETTINGS: &[Setting] = &[
    APP,
    STATE_STORE,
    STATE_CONNECTION,
    STATE_CONTAINER,
    STATE_TABLE,
    STATE_JOURNAL_TABLE,
    STATE_FOLDER,
    FUNCTION_TIMEOUT,
    STOP_GRACE,
    LOG,
    METRICS_ADDRESS,
    HEALTH_ANONYMOUS,
    RECOVERY_MODE,
    RECOVERY_STUCK_AFTER,
    RECOVERY_PAUSED_MAX,
    NOTIFY_URL,
    NOTIFY_SIGNING_SECRETS,
    FUNCTION_POLLER,
    FUNCTION_POLLERS,
    SHARED,
    SOURCE_CONNECTION,
    SOURCE_TABLE,
    SOURCE_QUERY,
    SOURCE_MODE,
    SOURCE_CURSOR,
    SOURCE_KEY,
    SOURCE_COLUMNS,
    SOURCE_COLUMNS_EXCLUDED,
    SOURCE_MASK,
    SOURCE_MASK_SECRET,
    SOURCE_FILTER,
    SOURCE_FILTER_PARAMS,
    SOURCE_SOFT_DELETE,
    SOURCE_OPERATIONS,
    SOURCE_SETTLE,
    SOURCE_CLOCK,
    SOURCE_AUDIT_AFTER,
    SOURCE_ON_SCHEMA_CHANGE,
    SOURCE_START,
    PARTITIONS,
    HANDLER_KIND,
    HANDLER_STEPS,
    HANDLER_STEP,
    HANDLER_URL,
    HANDLER_ALLOW_HTTP,
    HANDLER_COMMAND,
    HANDLER_ENV,
    HANDLER_CONNECTION,
    HANDLER_TABLE,
    HANDLER_KEY,
    HANDLER_COLUMNS,
    HANDLER_DELETES,
    HANDLER_FENCE_TABLE,
    HANDLER_LEDGER,
    HANDLER_LEDGER_TABLE,
    HANDLER_LEDGER_DAYS,
    HANDLER_CONTAINER,
    HANDLER_QUEUE,
    HANDLER_MESSAGE_EVENTS_MAX,
    HANDLER_MESSAGE_ENCODING,
    HANDLER_ORCHESTRATOR,
    HANDLER_SYSTEM_KEY,
    HANDLER_TIMEOUT,
    HANDLER_TRIES_MAX,
    HANDLER_CONCURRENCY,
    HANDLER_BODY,
    HANDLER_GZIP,
    HANDLER_ACCEPT_HTML,
    HANDLER_SIGNING_SECRETS,
    HANDLER_AUTH,
    HANDLER_AUTH_SECRET,
    HANDLER_AUTH_HEADER,
    HANDLER_AUTH_AUDIENCE,
    HANDLER_AUTH_CLIENT_ID,
    HANDLER_CA,
    HANDLER_STALL_MAX,
    LEASE_TTL,
    BATCH_ROWS_MAX,
    BATCH_ROWS_MIN,
    BATCH_BYTES_MAX,
    VALUE_BYTES_MAX,
    BATCHES_MAX,
    TICK_TIME_MAX,
    PREFETCH,
    OVERLAP_COMMIT,
    FOLLOW_FOR,
    FOLLOW_INTERVAL,
    STATE_REFRESH,
    STATUS_INTERVAL,
    COUNT_ROWS_MAX,
    RETRY_DELAY_MIN,
    RETRY_DELAY_MAX,
    RETRY_AFTER_MAX,
    ON_FAILURE,
    ATTEMPTS_MAX,
    PARK_RETRIES_MAX,
    PARK_AGE_MAX,
    RECORD_AGE_MAX,
    BISECT_ON_ERROR,
    CRASHES_MAX,
    BREAKER_ROWS,
    ON_MISSING_STATE,
    JOURNAL,
    JOURNAL_RETENTION,
];

use Fallback::{Required, Text, Words};

/// Default name of the state table.
pub const STATE_TABLE_DEFAULT: &str = "dbo.highwater_state";
/// Default name of the journal table.
pub const JOURNAL_TABLE_DEFAULT: &str = "dbo.highwater_journal";
/// Default name of the fence table.
pub const FENCE_TABLE_DEFAULT: &str = "dbo.highwater_fence";
/// Default name of the table of applied events.
pub const LEDGER_TABLE_DEFAULT: &str = "dbo.highwater_ledger";

pub(super) const APP: Setting = Setting::new(
    "HIGHWATER__APP",
    Words("`WEBSITE_SITE_NAME`, else `local`"),
    "Name of the application, which is also the folder in the state container.",
);
pub(super) const STATE_STORE: Setting = Setting::new(
    "HIGHWATER__STATE__STORE",
    Text("blob"),
    "Where state documents are stored: `blob`, `sql`, or `file` (one machine only).",
);
pub(super) const STATE_CONNECTION: Setting = Setting::new(
    "HIGHWATER__STATE__CONNECTION",
    Text("AzureWebJobsStorage"),
    "blob: name of the storage connection. It is a setting with a connection string, or the prefix of \
     `…__accountName` or `…__blobServiceUri`, with `…__clientId` for a user-assigned identity. sql: name \
     of the setting with the ADO.NET connection string; no default.",
);
pub(super) const STATE_CONTAINER: Setting =
    Setting::new("HIGHWATER__STATE__CONTAINER", Text("db-state"), "blob: name of the container.");
pub(super) const STATE_TABLE: Setting = Setting::new(
    "HIGHWATER__STATE__TABLE",
    Text(STATE_TABLE_DEFAULT),
    "sql: name of the table; `highwater ddl state` prints its `CREATE TABLE`.",
);
pub(super) const STATE_JOURNAL_TABLE: Setting = Setting::new(
    "HIGHWATER__STATE__JOURNAL_TABLE",
    Text(JOURNAL_TABLE_DEFAULT),
    "sql: name of the journal table; `highwater ddl journal` prints its `CREATE TABLE`.",
);
pub(super) const STATE_FOLDER: Setting = Setting::new(
    "HIGHWATER__STATE__FOLDER",
    Words("required for `file`"),
    "file: folder for the state documents.",
);
pub(super) const FUNCTION_TIMEOUT: Setting = Setting::new(
    "HIGHWATER__FUNCTION_TIMEOUT",
    Text("5m"),
    "Limit on one function call. If the host's `functionTimeout` is shorter, that applies. A tick stops \
     cleanly 15 seconds before the limit.",
);
pub(super) const STOP_GRACE: Setting = Setting::new(
    "HIGHWATER__STOP_GRACE",
    Text("9s"),
    "How long a process may take to stop. One second before the end, running handler calls are aborted \
     and leases released. The host allows 10s, a container often more.",
);
/// Only warnings from libraries: they log a failed storage request as information, and we log it as a failure.
pub(crate) const LOG_DEFAULT: &str = "warn,highwater=info";
pub(super) const LOG: Setting = Setting::new(
    "HIGHWATER__LOG",
    Text(LOG_DEFAULT),
    "Log filter in `tracing` syntax: targets and levels.",
);
pub(super) const METRICS_ADDRESS: Setting = Setting::new(
    "HIGHWATER__METRICS__ADDRESS",
    Words("none"),
    "Local address and port that serves `/metrics` as Prometheus text, such as `127.0.0.1:9464`.",
);
pub(super) const HEALTH_ANONYMOUS: Setting = Setting::new(
    "HIGHWATER__HEALTH__ANONYMOUS",
    Text("false"),
    "Whether the function `highwater_health` answers [uptime monitors](status.md#without-a-key) without a key: 200 or 503, and one word.",
);
pub(super) const FUNCTION_POLLER: Setting = Setting::new(
    "HIGHWATER__FUNCTIONS__<FUNCTION>__POLLER",
    Words("the poller of the same name"),
    "Poller that the function in this folder runs. Write the folder name in upper case, with `_` for `-`.",
);
pub(super) const SHARED: Setting = Setting::new(
    "HIGHWATER__DEFAULTS__<SETTING>",
    Words("none"),
    "Setting of all pollers, such as `HIGHWATER__DEFAULTS__LEASE__TTL`; that of a poller takes precedence. Tables, queries, \
     filter parameters, steps and their settings are set for each poller.",
);
pub(super) const FUNCTION_POLLERS: Setting = Setting::new(
    "HIGHWATER__FUNCTIONS__<FUNCTION>__POLLERS",
    Words("none"),
    "Pollers that the function in this folder runs in turn, separated by commas, or `all` for those that no other \
     function runs. It also runs the recovery controller, unless there is a function `highwater_recovery`.",
);
pub(super) const HANDLER_KIND: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__KIND",
    Required,
    "Where batches go: `http`, `sql`, `queue`, `blob`, `durable`, `exec`, `stdout`, or `chain` for \
     several of these in order.",
);
pub(super) const HANDLER_STEPS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__STEPS",
    Words("required for `chain`"),
    "chain: names of 2 to 10 steps, separated by commas, in the order in which they receive each batch.",
);
pub(super) const HANDLER_STEP: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__STEP__<STEP>__<SETTING>",
    Words("as for `HANDLER__<SETTING>`"),
    "chain: a setting of one step, with the step's name in upper case, such as \
     `HANDLER__STEP__NOTIFY__KIND`. Any `HANDLER__…` setting except `STEPS` and `STALL_MAX`.",
);
pub(super) const HANDLER_URL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__URL",
    Words("required for `http`, `durable`"),
    "http, durable: absolute URL that batches are posted to; for `durable`, that of the function app.",
);
pub(super) const HANDLER_ALLOW_HTTP: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ALLOW_HTTP",
    Text("false"),
    "http, durable: allow a URL without TLS to another machine.",
);
pub(super) const HANDLER_COMMAND: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__COMMAND",
    Words("required for `exec`"),
    "exec: program and arguments, as a JSON array of strings, or as words separated by spaces.",
);
pub(super) const HANDLER_ENV: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ENV",
    Words("none"),
    "exec: environment variables passed to the program, separated by commas, in addition to `PATH`, \
     `HOME`, `LANG`, `LC_*`, `TZ` and `TMPDIR`.",
);
pub(super) const HANDLER_CONNECTION: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CONNECTION",
    Text("AzureWebJobsStorage"),
    "queue, blob: name of the storage connection, as for `HIGHWATER__STATE__CONNECTION`; a queue uses \
     `…__queueServiceUri` instead of `…__blobServiceUri`. sql: name of the setting with the ADO.NET \
     connection string; required.",
);
pub(super) const HANDLER_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__TABLE",
    Words("required for `sql`"),
    "sql: table that rows are written to.",
);
pub(super) const HANDLER_KEY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__KEY",
    Words("the source's key"),
    "sql: columns that identify a row of the target; they need a unique index.",
);
pub(super) const HANDLER_COLUMNS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__COLUMNS",
    Words("all columns, same names"),
    "sql: columns to write, such as `id, total:amount` (source, then target after `:`).",
);
pub(super) const HANDLER_DELETES: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__DELETES",
    Text("delete"),
    "sql: what a deleted row does to the target: `delete` or `ignore`.",
);
pub(super) const HANDLER_FENCE_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__FENCE_TABLE",
    Text(FENCE_TABLE_DEFAULT),
    "sql: fence table, in the same database; `highwater ddl fence` prints it.",
);
pub(super) const HANDLER_LEDGER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__LEDGER",
    Text("off"),
    "sql: remember applied events, so that none is applied twice: `on` or `off`.",
);
pub(super) const HANDLER_LEDGER_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__LEDGER_TABLE",
    Text(LEDGER_TABLE_DEFAULT),
    "sql: table of applied events, in the same database; `highwater ddl ledger` prints it.",
);
pub(super) const HANDLER_LEDGER_DAYS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__LEDGER_DAYS",
    Text("7"),
    "sql: days that an event is remembered, up to 3650.",
);
pub(super) const HANDLER_CONTAINER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CONTAINER",
    Words("required for `blob`"),
    "blob: name of an existing container.",
);
pub(super) const HANDLER_QUEUE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__QUEUE",
    Words("required for `queue`"),
    "queue: name of an existing queue.",
);
pub(super) const HANDLER_MESSAGE_EVENTS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__MESSAGE_EVENTS_MAX",
    Text("1"),
    "queue: maximum number of events in one message, if they fit. With more than 1, a message is an array.",
);
pub(super) const HANDLER_MESSAGE_ENCODING: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__MESSAGE_ENCODING",
    Text("base64"),
    "queue: `base64`, as Functions queue triggers expect, or `none`.",
);
pub(super) const HANDLER_ORCHESTRATOR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ORCHESTRATOR",
    Words("required for `durable`"),
    "durable: name of the orchestrator function that receives a batch as its input.",
);
pub(super) const HANDLER_SYSTEM_KEY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__SYSTEM_KEY",
    Words("none"),
    "durable: the function app's system key `durabletask_extension`; not needed by a local host.",
);
pub(super) const HANDLER_TIMEOUT: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__TIMEOUT",
    Text("60s"),
    "http: limit on one attempt, from connecting to the end of the reply. queue, blob, durable: limit on \
     one request. sql: limit on one batch, all attempts. exec: limit on one process.",
);
pub(super) const HANDLER_TRIES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__TRIES_MAX",
    Text("3"),
    "http, sql, queue, blob, durable: attempts at one request or batch within one tick.",
);
pub(super) const HANDLER_CONCURRENCY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CONCURRENCY",
    Words("`1` for `http`, `16` for `queue`"),
    "http, queue: maximum requests in flight for one batch, up to 32. Rows with the same key stay in order: in one request \
     (`http`), or sent one after the other (`queue`).",
);
pub(super) const HANDLER_BODY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__BODY",
    Text("highwater"),
    "http: body format: `highwater` (one object), `cloudevents` (a batch of CloudEvents 1.0) or \
     `debezium` (an array of envelopes).",
);
pub(super) const HANDLER_GZIP: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__GZIP",
    Text("false"),
    "http: compress bodies; the receiver must accept `content-encoding: gzip`.",
);
pub(super) const HANDLER_ACCEPT_HTML: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ACCEPT_HTML",
    Text("false"),
    "http: accept a batch if the reply is a 2xx with a web page (`text/html` that starts with `<`). Otherwise it counts \
     as a misconfiguration, since login pages and placeholders answer every request with 200.",
);
pub(super) const HANDLER_SIGNING_SECRETS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__SIGNING_SECRETS",
    Words("no signature"),
    "http: names of settings with a `whsec_…` secret each, separated by commas. Every request is signed \
     with all of them.",
);
pub(super) const HANDLER_AUTH: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH",
    Text("none"),
    "http: how requests authenticate: `none`, `function_key` (in `x-functions-key`), `identity` (a bearer \
     token of the managed identity) or `header` (a header with a fixed value).",
);
pub(super) const HANDLER_AUTH_SECRET: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_SECRET",
    Words("required for `function_key` and `header`"),
    "http: name of the setting with the key, or the header's value.",
);
pub(super) const HANDLER_AUTH_HEADER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_HEADER",
    Words("required for `header`"),
    "http: name of the header, such as `authorization` or `x-api-key`.",
);
pub(super) const HANDLER_AUTH_AUDIENCE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_AUDIENCE",
    Words("required for `identity`"),
    "http: application that the token is issued for, such as `api://11111111-2222-3333-4444-555555555555`.",
);
pub(super) const HANDLER_AUTH_CLIENT_ID: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_CLIENT_ID",
    Words("the system-assigned identity"),
    "http: client id of a user-assigned identity.",
);
pub(super) const HANDLER_CA: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CA",
    Words("the system's store"),
    "http: PEM certificates of additional certificate authorities, or the path of a file with them.",
);
pub(super) const HANDLER_STALL_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__STALL_MAX",
    Text("2m"),
    "How long a handler may make no progress with a batch. The call is then stopped, and the rows that were not accepted \
     are redelivered by later ticks. `0` for no limit. Unless set, it is at least 30s longer than `HANDLER__TIMEOUT`.",
);
pub(super) const LEASE_TTL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__LEASE__TTL",
    Text("60s"),
    "How long a lease lasts without renewal; at least 15s in Azure.",
);
pub(super) const STATE_REFRESH: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__STATE_REFRESH",
    Text("5m"),
    "Age at which the cached state document is read again.",
);
pub(super) const STATUS_INTERVAL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__STATUS_INTERVAL",
    Text("5m"),
    "How often an idle or failing poller records that it ran; `0` for never.",
);
pub(super) const RETRY_DELAY_MIN: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RETRY_DELAY_MIN",
    Text("1s"),
    "Delay after the first failure. It doubles with each further failure, minus up to half at random, but is never \
     shorter than this.",
);
pub(super) const RETRY_DELAY_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RETRY_DELAY_MAX",
    Text("5m"),
    "Longest delay after failures.",
);
pub(super) const RETRY_AFTER_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RETRY_AFTER_MAX",
    Text("1h"),
    "Longest delay that a target may request with `Retry-After`.",
);
pub(super) const ON_FAILURE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__ON_FAILURE",
    Text("retry"),
    "What happens to rows that keep failing: `retry` forever while later rows wait; `park` the row with later versions \
     of its key, so that all other keys continue; or `stop` the poller until it is resumed.",
);
pub(super) const ATTEMPTS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__ATTEMPTS_MAX",
    Words("`1` if keys are parked and retried, else `5`"),
    "Failed attempts at the same rows before `ON_FAILURE` applies; a permanent rejection needs only one.",
);
pub(super) const PARK_RETRIES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__PARK_RETRIES_MAX",
    Text("200"),
    "Automatic retries of a parked key, 1 second to 1 hour apart; then it is quarantined until an operator redrives it. \
     `0` quarantines at once.",
);
pub(super) const PARK_AGE_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__PARK_AGE_MAX",
    Text("7d"),
    "How long after its first failure a parked key is retried; then it is quarantined.",
);
pub(super) const RECORD_AGE_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RECORD_AGE_MAX",
    Words("unlimited"),
    "How long the same rows may keep failing before `ON_FAILURE` applies.",
);
pub(super) const BISECT_ON_ERROR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BISECT_ON_ERROR",
    Words("`true` for `park`, else `false`"),
    "Halve a failing batch to find the row at fault.",
);
pub(super) const CRASHES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__CRASHES_MAX",
    Text("5"),
    "How often a process may crash with the same rows in flight before these rows count as the cause.",
);
pub(super) const BREAKER_ROWS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BREAKER_ROWS",
    Text("10"),
    "Consecutive parked rows, with none accepted in between, after which the target counts as failing: \
     nothing more is parked until it accepts a row.",
);
pub(super) const ON_MISSING_STATE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__ON_MISSING_STATE",
    Text("stop"),
    "If the state document of a poller that has run is missing: `stop`, or `recreate` it and start over.",
);
pub(super) const JOURNAL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__JOURNAL",
    Text("off"),
    "What the journal records: `off`, `commits` or `full`.",
);
pub(super) const JOURNAL_RETENTION: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__JOURNAL_RETENTION",
    Text("30d"),
    "How long the journal is kept, in whole days; `0` keeps it forever.",
);
