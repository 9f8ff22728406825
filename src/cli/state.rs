//! `highwater state`: the state document and its store.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::output::{Exit, Failed, OutputOption, print_bytes, print_rows, print_text, time_text};
use super::{poller, restore};
use highwater::admin::{HistoryCheck, PresentState};
use highwater::config::Vars;
use highwater::error::chain;
use highwater::event::counted;
use highwater::journal::{Difference, JournalMode, Verdict};
use highwater::printable::printable_line;
use highwater::state::StateDocument;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// Print a poller's position and status.
    Show(PollerOptions),
    /// Print the stored state document, even if it is damaged.
    Export {
        /// Name of the poller.
        poller: String,
    },
    /// Replace the stored document by one from a file.
    Import(restore::ImportOptions),
    /// Rebuild a lost or damaged document from the journal.
    Rebuild(restore::Options),
    /// Compare the journal with the document, and report the first difference; exits with 1 unless a crash or a
    /// failed append explains it.
    Verify(PollerOptions),
}

#[derive(Debug, Args)]
pub(super) struct PollerOptions {
    /// Name of the poller.
    poller: String,
    #[command(flatten)]
    form: OutputOption,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    match options {
        Options::Show(options) => show(vars, options).await,
        Options::Export { poller: name } => {
            let present = poller(vars, name)?.admin().present().await?;
            print_bytes(&present.bytes.ok_or_else(|| missing(name))?);
            Ok(Exit::Done)
        }
        Options::Import(options) => Box::pin(restore::import(vars, options)).await,
        Options::Rebuild(options) => Box::pin(restore::rebuild(vars, options)).await,
        Options::Verify(options) => verify(vars, options).await,
    }
}

fn missing(name: &str) -> Failed {
    Failed::new(Exit::Failed, format!("{name}: no state document is stored"))
}

async fn show(vars: &dyn Vars, options: &PollerOptions) -> Result<Exit, Failed> {
    let name = &options.poller;
    let PresentState { document, held_by, .. } = poller(vars, name)?.admin().present().await?;
    let document = document?.ok_or_else(|| missing(name))?;
    print_rows(&options.form.output.one(&document, || text(&document, held_by.as_deref())));
    Ok(Exit::Done)
}

/// Returns a human-readable summary of a document.
fn text(document: &StateDocument, held_by: Option<&str>) -> String {
    let StateDocument { checkpoint, lease, in_flight, paused, .. } = document;
    let none = || "none".to_owned();
    let cursor = checkpoint.cursor.as_ref().map_or_else(none, |cursor| {
        serde_json::to_string(cursor).unwrap_or_else(|error| error.to_string())
    });
    let batch = checkpoint.last_successful_batch_id.as_ref();
    let in_flight = in_flight.as_ref().map_or_else(none, |batch| {
        let error = batch.last_error.as_ref().map(|error| format!(": {error}"));
        format!(
            "{} ({}, {}, {}){}",
            batch.batch_id.as_str(),
            counted(batch.rows, "row"),
            counted(batch.attempt.into(), "failed attempt"),
            counted(batch.crashes.into(), "crash"),
            error.unwrap_or_default()
        )
    });
    let paused = paused.as_ref().map_or_else(none, |paused| {
        format!("since {} by {}: {}", time_text(paused.at), paused.by, paused.reason)
    });
    let lines = [
        ("checkpoint", cursor),
        ("committed at", checkpoint.updated_at.map_or_else(none, time_text)),
        ("by batch", batch.map_or_else(none, |id| id.as_str().to_owned())),
        ("generation, token", format!("{}, {}", document.generation, lease.fencing_token)),
        ("lease", held_by.map_or_else(|| "free".to_owned(), |owner| format!("held by {owner}"))),
        ("in flight", in_flight),
        ("paused", paused),
        ("journal entries", document.journal_seq.to_string()),
        ("fingerprint", document.source_fingerprint.to_string()),
    ];
    let line = |(name, value): (&str, String)| format!("{name:<18} {}", printable_line(&value));
    format!("{}\n{}", document.poller_name, lines.map(line).join("\n"))
}

/// What `verify` prints.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// Result of the comparison.
    verdict: &'static str,
    /// Whether a crash or a failed append explains all differences.
    explained: bool,
    /// The verdict as text.
    text: String,
    difference: Option<DifferenceReport<'a>>,
    /// Number of the last write in the journal.
    journal_seq: Option<u64>,
    /// Number of the document's last write.
    document_seq: Option<u64>,
    /// Defects of the history itself.
    findings: Vec<String>,
}

#[derive(Serialize)]
struct DifferenceReport<'a> {
    pointer: &'a str,
    journal: &'a serde_json::Value,
    document: &'a serde_json::Value,
}

async fn verify(vars: &dyn Vars, options: &PollerOptions) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let poller = poller(vars, name)?;
    if poller.journal_mode() == JournalMode::Off {
        let text = "its `JOURNAL` is `off`, so there is no journal to compare with";
        return Err(Failed::new(Exit::Usage, format!("{name}: {text}")));
    }
    let examined = poller.admin().examine().await?;
    let difference = match &examined.verdict {
        Verdict::Differs(Difference { pointer, journal, document }) => {
            Some(DifferenceReport { pointer, journal, document })
        }
        Verdict::Agrees
        | Verdict::Behind { .. }
        | Verdict::RestartedHistory { .. }
        | Verdict::DocumentIsOlder { .. }
        | Verdict::NotBegun { .. }
        | Verdict::Removed { .. }
        | Verdict::NoDocument
        | Verdict::NoHistory => None,
    };
    let report = Report {
        poller: name,
        verdict: name_of(&examined),
        explained: disagreement(name, &examined).is_none(),
        text: words(name, &examined),
        difference,
        journal_seq: examined.history().map(|document| document.journal_seq),
        document_seq: examined.present.usable().map(|document| document.journal_seq),
        findings: examined.findings().iter().map(ToString::to_string).collect(),
    };
    print_text(&options.form.output.one(&report, || {
        let findings = report.findings.iter().map(|finding| format!("\n{name}: {finding}"));
        format!("{name}: {}{}", report.text, findings.collect::<String>())
    }));
    Ok(if report.explained { Exit::Done } else { Exit::Failed })
}

fn name_of(examined: &HistoryCheck) -> &'static str {
    match &examined.verdict {
        Verdict::Agrees => "agrees",
        Verdict::Behind { .. } => "behind",
        Verdict::RestartedHistory { .. } => "begun_anew",
        Verdict::DocumentIsOlder { .. } => "document_is_older",
        Verdict::Differs(_) => "differs",
        Verdict::NotBegun { .. } => "not_begun",
        Verdict::Removed { .. } => "removed",
        Verdict::NoDocument if examined.present.document.is_err() => "damaged",
        Verdict::NoDocument => "no_document",
        Verdict::NoHistory => "no_history",
    }
}

/// Returns the verdict as text, and what to do.
pub(super) fn words(name: &str, examined: &HistoryCheck) -> String {
    let rebuild = format!("`highwater state rebuild {name} --reason \"state was lost\"`");
    match &examined.verdict {
        Verdict::Agrees => "the journal leads to the state document".to_owned(),
        Verdict::Behind { from, to } if from == to => format!(
            "the journal has no entry for write {from} of the document: an append failed, or a crash \
             came before it"
        ),
        Verdict::Behind { from, to } => format!(
            "the journal has no entries for writes {from} to {to} of the document: an append failed, or \
             a crash came before it"
        ),
        Verdict::RestartedHistory { generation } => {
            format!(
                "the document was recreated as generation {generation}, and no entry records that yet"
            )
        }
        Verdict::DocumentIsOlder { document, journal } => format!(
            "the document has {document} writes and the journal {journal}: the document is an old copy; \
             {rebuild} restores the newer one"
        ),
        Verdict::Differs(difference) => format!(
            "journal and document differ: {difference}; something else wrote the document, or it is \
             damaged"
        ),
        Verdict::NoDocument => match &examined.present.document {
            Err(error) => format!("{}; {rebuild} restores it", chain(error)),
            Ok(_) => {
                format!("no state document is stored; {rebuild} restores it")
            }
        },
        Verdict::NotBegun { writes: 0 } => {
            "the journal has no entry to start from yet: there was nothing \
             to record"
                .to_owned()
        }
        Verdict::NotBegun { writes } => format!(
            "the journal has no entry to start from, and the document has writes 1 to {writes}: an append \
             failed, a crash came before it, or the journal was removed or is stored elsewhere"
        ),
        Verdict::Removed { writes } => format!(
            "the journal has no entries, although it had some for this document, which has writes 1 to \
             {writes}: it was removed, or is stored elsewhere now; put it back, or start a new one with \
             `highwater journal compact {name} --reason \"journal was removed\"`"
        ),
        Verdict::NoHistory => "the journal has no entry to start from".to_owned(),
    }
}

/// Returns the verdict unless a crash or a failed append explains it.
pub(super) fn disagreement(name: &str, examined: &HistoryCheck) -> Option<String> {
    (!examined.verdict.is_explained()).then(|| words(name, examined))
}
