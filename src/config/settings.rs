//! The table of settings: names, defaults and what they mean.

mod flow;
mod recovery;
mod source;

pub(super) use self::flow::*;
pub(super) use self::recovery::*;
pub(super) use self::source::*;

/// One setting that Highwater reads.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, with `<NAME>` for a poller and `<FUNCTION>` for a function's folder; a step of a handler
    /// chain has settings of the same names behind `HANDLER__STEP__<STEP>__`.
    pub name: &'static str,
    /// What holds where it is not set.
    pub fallback: Fallback,
    /// What it is for, in one line.
    pub about: &'static str,
}

/// What holds where a setting is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// It must be set.
    Required,
    /// This text is read in its place.
    Text(&'static str),
    /// Something that no text of the setting could say; told in words.
    Words(&'static str),
}

impl Setting {
    const fn new(name: &'static str, fallback: Fallback, about: &'static str) -> Self {
        Self { name, fallback, about }
    }

    /// Returns the setting's own name, with `segment` in the place of its placeholder: `POLLER`, or
    /// `POLLER/STEP` for the step of a handler chain.
    pub fn name_for(&self, segment: Option<&str>) -> String {
        let segment = segment.unwrap_or_default();
        if let Some((poller, step)) = segment.split_once('/') {
            let of_step = format!("__HANDLER__STEP__{step}__");
            return self.name.replace("<NAME>", poller).replace("__HANDLER__", &of_step);
        }
        self.name.replace("<NAME>", segment).replace("<FUNCTION>", segment)
    }
}

/// Returns [`SETTINGS`] as the rows of a Markdown table, heading included.
pub fn settings_table() -> String {
    let rows = SETTINGS.iter().map(|Setting { name, fallback, about }| {
        let default = match fallback {
            Required => "required".to_owned(),
            Text(text) => format!("`{text}`"),
            Words(words) => (*words).to_owned(),
        };
        format!("| `{name}` | {default} | {about} |\n")
    });
    "| setting | default | meaning |\n|---|---|---|\n".to_owned() + &rows.collect::<String>()
}

/// Returns the setting that is meant by a name whose parts are divided by one underscore, as `HIGHWATER_STATE_STORE`.
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
    // Of settings that end alike the longest ending: the rest would be a longer name of a poller.
    meant.min().map(|(_, meant)| meant)
}

/// Every setting, in the order in which README lists them.
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
    RECOVERY_MODE,
    RECOVERY_STUCK_AFTER,
    RECOVERY_PAUSED_MAX,
    FUNCTION_POLLER,
    SOURCE_CONNECTION,
    SOURCE_TABLE,
    SOURCE_QUERY,
    SOURCE_MODE,
    SOURCE_CURSOR,
    SOURCE_KEY,
    SOURCE_COLUMNS,
    SOURCE_COLUMNS_EXCLUDED,
    SOURCE_FILTER,
    SOURCE_FILTER_PARAMS,
    SOURCE_SOFT_DELETE,
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
    ON_FAILURE,
    ATTEMPTS_MAX,
    RECORD_AGE_MAX,
    BISECT_ON_ERROR,
    CRASHES_MAX,
    ON_MISSING_STATE,
    JOURNAL,
    JOURNAL_RETENTION,
];

use Fallback::{Required, Text, Words};

/// Name of the state table where none is set.
pub const STATE_TABLE_DEFAULT: &str = "dbo.highwater_state";
/// Name of the table of journals where none is set.
pub const JOURNAL_TABLE_DEFAULT: &str = "dbo.highwater_journal";
/// Default of the setting of the table of fences.
pub const FENCE_TABLE_DEFAULT: &str = "dbo.highwater_fence";
/// Default of the setting of the table of applied events.
pub const LEDGER_TABLE_DEFAULT: &str = "dbo.highwater_ledger";

pub(super) const APP: Setting = Setting::new(
    "HIGHWATER__APP",
    Words("`WEBSITE_SITE_NAME`, else `local`"),
    "Name of the application; a folder in the state container.",
);
pub(super) const STATE_STORE: Setting = Setting::new(
    "HIGHWATER__STATE__STORE",
    Text("blob"),
    "Where state documents live: `blob`, `sql`, or `file` on one machine only.",
);
pub(super) const STATE_CONNECTION: Setting = Setting::new(
    "HIGHWATER__STATE__CONNECTION",
    Text("AzureWebJobsStorage"),
    "blob: name of the storage connection: of a setting with a connection string, or the prefix of \
     `…__accountName` or `…__blobServiceUri`, with `…__clientId` for a user-assigned identity. sql: \
     name of the setting that holds the ADO.NET connection string; it has no default there.",
);
pub(super) const STATE_CONTAINER: Setting =
    Setting::new("HIGHWATER__STATE__CONTAINER", Text("db-state"), "blob: name of the container.");
pub(super) const STATE_TABLE: Setting = Setting::new(
    "HIGHWATER__STATE__TABLE",
    Text(STATE_TABLE_DEFAULT),
    "sql: name of the table; `highwater ddl state` prints how to create it.",
);
pub(super) const STATE_JOURNAL_TABLE: Setting = Setting::new(
    "HIGHWATER__STATE__JOURNAL_TABLE",
    Text(JOURNAL_TABLE_DEFAULT),
    "sql: name of the table of journals; `highwater ddl journal` prints how to create it.",
);
pub(super) const STATE_FOLDER: Setting = Setting::new(
    "HIGHWATER__STATE__FOLDER",
    Words("required for `file`"),
    "file: folder of the state documents.",
);
pub(super) const FUNCTION_TIMEOUT: Setting = Setting::new(
    "HIGHWATER__FUNCTION_TIMEOUT",
    Text("5m"),
    "Limit on one function call; the host's `functionTimeout` counts where that is shorter. A tick ends in good order 15 seconds before it.",
);
pub(super) const STOP_GRACE: Setting = Setting::new(
    "HIGHWATER__STOP_GRACE",
    Text("9s"),
    "How long a process that is asked to stop may take; a second before its end, handler calls that still run are \
     aborted and leases released. The host allows 10s, a container often more.",
);
/// Only warnings of libraries: a failed storage request is logged by them as information, and by us
/// as the failure that it is.
pub(crate) const LOG_DEFAULT: &str = "warn,highwater=info";
pub(super) const LOG: Setting = Setting::new(
    "HIGHWATER__LOG",
    Text(LOG_DEFAULT),
    "What is logged, as a filter of `tracing` that names targets and levels.",
);
pub(super) const METRICS_ADDRESS: Setting = Setting::new(
    "HIGHWATER__METRICS__ADDRESS",
    Words("none"),
    "Address and port of this machine at which `/metrics` is served as Prometheus text, such as \
     `127.0.0.1:9464`.",
);
pub(super) const FUNCTION_POLLER: Setting = Setting::new(
    "HIGHWATER__FUNCTIONS__<FUNCTION>__POLLER",
    Words("the poller of the same name"),
    "Poller that the function in this folder runs; the folder is written in upper case, `-` as `_`.",
);
pub(super) const HANDLER_KIND: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__KIND",
    Required,
    "Kind of handler, where batches go: `http`, `sql`, `queue`, `blob`, `durable`, `exec` or \
     `stdout`; or `chain`, for several of these in order.",
);
pub(super) const HANDLER_STEPS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__STEPS",
    Words("required for `chain`"),
    "chain: names of 2 to 10 steps, separated by commas, in the order in which they get each batch.",
);
pub(super) const HANDLER_STEP: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__STEP__<STEP>__<SETTING>",
    Words("as for `HANDLER__<SETTING>`"),
    "chain: setting of one step, its name in upper case, such as `HANDLER__STEP__NOTIFY__KIND`: any of \
     `HANDLER__…` here but `STEPS` and `STALL_MAX`.",
);
pub(super) const HANDLER_URL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__URL",
    Words("required for `http`, `durable`"),
    "http, durable: absolute URL that batches are posted to, or of the function app.",
);
pub(super) const HANDLER_ALLOW_HTTP: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ALLOW_HTTP",
    Text("false"),
    "http, durable: whether a URL without TLS may leave this machine.",
);
pub(super) const HANDLER_COMMAND: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__COMMAND",
    Words("required for `exec`"),
    "exec: program and arguments, as a JSON array of texts, or as words between blanks.",
);
pub(super) const HANDLER_ENV: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ENV",
    Words("none"),
    "exec: names of environment variables that the program gets, separated by commas, in addition to `PATH`, \
     `HOME`, `LANG`, `LC_*`, `TZ` and `TMPDIR`.",
);
pub(super) const HANDLER_CONNECTION: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CONNECTION",
    Text("AzureWebJobsStorage"),
    "queue, blob: name of the storage connection, as for `HIGHWATER__STATE__CONNECTION`; for a \
     queue `…__queueServiceUri` stands in place of `…__blobServiceUri`. sql: name of the setting with \
     the ADO.NET connection string, which must be set.",
);
pub(super) const HANDLER_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__TABLE",
    Words("required for `sql`"),
    "sql: table that rows are written to.",
);
pub(super) const HANDLER_KEY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__KEY",
    Words("those of the source's key"),
    "sql: columns of the target that tell its rows apart, with a unique index.",
);
pub(super) const HANDLER_COLUMNS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__COLUMNS",
    Words("all, under their own names"),
    "sql: columns to write, such as `id, total:amount`: of the source, and after `:` of the target.",
);
pub(super) const HANDLER_DELETES: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__DELETES",
    Text("delete"),
    "sql: what a deleted row does to the target: `delete`, or `ignore`.",
);
pub(super) const HANDLER_FENCE_TABLE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__FENCE_TABLE",
    Text(FENCE_TABLE_DEFAULT),
    "sql: table of fences, in the same database; `highwater ddl fence` prints it.",
);
pub(super) const HANDLER_LEDGER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__LEDGER",
    Text("off"),
    "sql: whether applied events are remembered, so that none is applied twice: `on` or `off`.",
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
    "blob: name of the container, which must exist.",
);
pub(super) const HANDLER_QUEUE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__QUEUE",
    Words("required for `queue`"),
    "queue: name of the queue, which must exist.",
);
pub(super) const HANDLER_MESSAGE_EVENTS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__MESSAGE_EVENTS_MAX",
    Text("1"),
    "queue: most events in one message, as far as they fit; with more than 1 a message is an array.",
);
pub(super) const HANDLER_MESSAGE_ENCODING: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__MESSAGE_ENCODING",
    Text("base64"),
    "queue: `base64`, as queue triggers of Functions expect it, or `none`.",
);
pub(super) const HANDLER_ORCHESTRATOR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__ORCHESTRATOR",
    Words("required for `durable`"),
    "durable: name of the orchestrator function that takes a batch as its input.",
);
pub(super) const HANDLER_SYSTEM_KEY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__SYSTEM_KEY",
    Words("none"),
    "durable: the function app's system key `durabletask_extension`; the local host asks for none.",
);
pub(super) const HANDLER_TIMEOUT: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__TIMEOUT",
    Text("60s"),
    "http: limit on one try, from connecting to the end of the reply. queue, blob, durable: limit \
     on one request. sql: limit on one batch, all tries. exec: \
     limit on one process.",
);
pub(super) const HANDLER_TRIES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__TRIES_MAX",
    Text("3"),
    "http, sql, queue, blob, durable: tries of one request, or batch, within one tick.",
);
pub(super) const HANDLER_CONCURRENCY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CONCURRENCY",
    Text("1"),
    "http: most requests at once for one batch, up to 32; rows of one key go into one of them, in order.",
);
pub(super) const HANDLER_BODY: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__BODY",
    Text("highwater"),
    "http: form of the body: `highwater` (one object), `cloudevents` (a batch of CloudEvents 1.0) or \
     `debezium` (an array of envelopes).",
);
pub(super) const HANDLER_GZIP: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__GZIP",
    Text("false"),
    "http: whether bodies are compressed; the receiver must understand `content-encoding: gzip`.",
);
pub(super) const HANDLER_SIGNING_SECRETS: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__SIGNING_SECRETS",
    Words("no signature"),
    "http: names of settings that hold a secret `whsec_…` each, separated by commas; every request is \
     signed with all of them.",
);
pub(super) const HANDLER_AUTH: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH",
    Text("none"),
    "http: how requests prove that they may be made: `none`, `function_key` (in `x-functions-key`), \
     `identity` (a bearer token of the managed identity) or `header` (a header of the same value each time).",
);
pub(super) const HANDLER_AUTH_SECRET: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_SECRET",
    Words("required for `function_key` and `header`"),
    "http: name of the setting that holds the key, or the header's value.",
);
pub(super) const HANDLER_AUTH_HEADER: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_HEADER",
    Words("required for `header`"),
    "http: name of the header, such as `authorization` or `x-api-key`.",
);
pub(super) const HANDLER_AUTH_AUDIENCE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_AUDIENCE",
    Words("required for `identity`"),
    "http: application that the token is for, such as `api://11111111-2222-3333-4444-555555555555`.",
);
pub(super) const HANDLER_AUTH_CLIENT_ID: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__AUTH_CLIENT_ID",
    Words("the system-assigned identity"),
    "http: client id of a user-assigned identity.",
);
pub(super) const HANDLER_CA: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__CA",
    Words("the system's"),
    "http: certificates in PEM of further authorities that may sign the target's certificate, or the \
     path of a file with them.",
);
pub(super) const HANDLER_STALL_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__HANDLER__STALL_MAX",
    Text("2m"),
    "stdout: a delivery that gets on no further for this long is given up; `0` for never.",
);
pub(super) const LEASE_TTL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__LEASE__TTL",
    Text("60s"),
    "How long a lease stands without renewal; at least 15s in Azure.",
);
pub(super) const STATE_REFRESH: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__STATE_REFRESH",
    Text("5m"),
    "Age at which the cached state document is read again.",
);
pub(super) const STATUS_INTERVAL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__STATUS_INTERVAL",
    Text("5m"),
    "How often an idle poller writes down that it is alive; `0` for never.",
);
pub(super) const RETRY_DELAY_MIN: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RETRY_DELAY_MIN",
    Text("1s"),
    "Pause after a first failure; it doubles with each further one.",
);
pub(super) const RETRY_DELAY_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RETRY_DELAY_MAX",
    Text("5m"),
    "Longest pause after failures.",
);
pub(super) const ON_FAILURE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__ON_FAILURE",
    Text("retry"),
    "What becomes of rows that are not taken: `retry` for ever, set the one at fault aside \
     (`quarantine`), or `stop` the poller until it is resumed.",
);
pub(super) const ATTEMPTS_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__ATTEMPTS_MAX",
    Text("5"),
    "Failed attempts at the same rows until that happens; a refusal for good needs one.",
);
pub(super) const RECORD_AGE_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__RECORD_AGE_MAX",
    Words("unlimited"),
    "How long the same rows may go on failing until that happens.",
);
pub(super) const BISECT_ON_ERROR: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__BISECT_ON_ERROR",
    Words("`true` for `quarantine`, else `false`"),
    "Whether a batch is halved to find the row at fault.",
);
pub(super) const CRASHES_MAX: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__CRASHES_MAX",
    Text("5"),
    "How often a process may die with the same rows in hand until they are suspected.",
);
pub(super) const ON_MISSING_STATE: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__ON_MISSING_STATE",
    Text("stop"),
    "When the state document of a poller that has run is gone: `stop`, or `recreate` it and start over.",
);
pub(super) const JOURNAL: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__JOURNAL",
    Text("off"),
    "What the journal is told: `off`, `commits`, or `full`.",
);
pub(super) const JOURNAL_RETENTION: Setting = Setting::new(
    "HIGHWATER__POLLERS__<NAME>__JOURNAL_RETENTION",
    Text("30d"),
    "How long whole days of the journal are kept; `0` for ever.",
);
