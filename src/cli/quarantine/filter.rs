//! Which entries a command is about: those of some keys, all, or those that a filter matches.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::Value;
use time::OffsetDateTime;

use super::{key_id, key_text, missing};
use crate::output::{Exit, Failed};
use highwater::admin::StoredEntry;
use highwater::clock::{Clock as _, SystemClock};
use highwater::config::parse_age;
use highwater::cursor::{KeyId, KeyValues};
use highwater::explain;
use highwater::poller::Poller;
use highwater::quarantine::{Entry, EntryState, Reason};

/// Help heading of the filters.
const HEADING: &str = "Filters";

const REASONS: [Reason; 4] =
    [Reason::Refused, Reason::Attempts, Reason::Crashes, Reason::Unreadable];

const STATES: [EntryState; 2] = [EntryState::Retrying, EntryState::Quarantined];

/// Restricts a command to some entries. An entry must pass each filter. An entry that cannot be read passes none.
#[derive(Debug, Default, Args)]
pub(super) struct Filter {
    /// Only keys parked for this reason; repeat it for several.
    #[arg(long, value_name = "REASON", value_parser = reason_parser(), help_heading = HEADING)]
    reason: Vec<Reason>,
    /// Only keys in this state.
    #[arg(long, value_name = "STATE", value_parser = state_parser(), help_heading = HEADING)]
    state: Option<EntryState>,
    /// Only keys parked at least this long ago, such as `1h` or `2d`.
    #[arg(long, value_name = "AGE", value_parser = parse_age, help_heading = HEADING)]
    older_than: Option<Duration>,
    /// Only keys parked less than this long ago.
    #[arg(long, value_name = "AGE", value_parser = parse_age, help_heading = HEADING)]
    newer_than: Option<Duration>,
    /// Only the key with this value, such as `17`, `id=17` or `a=1,b=2`; repeat it for several.
    #[arg(
        id = "row_key", long = "key", value_name = "KEY", value_parser = row_key, help_heading = HEADING
    )]
    key: Vec<String>,
}

fn reason_parser() -> impl TypedValueParser<Value = Reason> {
    one_of(REASONS, Reason::as_str)
}

fn state_parser() -> impl TypedValueParser<Value = EntryState> {
    one_of(STATES, EntryState::as_str)
}

fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(name)).try_map(move |text| {
        values.into_iter().find(|value| name(*value) == text).ok_or("not one of the values")
    })
}

fn row_key(text: &str) -> Result<String, String> {
    let is_key = !text.is_empty() && !text.starts_with('=');
    let expected = || "expected a key as `quarantine list` prints it, such as `id=17`".to_owned();
    is_key.then(|| text.to_owned()).ok_or_else(expected)
}

impl Filter {
    /// Whether it matches every entry.
    fn is_empty(&self) -> bool {
        let Self { reason, state, older_than, newer_than, key } = self;
        reason.is_empty()
            && state.is_none()
            && older_than.is_none()
            && newer_than.is_none()
            && key.is_empty()
    }

    /// Whether an entry with row key `key` passes.
    fn matches(&self, entry: &Entry, key: &KeyValues, now: OffsetDateTime) -> bool {
        let age = age(entry, now);
        (self.reason.is_empty() || self.reason.contains(&entry.reason))
            && self.state.is_none_or(|state| state == entry.state)
            && self.older_than.is_none_or(|least| age >= least)
            && self.newer_than.is_none_or(|limit| age < limit)
            && (self.key.is_empty() || self.key.iter().any(|text| is_key(text, key)))
    }

    /// Reads all entries, and passes those that match to `take`. Returns the keys of `--key` that have no entry.
    pub(super) async fn read(
        &self,
        poller: &Poller,
        take: &mut (dyn FnMut(StoredEntry) + Send),
    ) -> Result<Vec<&str>, Failed> {
        let now = SystemClock.now();
        let mut absent: Vec<&str> = self.key.iter().map(String::as_str).collect();
        for key in poller.admin().quarantined().await? {
            // A missing entry was redriven or dropped meanwhile.
            let Some(found) = poller.admin().entry(&key).await? else { continue };
            let row = found.entry.as_ref().ok();
            let row = row.and_then(|entry| Some((entry, entry.row_key().ok()?)));
            let matches = match row {
                Some((entry, key)) => {
                    absent.retain(|text| !is_key(text, &key));
                    self.matches(entry, &key, now)
                }
                None => self.is_empty(),
            };
            if matches {
                take(found);
            }
        }
        Ok(absent)
    }
}

/// Orders entries: the one that was parked first comes first, those that cannot be read come last.
pub(super) fn parked_at(found: &StoredEntry) -> (bool, Option<OffsetDateTime>) {
    let at = found.entry.as_ref().ok().map(|entry| entry.quarantined_at);
    (at.is_none(), at)
}

/// Returns how long ago the key of an entry was parked.
pub(super) fn age(entry: &Entry, now: OffsetDateTime) -> Duration {
    // This machine's clock may be behind the storage service's.
    Duration::try_from(now - entry.quarantined_at).unwrap_or_default()
}

/// Returns a text without its quotes; `None` if it has none.
fn unquoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.strip_suffix('"')
}

/// Whether `text` is this key as it is printed, or the same without quotes around texts, which a shell removes. The value
/// is enough for a key of one column.
fn is_key(text: &str, key: &KeyValues) -> bool {
    let printed = key_text(key);
    let only = key.iter().next().filter(|_| key.len() == 1);
    let value = only.and_then(|(name, _)| printed.strip_prefix(name)?.strip_prefix('='));
    let bare = |text| unquoted(text).unwrap_or(text);
    let is_value = value.is_some_and(|value| bare(value) == bare(text));
    // Where a value without quotes ends would be ambiguous.
    let has_comma = |(_, value): (_, &Value)| value.as_str().is_some_and(|text| text.contains(','));
    let is_ambiguous = key.len() > 1 && key.iter().any(has_comma);
    printed == text || is_value || (!is_ambiguous && explain::key_text(key) == text)
}

/// Selects entries: by id, all, or those that pass the filters.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Ids of the keys, as `list` prints them.
    #[arg(
        value_name = "KEY_ID", value_parser = key_id,
        required_unless_present_any = ["all", "Filter"], conflicts_with_all = ["all", "Filter"]
    )]
    keys: Vec<KeyId>,
    /// All entries that pass the filters; a filter alone implies it.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
}

impl Selection {
    /// Whether the entries are selected by their ids.
    pub(super) fn is_by_id(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns the keys of the selected entries, after checking that they exist. Reads the entries only for a filter.
    pub(super) async fn keys(&self, poller: &Poller) -> Result<Vec<KeyId>, Failed> {
        if self.is_by_id() {
            return self.existing(poller).await;
        }
        if self.filter.is_empty() {
            return Ok(poller.admin().quarantined().await?);
        }
        let mut found = Vec::new();
        self.read(poller, &mut |entry| found.push(entry)).await?;
        found.sort_by_key(parked_at);
        Ok(found.into_iter().map(|found| found.key).collect())
    }

    /// Passes the selected entries to `take`, after checking that they exist.
    pub(super) async fn read(
        &self,
        poller: &Poller,
        take: &mut (dyn FnMut(StoredEntry) + Send),
    ) -> Result<(), Failed> {
        if self.is_by_id() {
            for key in self.existing(poller).await? {
                if let Some(found) = poller.admin().entry(&key).await? {
                    take(found);
                }
            }
            return Ok(());
        }
        match self.filter.read(poller, take).await?.first() {
            Some(key) => {
                let text = format!("poller `{}` has no parked key `{key}`", poller.name());
                Err(Failed::new(Exit::Usage, text))
            }
            None => Ok(()),
        }
    }

    /// Returns the given ids, after checking that each has an entry.
    async fn existing(&self, poller: &Poller) -> Result<Vec<KeyId>, Failed> {
        let existing = poller.admin().quarantined().await?;
        match self.keys.iter().find(|key| !existing.contains(key)) {
            Some(key) => Err(missing(poller, key)),
            None => Ok(self.keys.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-04-07 12:00 UTC);

    /// A command with filters alone, and one with a selection.
    #[derive(Debug, Parser)]
    enum Command {
        List {
            #[command(flatten)]
            filter: Filter,
        },
        Redrive {
            poller: String,
            #[command(flatten)]
            selection: Selection,
        },
    }

    fn parsed(line: &str) -> Result<Command, String> {
        let words = ["test"].into_iter().chain(line.split(' ').filter(|word| !word.is_empty()));
        Command::try_parse_from(words).map_err(|error| error.to_string())
    }

    fn key(json: &str) -> KeyValues {
        serde_json::from_str(json).unwrap()
    }

    /// An entry that was parked an hour ago, with these fields replaced.
    fn entry(reason: &str, state: &str) -> Entry {
        let json = serde_json::json!({
            "version": 2, "poller_name": "p", "key_id": "a".repeat(32), "event_id": "e".repeat(32),
            "batch_id": "b".repeat(32), "reason": reason, "error": "422", "first_error": "422",
            "attempts": 1, "crashes": 0, "versions": 1, "state": state,
            "first_failed_at": "2026-04-07T01:00:00Z", "quarantined_at": "2026-04-07T11:00:00Z",
            "last_version_at": "2026-04-07T11:30:00Z", "holds_back": true, "quarantined_by": "a",
            "generation": 1, "fencing_token": 1, "events": []
        });
        serde_json::from_str(&json.to_string()).unwrap()
    }

    /// Whether these filters match an entry of key 17.
    fn matches(filters: &str, entry: &Entry) -> bool {
        let Command::List { filter } = parsed(&format!("list {filters}")).unwrap() else {
            panic!("{filters}");
        };
        filter.matches(entry, &key(r#"{"id":17}"#), NOW)
    }

    #[test]
    fn each_filter_restricts_the_entries() {
        let refused = entry("refused", "quarantined");
        for (filters, expected) in [
            ("", true),
            ("--reason refused", true),
            ("--reason crashes", false),
            ("--reason crashes --reason refused", true),
            ("--state quarantined", true),
            ("--state retrying", false),
            ("--older-than 1h", true),
            ("--older-than 61m", false),
            ("--older-than 2d", false),
            ("--newer-than 1h", false),
            ("--newer-than 61m", true),
            ("--newer-than 1d --older-than 30m", true),
            ("--key id=17", true),
            ("--key id=1", false),
            ("--key id=1 --key id=17", true),
            ("--key id=17 --reason attempts", false),
        ] {
            assert_eq!(matches(filters, &refused), expected, "{filters}");
        }
        let crashed = entry("crashes", "retrying");
        assert!(matches("--reason crashes --state retrying", &crashed));
        assert!(!matches("--reason attempts", &crashed));
    }

    #[test]
    fn an_entry_of_the_future_is_new() {
        let early = entry("refused", "quarantined").quarantined_at - time::Duration::minutes(5);
        assert_eq!(age(&entry("refused", "quarantined"), early), Duration::ZERO);
    }

    #[test]
    fn a_key_is_written_as_printed_or_without_quotes() {
        let printed = |json: &str, text: &str| is_key(text, &key(json));
        assert!(printed(r#"{"id":17}"#, "id=17"));
        assert!(!printed(r#"{"id":17}"#, "id=1"));
        assert!(!printed(r#"{"id":17}"#, "no=17"));
        assert!(printed(r#"{"id":17}"#, "17") && !printed(r#"{"id":17}"#, "1"));
        assert!(printed(r#"{"code":"A-1"}"#, "A-1") && printed(r#"{"code":"A-1"}"#, r#""A-1""#));
        assert!(!printed(r#"{"a":1,"b":2}"#, "1"));
        assert!(printed(r#"{"a":1,"b":2}"#, "a=1,b=2"));
        assert!(!printed(r#"{"a":1,"b":2}"#, "a=1"));
        assert!(printed(r#"{"code":"A-1"}"#, "code=A-1"));
        assert!(printed(r#"{"code":"A-1"}"#, r#"code="A-1""#));
        assert!(printed(r#"{"code":"A,1"}"#, "code=A,1"));
        assert!(printed(r#"{"a":"1,b=2","b":"3"}"#, r#"a="1,b=2",b="3""#));
        assert!(!printed(r#"{"a":"1,b=2","b":"3"}"#, "a=1,b=2,b=3"), "it could be another key");
    }

    #[test]
    fn entries_are_selected_by_id_or_by_filter() {
        let id = "a".repeat(32);
        for line in [&id, "--all", "--reason refused", "--all --key id=1", "--newer-than 2h"] {
            let command = parsed(&format!("redrive p {line}")).unwrap();
            let Command::Redrive { poller, selection } = command else { panic!("{line}") };
            assert_eq!((poller.as_str(), selection.is_by_id()), ("p", line == id), "{line}");
        }
        for (line, expected) in [
            (String::new(), "KEY_ID"),
            (format!("{id} --all"), "cannot be used with"),
            (format!("{id} --reason refused"), "cannot be used with"),
            (format!("{id} --key id=1"), "cannot be used with"),
            (
                "--reason bad".to_owned(),
                "[possible values: refused, attempts, crashes, unreadable]",
            ),
            ("--state parked".to_owned(), "[possible values: retrying, quarantined]"),
            ("--key =17".to_owned(), "such as `id=17`"),
            ("--older-than 1week".to_owned(), "days such as `7d`"),
        ] {
            let error = parsed(&format!("redrive p {line}")).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
