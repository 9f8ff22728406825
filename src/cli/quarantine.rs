//! `highwater quarantine`: lists, redrives and drops parked and quarantined keys.

mod filter;
mod redrive;

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use self::filter::{Filter, Selection};
use super::confirm::confirm;
use super::output::{Exit, Failed, OutputOption, Record, print_text, time_text};
use super::poller;
use highwater::admin::StoredEntry;
use highwater::config::Vars;
use highwater::cursor::{KeyId, KeyValues};
use highwater::error::chain;
use highwater::event::{EventId, counted};
use highwater::poller::Poller;
use highwater::quarantine::{Entry, EntryError, EntryState, Reason};
use highwater::state::StoreError;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// List a poller's parked and quarantined keys.
    List(ListOptions),
    /// Print a full entry: the row and its errors.
    Show(ShowOptions),
    /// Redeliver rows in their current state, and remove the entries of accepted ones.
    Redrive(redrive::Options),
    /// Remove entries permanently; their rows are not delivered.
    Drop(DropOptions),
}

// Clap's default would print the choice before the name.
#[derive(Debug, Args)]
#[command(
    override_usage = "highwater quarantine drop [OPTIONS] <POLLER> <KEY_ID...|--all|FILTERS>"
)]
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
    filter: Filter,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Debug, Args)]
pub(super) struct ShowOptions {
    /// Name of the poller.
    poller: String,
    /// Id of the key, as `list` prints it.
    #[arg(value_name = "KEY_ID", value_parser = key_id)]
    key: KeyId,
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
        key_id: KeyId,
        unreadable: String,
    },
}

#[derive(Serialize)]
struct ListedRow {
    key_id: KeyId,
    key: KeyValues,
    event_id: EventId,
    versions: u64,
    state: EntryState,
    reason: Reason,
    retries: u32,
    #[serde(with = "time::serde::rfc3339::option")]
    next_retry_at: Option<OffsetDateTime>,
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
            Err(error) => Self::Unreadable { key_id: found.key, unreadable: chain(&error) },
        }
    }
}

fn listed(entry: Entry) -> Result<ListedRow, EntryError> {
    Ok(ListedRow {
        key: entry.row_key()?,
        key_id: entry.key_id,
        event_id: entry.event_id,
        versions: entry.versions,
        state: entry.state,
        reason: entry.reason,
        retries: entry.retries,
        next_retry_at: entry.next_retry_at,
        attempts: entry.attempts,
        crashes: entry.crashes,
        quarantined_at: entry.quarantined_at,
        error: entry.error,
    })
}

impl Record for Listed {
    const COLUMNS: &'static [&'static str] =
        &["key id", "key", "state", "reason", "attempts", "when", "next retry", "error"];

    fn cells(&self) -> Vec<String> {
        match self {
            Self::Row(row) => vec![
                row.key_id.to_string(),
                key_text(&row.key),
                row.state.as_str().to_owned(),
                row.reason.as_str().to_owned(),
                row.attempts.to_string(),
                time_text(row.quarantined_at),
                row.next_retry_at.map_or_else(|| "-".to_owned(), time_text),
                row.error.clone(),
            ],
            Self::Unreadable { key_id, unreadable } => {
                let empty = String::new;
                let reason = "unreadable".to_owned();
                let cells =
                    [key_id.to_string(), empty(), empty(), reason, empty(), empty(), empty()];
                cells.into_iter().chain([unreadable.clone()]).collect()
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
    let mut found = Vec::new();
    options.filter.read(&poller, &mut |entry| found.push(entry)).await?;
    found.sort_by_key(filter::parked_at);
    let entries: Vec<_> = found.into_iter().map(Listed::of).collect();
    print_text(&options.form.output.list(&entries));
    Ok(Exit::Done)
}

async fn show(vars: &dyn Vars, options: &ShowOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let found = found(&poller, &options.key).await?;
    let entry = found.entry.map_err(|error| Failed::new(Exit::Failed, chain(&error)))?;
    let entry = serde_json::to_value(&entry);
    let entry = entry.map_err(|error| Failed::new(Exit::Failed, error.to_string()))?;
    print_text(&options.form.output.one(&entry, || format!("{entry:#}")));
    Ok(Exit::Done)
}

/// Returns an entry, or an error if it does not exist.
async fn found(poller: &Poller, key: &KeyId) -> Result<StoredEntry, Failed> {
    poller.admin().entry(key).await?.ok_or_else(|| missing(poller, key))
}

fn missing(poller: &Poller, key: &KeyId) -> Failed {
    let text = format!("poller `{}` has no parked key `{key}`", poller.name());
    Failed::new(Exit::Usage, text)
}

/// What is printed for each entry to drop.
#[derive(Serialize)]
struct Removal {
    key_id: KeyId,
    dropped: bool,
    error: Option<String>,
}

impl Record for Removal {
    const COLUMNS: &'static [&'static str] = &["key id", "dropped", "error"];

    fn cells(&self) -> Vec<String> {
        let dropped = if self.dropped { "yes" } else { "no" };
        let error = self.error.clone().unwrap_or_default();
        vec![self.key_id.to_string(), dropped.to_owned(), error]
    }
}

async fn drop_entries(vars: &dyn Vars, options: &DropOptions) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let mut entries = Vec::new();
    let mut kept = Vec::new();
    let is_by_id = options.selection.is_by_id();
    let mut sort = |found: StoredEntry| match &found.entry {
        // With `--all`, unreadable entries are kept: their content is unknown.
        Err(error) if !is_by_id => {
            let error = Some(format!("pass its key id to drop it anyway: {}", chain(error)));
            kept.push(Removal { key_id: found.key, dropped: false, error });
        }
        Ok(_) | Err(_) => entries.push(found),
    };
    options.selection.read(&poller, &mut sort).await?;
    let (mut lines, mut noted) = (kept, Ok(()));
    if !entries.is_empty() {
        if !confirm(&plan(poller.name(), &entries), poller.name(), options.yes)? {
            return Ok(Exit::Done);
        }
        let entries = entries.into_iter().map(|found| (found.key, found.etag)).collect();
        let mut report = |key_id, removed: Result<(), StoreError>| {
            let error = removed.err().map(|error| chain(&error));
            lines.push(Removal { key_id, dropped: error.is_none(), error });
        };
        noted = poller.admin().drop_entries(entries, &mut report).await;
    }
    print_text(&options.form.output.list(&lines));
    noted.map_err(|error| {
        let text = format!(
            "the entries are dropped, but the state document still counts them, until a tick lists them: {}",
            chain(&error)
        );
        Failed::new(Exit::Failed, text)
    })?;
    let all = lines.iter().all(|line| line.dropped);
    Ok(if all { Exit::Done } else { Exit::Failed })
}

/// Most entries that a plan lists.
const PLAN_LINES_MAX: usize = 20;

fn plan(poller: &str, entries: &[StoredEntry]) -> String {
    let mut lines = vec![format!(
        "{poller}: removes {} permanently, so that their rows are not delivered:",
        counted(u64::try_from(entries.len()).unwrap_or(u64::MAX), "entry")
    )];
    lines.extend(entries.iter().take(PLAN_LINES_MAX).map(|found| {
        let key = found.entry.as_ref().map(|entry| entry.row_key().unwrap_or_default());
        let what = key.map_or_else(|error| chain(error), |key| key_text(&key));
        format!("  {}  {what}", found.key)
    }));
    let more = entries.len().saturating_sub(PLAN_LINES_MAX);
    lines.extend((more > 0).then(|| format!("  and {more} more")));
    lines.join("\n")
}

fn key_id(text: &str) -> Result<KeyId, String> {
    KeyId::parse(text).ok_or_else(|| "expected the 32 hex digits of a key id".to_owned())
}
