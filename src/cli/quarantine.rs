//! `highwater quarantine`: lists, redrives and drops quarantined rows.

mod redrive;

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use super::confirm::confirm;
use super::output::{Exit, Failed, OutputOption, Record, print_text, time_text};
use super::poller;
use highwater::admin::StoredEntry;
use highwater::config::Vars;
use highwater::cursor::KeyValues;
use highwater::error::chain;
use highwater::event::EventId;
use highwater::poller::Poller;
use highwater::quarantine::{Entry, EntryError, Reason};

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// List a poller's quarantined rows.
    List(ListOptions),
    /// Print a full entry: the row and its errors.
    Show(ShowOptions),
    /// Redeliver rows in their current state, and remove the entries of accepted ones.
    Redrive(redrive::Options),
    /// Remove entries permanently; their rows are not delivered.
    Drop(DropOptions),
}

/// Selects entries.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct Selection {
    /// Ids of the rows' events, as `list` prints them.
    #[arg(value_name = "EVENT_ID", value_parser = event_id)]
    events: Vec<EventId>,
    /// All entries.
    #[arg(long)]
    all: bool,
}

impl Selection {
    /// Returns the selected entries, after checking that they exist.
    pub(super) async fn events(&self, poller: &Poller) -> Result<Vec<EventId>, Failed> {
        let existing = poller.admin().quarantined().await?;
        if self.all {
            return Ok(existing);
        }
        match self.events.iter().find(|event| !existing.contains(event)) {
            Some(event) => Err(missing(poller, event)),
            None => Ok(self.events.clone()),
        }
    }
}

// Clap's default would print the choice before the name.
#[derive(Debug, Args)]
#[command(override_usage = "highwater quarantine drop [OPTIONS] <POLLER> <EVENT_ID...|--all>")]
pub(super) struct DropOptions {
    /// Name of the poller.
    poller: String,
    #[command(flatten)]
    selection: Selection,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    form: OutputOption,
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
        Options::Redrive(options) => Box::pin(redrive::run(vars, options)).await,
        Options::Drop(options) => drop_entries(vars, options).await,
    }
}

/// One line of the list.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    Row(Box<ListedRow>),
    /// A file that is named like an entry, and cannot be read as one.
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
    fn of(found: StoredEntry) -> Self {
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

/// Returns a key in readable form, such as `id=7`.
fn key_text(key: &KeyValues) -> String {
    let parts = key.iter().map(|(name, value)| format!("{name}={value}"));
    parts.collect::<Vec<_>>().join(",")
}

async fn list(vars: &dyn Vars, options: &ListOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let mut entries = Vec::new();
    for event in poller.admin().quarantined().await? {
        // A missing entry was redriven or dropped meanwhile.
        entries.extend(poller.admin().entry(&event).await?.map(Listed::of));
    }
    print_text(&options.form.output.list(&entries));
    Ok(Exit::Done)
}

async fn show(vars: &dyn Vars, options: &ShowOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let found = found(&poller, &options.event).await?;
    let entry = found.entry.map_err(|error| Failed::new(Exit::Failed, chain(&error)))?;
    let entry = serde_json::to_value(&entry);
    let entry = entry.map_err(|error| Failed::new(Exit::Failed, error.to_string()))?;
    print_text(&options.form.output.one(&entry, || format!("{entry:#}")));
    Ok(Exit::Done)
}

/// Returns an entry, or an error if it does not exist.
async fn found(poller: &Poller, event: &EventId) -> Result<StoredEntry, Failed> {
    poller.admin().entry(event).await?.ok_or_else(|| missing(poller, event))
}

fn missing(poller: &Poller, event: &EventId) -> Failed {
    let text = format!("poller `{}` has no quarantined event `{event}`", poller.name());
    Failed::new(Exit::Usage, text)
}

/// What is printed for each entry to drop.
#[derive(Serialize)]
struct Removal {
    event_id: EventId,
    dropped: bool,
    error: Option<String>,
}

impl Record for Removal {
    const COLUMNS: &'static [&'static str] = &["event id", "dropped", "error"];

    fn cells(&self) -> Vec<String> {
        let dropped = if self.dropped { "yes" } else { "no" };
        let error = self.error.clone().unwrap_or_default();
        vec![self.event_id.to_string(), dropped.to_owned(), error]
    }
}

async fn drop_entries(vars: &dyn Vars, options: &DropOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let mut entries = Vec::new();
    let mut kept = Vec::new();
    for event in options.selection.events(&poller).await? {
        let Some(found) = poller.admin().entry(&event).await? else { continue };
        match &found.entry {
            // With `--all`, unreadable entries are kept: their content is unknown.
            Err(error) if options.selection.all => kept.push(Removal {
                event_id: event,
                dropped: false,
                error: Some(format!("pass its event id to drop it anyway: {}", chain(error))),
            }),
            Ok(_) | Err(_) => entries.push(found),
        }
    }
    let mut lines = kept;
    if !entries.is_empty() {
        if !confirm(&plan(poller.name(), &entries), poller.name(), options.yes)? {
            return Ok(Exit::Done);
        }
        for StoredEntry { event, etag, .. } in entries {
            let error =
                poller.admin().remove_entry(&event, &etag).await.err().map(|error| chain(&error));
            lines.push(Removal { event_id: event, dropped: error.is_none(), error });
        }
    }
    print_text(&options.form.output.list(&lines));
    let all = lines.iter().all(|line| line.dropped);
    Ok(if all { Exit::Done } else { Exit::Failed })
}

/// Most entries that a plan lists.
const PLAN_LINES_MAX: usize = 20;

fn plan(poller: &str, entries: &[StoredEntry]) -> String {
    let mut lines = vec![format!(
        "{poller}: {} entries are removed permanently; their rows will not be delivered:",
        entries.len()
    )];
    lines.extend(entries.iter().take(PLAN_LINES_MAX).map(|found| {
        let key = found.entry.as_ref().map(|entry| entry.row_key().unwrap_or_default());
        let what = key.map_or_else(|error| chain(error), |key| key_text(&key));
        format!("  {}  {what}", found.event)
    }));
    let more = entries.len().saturating_sub(PLAN_LINES_MAX);
    lines.extend((more > 0).then(|| format!("  and {more} more")));
    lines.join("\n")
}

fn event_id(text: &str) -> Result<EventId, String> {
    EventId::parse(text).ok_or_else(|| "expected the 32 hex digits of an event id".to_owned())
}
