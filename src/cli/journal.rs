//! `highwater journal`: shows, exports and compacts a poller's journal.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::sleep;

use super::confirm::confirm;
use super::output::{
    Exit, Failed, OutputOption, Record, print_bytes, print_message, print_text, time_text,
};
use super::pause::WhoOption;
use super::poller;
use highwater::admin::CompactResult;
use highwater::clock::{Clock as _, SystemClock};
use highwater::config::{Vars, parse_duration};
use highwater::journal::{Entry, EventKind, Filter, History, JournalMode, Line, Verdict};
use highwater::poller::{Operator, Poller};
use highwater::serve;
use highwater::state::FencingToken;

/// Interval at which `tail --follow` looks for new entries.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// List entries, oldest first.
    Show {
        #[command(flatten)]
        selection: Selection,
        #[command(flatten)]
        form: OutputOption,
    },
    /// List the last entries.
    Tail {
        #[command(flatten)]
        selection: Selection,
        /// Number of entries.
        #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
        lines: usize,
        /// Print new entries as they are appended, until stopped.
        #[arg(long, short = 'f')]
        follow: bool,
        #[command(flatten)]
        form: OutputOption,
    },
    /// Print the stored lines; without filters, all of them.
    Export {
        #[command(flatten)]
        selection: Selection,
    },
    /// Start a new history with the current state document, and drop the old one.
    Compact(CompactOptions),
}

/// Selects entries.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Name of the poller.
    poller: String,
    /// Only entries since this time: `2026-04-07T01:23:45Z`, or how long ago, such as `2h`.
    #[arg(long, value_name = "TIME", value_parser = time_or_ago)]
    since: Option<OffsetDateTime>,
    /// Only entries before this time.
    #[arg(long, value_name = "TIME", value_parser = time_or_ago)]
    until: Option<OffsetDateTime>,
    /// Event names, such as `batch_complete`, separated by commas.
    #[arg(long = "event", value_name = "NAME", value_delimiter = ',', value_parser = event)]
    events: Vec<EventKind>,
    /// Id of the batch.
    #[arg(long, value_name = "ID")]
    batch_id: Option<String>,
    /// Fencing token of the grant.
    #[arg(long, value_name = "NUMBER")]
    token: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct CompactOptions {
    /// Name of the poller.
    poller: String,
    /// The reason, which is recorded in the history.
    #[arg(long, value_name = "TEXT", default_value = "compacted")]
    reason: String,
    #[command(flatten)]
    who: WhoOption,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    form: OutputOption,
}

impl Selection {
    fn filter(&self) -> Filter {
        Filter {
            since: self.since,
            until: self.until,
            events: self.events.clone(),
            batch_id: self.batch_id.clone(),
            token: self.token.map(FencingToken),
        }
    }

    async fn read(&self, poller: &Poller) -> Result<History, Failed> {
        let from = self.since.map(|since| since.to_offset(time::UtcOffset::UTC).date());
        Ok(poller.admin().history(from).await?)
    }
}

/// What is printed for each entry.
#[derive(Serialize)]
#[serde(transparent)]
struct Shown<'a>(&'a Entry);

impl Record for Shown<'_> {
    const COLUMNS: &'static [&'static str] =
        &["at", "seq", "token", "event", "step", "batch id", "rows", "outcome", "who"];

    fn cells(&self) -> Vec<String> {
        let Entry { at, seq, event, fencing_token, details, owner_id, .. } = self.0;
        let texts = [&details.error, &details.reason, &details.outcome];
        vec![
            time_text(*at),
            seq.to_string(),
            fencing_token.to_string(),
            event.as_str().to_owned(),
            details.step.clone().unwrap_or_default(),
            details.batch_id.as_ref().map(|id| id.as_str().to_owned()).unwrap_or_default(),
            details.rows.map(|rows| rows.to_string()).unwrap_or_default(),
            texts.into_iter().flatten().next().cloned().unwrap_or_default(),
            details.by.clone().or_else(|| owner_id.clone()).unwrap_or_default(),
        ]
    }
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    match options {
        Options::Show { selection, form } => {
            let poller = poller(vars, &selection.poller)?;
            let history = selection.read(&poller).await?;
            print(&history.select(&selection.filter()), *form);
            warn_if_off(&poller, &history);
            list_unreadable(&history);
            Ok(Exit::Done)
        }
        Options::Tail { selection, lines, follow, form } => {
            let poller = poller(vars, &selection.poller)?;
            let history = selection.read(&poller).await?;
            let selected = history.select(&selection.filter());
            print(selected.get(selected.len().saturating_sub(*lines)..).unwrap_or_default(), *form);
            warn_if_off(&poller, &history);
            list_unreadable(&history);
            if *follow {
                follow_entries(vars, &poller, selection, &history, *form).await?;
            }
            Ok(Exit::Done)
        }
        Options::Export { selection } => {
            let history = selection.read(&*poller(vars, &selection.poller)?).await?;
            for line in history.select(&selection.filter()) {
                print_bytes(&[line.bytes.as_slice(), b"\n"].concat());
            }
            Ok(Exit::Done)
        }
        Options::Compact(options) => Box::pin(compact(vars, options)).await,
    }
}

fn print(lines: &[&Line], form: OutputOption) {
    let entries = lines.iter().filter_map(|line| line.entry.as_ref().ok());
    print_text(&form.output.list(&entries.map(Shown).collect::<Vec<_>>()));
}

/// Most unreadable lines that are listed.
const LISTED_MAX: usize = 5;

/// Explains an empty journal, if it is switched off.
fn warn_if_off(poller: &Poller, history: &History) {
    if !poller.keeps_journal() && history.select(&Filter::default()).is_empty() {
        let name = poller.name();
        let setting = format!("HIGHWATER__POLLERS__{}__JOURNAL", name.to_ascii_uppercase());
        print_message(&format!(
            "{name}: no journal is kept: set `{setting}` to `commits` or `full`"
        ));
    }
}

fn list_unreadable(history: &History) {
    let findings: Vec<_> = history.unreadable().collect();
    for finding in findings.iter().take(LISTED_MAX) {
        print_message(&finding.to_string());
    }
    if findings.len() > LISTED_MAX {
        print_message(&format!("and {} more unreadable lines", findings.len() - LISTED_MAX));
    }
}

/// Prints new entries until the process is asked to stop.
async fn follow_entries(
    vars: &dyn Vars,
    poller: &Poller,
    selection: &Selection,
    history: &History,
    form: OutputOption,
) -> Result<(), Failed> {
    let (stop, _) = serve::stop_by_signal(vars);
    let key = |line: &Line| (line.part.clone(), line.number);
    let mut seen: BTreeMap<String, usize> = history.lines.iter().map(key).collect();
    let mut from = history.parts.last().map(|(part, _)| part.day);
    while !stop.is_set() {
        sleep(FOLLOW_INTERVAL).await;
        let history = poller.admin().history(from).await?;
        let filter = selection.filter();
        let is_new = |line: &&&Line| line.number > seen.get(&line.part).copied().unwrap_or(0);
        let selected = history.select(&filter);
        let new: Vec<&Line> = selected.iter().filter(is_new).copied().collect();
        if !new.is_empty() {
            print(&new, form);
        }
        seen.extend(history.lines.iter().map(key));
        from = history.parts.last().map(|(part, _)| part.day).or(from);
    }
    Ok(())
}

/// What `compact` prints.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// Number of the first entry of the new history.
    seq: u64,
    dropped: Vec<String>,
    kept: Vec<String>,
}

async fn compact(vars: &dyn Vars, options: &CompactOptions) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let poller = poller(vars, name)?;
    if poller.journal_mode() == JournalMode::Off {
        let text = "its `JOURNAL` is `off`, so there is no history";
        return Err(Failed::new(Exit::Usage, format!("{name}: {text}")));
    }
    let examined = poller.admin().examine().await?;
    // A removed history has nothing to drop.
    let is_removed = matches!(examined.verdict, Verdict::Removed { .. });
    if let Some(text) = super::state::disagreement(name, &examined).filter(|_| !is_removed) {
        let text =
            format!("{name}: {text}; nothing was dropped, because the history may explain why");
        return Err(Failed::new(Exit::Failed, text));
    }
    let plan = format!(
        "{name}: a new history starts with the current state document; the old history is dropped"
    );
    if !confirm(&plan, name, options.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.who.name(vars);
    let operator = Operator { by: &by, reason: &options.reason };
    let (seq, dropped, kept) = match poller.admin().compact(operator).await? {
        CompactResult::Compacted { seq, dropped, kept } => (seq, dropped, kept),
        CompactResult::NoDocument => {
            let text = format!("{name}: there is no state document to start from");
            return Err(Failed::new(Exit::Failed, text));
        }
        CompactResult::NotAppended => {
            let text = format!("{name}: the document could not be appended; nothing was dropped");
            return Err(Failed::new(Exit::Unavailable, text));
        }
    };
    let names = |parts: Vec<_>| parts.iter().map(ToString::to_string).collect();
    let report = Report { poller: name, seq, dropped: names(dropped), kept: names(kept) };
    print_text(&options.form.output.one(&report, || {
        let kept = report.kept.iter().map(|part| {
            format!("\n{name}: `{part}` was appended to meanwhile and stays; retry later")
        });
        let dropped = report.dropped.len();
        format!(
            "{name}: the history starts with entry {seq}; {dropped} earlier parts were dropped{}",
            kept.collect::<String>()
        )
    }));
    Ok(Exit::Done)
}

fn event(text: &str) -> Result<EventKind, String> {
    let named = serde_json::from_value(text.into()).unwrap_or(EventKind::Unknown);
    if named.as_str() == text {
        return Ok(named);
    }
    Err("expected the name of an event, such as `batch_complete` or `lease_acquired`".to_owned())
}

pub(super) fn time_or_ago(text: &str) -> Result<OffsetDateTime, String> {
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(at);
    }
    let expected = "expected a time such as `2026-04-07T01:23:45Z`, or how long ago, such as `2h`";
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let ago = match days {
        Some(days) => DAY * days,
        None => parse_duration(text).map_err(|_other| expected.to_owned())?,
    };
    SystemClock
        .now()
        .checked_sub(time::Duration::try_from(ago).unwrap_or_default())
        .ok_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_events_are_accepted() {
        assert_eq!(event("batch_complete"), Ok(EventKind::BatchComplete));
        assert_eq!(event("unknown"), Ok(EventKind::Unknown));
        for text in ["", "BatchComplete", "batch-complete", "7"] {
            assert!(event(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_absolute_or_relative() {
        let at = time_or_ago("2026-04-07T03:23:45+02:00").unwrap();
        assert_eq!(at, time::macros::datetime!(2026-04-07 01:23:45 UTC));
        let ago = SystemClock.now() - time_or_ago("2h").unwrap();
        assert!((ago - time::Duration::hours(2)).abs() < time::Duration::minutes(1), "{ago}");
        let ago = SystemClock.now() - time_or_ago("30d").unwrap();
        assert!((ago - time::Duration::days(30)).abs() < time::Duration::minutes(1), "{ago}");
        for text in ["yesterday", "d", "-1d"] {
            assert!(time_or_ago(text).is_err(), "{text}");
        }
    }
}
