//! What a redrive would redeliver.

use serde::Serialize;

use super::Options;
use crate::output::{Exit, Failed, Record, print_text};
use crate::quarantine::filter::{age, parked_at};
use crate::quarantine::key_text;
use highwater::admin::StoredEntry;
use highwater::clock::{Clock as _, SystemClock};
use highwater::cursor::{KeyId, KeyValues};
use highwater::error::chain;
use highwater::page::words::span;
use highwater::poller::Poller;
use highwater::quarantine::{EntryState, Reason};
use time::OffsetDateTime;

/// An entry that would be redriven.
#[derive(Serialize)]
struct Planned {
    key_id: KeyId,
    #[serde(flatten)]
    row: Row,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Readable {
        key: KeyValues,
        state: EntryState,
        reason: Reason,
        age_seconds: u64,
    },
    /// A redrive reports it, and leaves it as it is.
    Unreadable {
        unreadable: String,
    },
}

impl Planned {
    fn of(found: StoredEntry, now: OffsetDateTime) -> Self {
        let row = found.entry.and_then(|entry| {
            let age_seconds = age(&entry, now).as_secs();
            let (key, state, reason) = (entry.row_key()?, entry.state, entry.reason);
            Ok(Row::Readable { key, state, reason, age_seconds })
        });
        let row = row.unwrap_or_else(|error| Row::Unreadable { unreadable: chain(&error) });
        Self { key_id: found.key, row }
    }
}

impl Record for Planned {
    const COLUMNS: &'static [&'static str] = &["key id", "key", "state", "reason", "age"];

    fn cells(&self) -> Vec<String> {
        let id = self.key_id.to_string();
        match &self.row {
            Row::Readable { key, state, reason, age_seconds } => {
                let (state, reason) = (state.as_str().to_owned(), reason.as_str().to_owned());
                vec![id, key_text(key), state, reason, span(*age_seconds)]
            }
            Row::Unreadable { .. } => {
                vec![id, String::new(), String::new(), "unreadable".to_owned(), String::new()]
            }
        }
    }
}

/// Prints the entries that would be redriven, without the lease and without a write.
pub(super) async fn print(poller: &Poller, options: &Options) -> Result<Exit, Failed> {
    let now = SystemClock.now();
    let mut found = Vec::new();
    options.selection.read(poller, &mut |entry| found.push(entry)).await?;
    found.sort_by_key(parked_at);
    let planned: Vec<_> = found.into_iter().map(|found| Planned::of(found, now)).collect();
    print_text(&options.form.output.list(&planned));
    Ok(Exit::Done)
}
