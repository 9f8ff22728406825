//! `highwater quarantine`: the rows that were set aside, and what becomes of them.

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use super::output::{Exit, Failed, OutputOption, Record, say, time_text};
use super::poller;
use crate::config::Vars;
use crate::cursor::KeyValues;
use crate::error::chain;
use crate::event::EventId;
use crate::poller::{Found, Poller};
use crate::quarantine::{Entry, EntryError, Reason};

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// List the rows that a poller has set aside.
    List(ListOptions),
    /// Print an entry whole: the row, and what it failed with.
    Show(ShowOptions),
}

#[derive(Debug, Args)]
pub(super) struct ListOptions {
    /// Name of the poller.
    poller: String,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Debug, Args)]
pub(super) struct ShowOptions {
    /// Name of the poller.
    poller: String,
    /// Id of the row's event, as `list` prints it.
    #[arg(value_name = "EVENT_ID", value_parser = event_id)]
    event: EventId,
    #[command(flatten)]
    form: OutputOption,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    match options {
        Options::List(options) => list(vars, options).await,
        Options::Show(options) => show(vars, options).await,
    }
}

/// One line of the list.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    Row(Box<ListedRow>),
    /// What has the name of an entry and is none that can be read.
    Unreadable {
        event_id: EventId,
        unreadable: String,
    },
}

#[derive(Serialize)]
struct ListedRow {
    event_id: EventId,
    key: KeyValues,
    reason: Reason,
    attempts: u32,
    crashes: u32,
    #[serde(with = "time::serde::rfc3339")]
    quarantined_at: OffsetDateTime,
    error: String,
}

impl Listed {
    fn of(found: Found) -> Self {
        match found.entry.and_then(listed) {
            Ok(row) => Self::Row(Box::new(row)),
            Err(error) => Self::Unreadable { event_id: found.event, unreadable: chain(&error) },
        }
    }
}

fn listed(entry: Entry) -> Result<ListedRow, EntryError> {
    Ok(ListedRow {
        key: entry.row_key()?,
        event_id: entry.event_id,
        reason: entry.reason,
        attempts: entry.attempts,
        crashes: entry.crashes,
        quarantined_at: entry.quarantined_at,
        error: entry.error,
    })
}

impl Record for Listed {
    const COLUMNS: &'static [&'static str] =
        &["event id", "key", "reason", "attempts", "when", "error"];

    fn cells(&self) -> Vec<String> {
        match self {
            Self::Row(row) => vec![
                row.event_id.to_string(),
                key_text(&row.key),
                row.reason.as_str().to_owned(),
                row.attempts.to_string(),
                time_text(row.quarantined_at),
                row.error.clone(),
            ],
            Self::Unreadable { event_id, unreadable } => {
                let empty = String::new;
                let reason = "unreadable".to_owned();
                vec![event_id.to_string(), empty(), reason, empty(), empty(), unreadable.clone()]
            }
        }
    }
}

/// Returns a key as people read it, such as `id=7`.
fn key_text(key: &KeyValues) -> String {
    let parts = key.iter().map(|(name, value)| format!("{name}={value}"));
    parts.collect::<Vec<_>>().join(",")
}

async fn list(vars: &dyn Vars, options: &ListOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let mut entries = Vec::new();
    for event in poller.quarantined().await? {
        // One that is gone by now was replayed or dropped meanwhile.
        entries.extend(poller.entry(&event).await?.map(Listed::of));
    }
    say(&options.form.output.list(&entries));
    Ok(Exit::Done)
}

async fn show(vars: &dyn Vars, options: &ShowOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let found = found(&poller, &options.event).await?;
    let entry = found.entry.map_err(|error| Failed::new(Exit::Failed, chain(&error)))?;
    let entry = serde_json::to_value(&entry);
    let entry = entry.map_err(|error| Failed::new(Exit::Failed, error.to_string()))?;
    say(&options.form.output.one(&entry, || format!("{entry:#}")));
    Ok(Exit::Done)
}

/// Returns an entry that must be there.
async fn found(poller: &Poller, event: &EventId) -> Result<Found, Failed> {
    poller.entry(event).await?.ok_or_else(|| {
        let text = format!("poller `{}` has not set aside event `{event}`", poller.name());
        Failed::new(Exit::Usage, text)
    })
}

fn event_id(text: &str) -> Result<EventId, String> {
    EventId::parse(text).ok_or_else(|| "expected the 32 hex digits of an event id".to_owned())
}
