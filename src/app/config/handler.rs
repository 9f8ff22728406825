//! Settings of a poller's handler.

mod blob;
mod chain;
mod durable;
mod exec;
mod http;
mod queue;
mod sql;

use std::time::Duration;

use url::Url;

pub use self::chain::StepConfig;
pub(super) use self::chain::setting_of_step;
pub use self::durable::DurableConfig;
pub use self::exec::ExecConfig;
pub use self::http::{Authorities, BodyForm, HttpAuth, HttpConfig};
pub(in crate::config) use self::http::{read_named, read_signing_secrets, secret_name, target_url};
use super::FUNCTION_TIMEOUT_RESERVE;
use super::mistake::{Mistake, Shown};
use super::parse::{self, Expected, show_duration};
use super::read::Reader;
use super::settings::{self, SETTINGS, Setting};
use super::{BlobConfig, QueueConfig, SqlHandlerConfig};

/// Maximum tries of one request within one tick.
const TRIES_MAX: u32 = 10;
/// Maximum parallel requests for one batch.
const CONCURRENCY_MAX: u32 = 32;

/// Where a poller's batches go.
#[derive(Clone, Debug)]
pub enum HandlerConfig {
    /// A blob for each batch.
    Blob(BlobConfig),
    /// A Durable Functions orchestration for each batch.
    Durable(DurableConfig),
    /// A process for each batch.
    Exec(ExecConfig),
    /// Several handlers, in the order in which they receive each batch.
    Chain(Vec<StepConfig>),
    /// POST to a URL.
    Http(Box<HttpConfig>),
    /// Messages in a queue.
    Queue(QueueConfig),
    /// Rows in a SQL Server table.
    Sql(Box<SqlHandlerConfig>),
    /// One line for each event on standard output.
    Stdout,
}

impl HandlerConfig {
    /// Returns the longest time without progress that its time limits allow.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Blob(blob) => Some(blob.timeout),
            Self::Durable(durable) => Some(durable.timeout),
            Self::Exec(exec) => Some(exec.timeout),
            Self::Chain(steps) => steps.iter().filter_map(|step| step.handler.timeout()).max(),
            Self::Http(http) => Some(http.timeout),
            Self::Queue(queue) => Some(queue.timeout),
            Self::Sql(sql) => Some(sql.timeout),
            Self::Stdout => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Blob,
    Durable,
    Exec,
    Chain,
    Http,
    Queue,
    Sql,
    Stdout,
}

/// The kinds by name, the chain last.
const KINDS: [(&str, Kind); 8] = [
    ("http", Kind::Http),
    ("sql", Kind::Sql),
    ("queue", Kind::Queue),
    ("blob", Kind::Blob),
    ("durable", Kind::Durable),
    ("exec", Kind::Exec),
    ("stdout", Kind::Stdout),
    ("chain", Kind::Chain),
];

/// Name of a chain in earlier versions.
const OLD_CHAIN: &str = "fanout";

/// Prefix of the settings of a handler in [`SETTINGS`].
const HANDLER: &str = "HIGHWATER__POLLERS__<NAME>__HANDLER__";

/// Returns the handler kinds that a setting is for; empty if it is for all. The table lists them at the start of the
/// sentences in `about`.
fn kinds_of(setting: &Setting) -> Vec<&'static str> {
    let heads = setting.about.split(". ").filter_map(|sentence| sentence.split_once(": "));
    let names = heads.flat_map(|(head, _)| head.split(", "));
    names
        .filter_map(|name| KINDS.iter().map(|(kind, _)| *kind).find(|kind| *kind == name))
        .collect()
}

/// Reports settings of other kinds than the chosen one, since they have no effect. With `stdout` they are ignored,
/// so that one setting can switch a poller to it and back.
fn report_of_others(reader: &mut Reader<'_>, segment: &str, kind: Kind) {
    let at = Some(segment);
    let chosen = KINDS.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| *name);
    if kind == Kind::Stdout {
        return;
    }
    let names = reader.names();
    for setting in SETTINGS.iter().filter(|setting| setting.name.starts_with(HANDLER)) {
        let kinds = kinds_of(setting);
        if kinds.is_empty() || kinds.contains(&chosen) {
            continue;
        }
        let name = setting.name_for(at);
        let (begin, is_family) = match name.split_once("<STEP>") {
            Some((begin, _)) => (begin, true),
            None => (name.as_str(), false),
        };
        let is_it = |set: &&String| if is_family { set.starts_with(begin) } else { *set == begin };
        for set in names.iter().filter(is_it) {
            reader.note(Mistake {
                setting: set.clone(),
                shown: Shown::Secret,
                expected: format!(
                    "nothing, since `{}` is `{chosen}` and this setting is for `{}`",
                    settings::HANDLER_KIND.name_for(at),
                    kinds.join("`, `")
                ),
                hint: Some("remove it, or choose that kind".to_owned()),
            });
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<HandlerConfig> {
    let is_step = segment.contains('/');
    // Nested chains are not supported: the inner chain would need its own step results.
    let kinds = if is_step { KINDS.get(..KINDS.len() - 1).unwrap_or_default() } else { &KINDS };
    let kind = reader.read(&settings::HANDLER_KIND, Some(segment), |text| {
        parse::one_of(kinds)(text).map_err(|expected| match text {
            OLD_CHAIN => expected.hint("it is now called `chain`"),
            _ => expected,
        })
    })?;
    report_of_others(reader, segment, kind);
    match kind {
        Kind::Chain => chain::read(reader, segment).map(HandlerConfig::Chain),
        Kind::Http => http::read(reader, segment).map(|http| HandlerConfig::Http(Box::new(http))),
        Kind::Blob => blob::read(reader, segment).map(HandlerConfig::Blob),
        Kind::Durable => durable::read(reader, segment).map(HandlerConfig::Durable),
        Kind::Exec => exec::read(reader, segment).map(HandlerConfig::Exec),
        Kind::Queue => queue::read(reader, segment).map(HandlerConfig::Queue),
        Kind::Sql => sql::read(reader, segment).map(|sql| HandlerConfig::Sql(Box::new(sql))),
        Kind::Stdout => Some(HandlerConfig::Stdout),
    }
}

fn read_url(reader: &mut Reader<'_>, segment: &str) -> Option<Url> {
    let at = Some(segment);
    let allow_http = reader.read(&settings::HANDLER_ALLOW_HTTP, at, parse::boolean);
    // If the permission is invalid, report only that, not the URL too.
    reader.read(&settings::HANDLER_URL, at, |text| {
        let permission = settings::HANDLER_ALLOW_HTTP.name_for(at);
        target_url(text, allow_http.unwrap_or(true), &permission)
    })
}

fn read_timeout(reader: &mut Reader<'_>, segment: &str) -> Option<Duration> {
    let min = Duration::from_millis(1);
    reader.read(&settings::HANDLER_TIMEOUT, Some(segment), parse::duration_from(min))
}

/// Rejects a configured timeout that does not fit into a tick: it could never expire, so a target that never replies
/// could not be distinguished from a slow one.
pub(super) fn check_timeout(
    reader: &mut Reader<'_>,
    segment: &str,
    function_timeout: Option<Duration>,
) {
    let Some(limit) = function_timeout else { return };
    for segment in chain::segments(reader, segment) {
        check_timeout_of(reader, &segment, limit);
    }
    check_timeout_of(reader, segment, limit);
}

fn check_timeout_of(reader: &mut Reader<'_>, segment: &str, limit: Duration) {
    let setting = settings::HANDLER_TIMEOUT.name_for(Some(segment));
    let Some(text) = reader.text(&setting) else { return };
    let below = limit.saturating_sub(FUNCTION_TIMEOUT_RESERVE);
    if parse::duration(&text).is_ok_and(|timeout| timeout >= below) {
        let expected = Expected::new(format!(
            "a duration below {} (`{}` minus 15 seconds)",
            show_duration(below),
            settings::FUNCTION_TIMEOUT.name
        ));
        reader.wrong(&setting, &text, expected.hint("raise that setting and `functionTimeout`"));
    }
}

/// Reads the number of parallel requests; a mistake is recorded.
fn read_concurrency(reader: &mut Reader<'_>, segment: &str, default: u32) -> usize {
    let setting = &settings::HANDLER_CONCURRENCY;
    let number = parse::number(1..=CONCURRENCY_MAX);
    let number = reader.read_if_set(setting, Some(segment), number).unwrap_or(default);
    usize::try_from(number).unwrap_or(1)
}

fn read_tries_max(reader: &mut Reader<'_>, segment: &str) -> Option<u32> {
    reader.read(&settings::HANDLER_TRIES_MAX, Some(segment), parse::number(1..=TRIES_MAX))
}
