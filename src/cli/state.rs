//! `highwater state`: the state document, and what it is kept in.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::output::{Exit, Failed, OutputOption, say, say_bytes, say_rows, time_text};
use super::{poller, restore};
use highwater::admin::{HistoryCheck, Present};
use highwater::config::Vars;
use highwater::error::chain;
use highwater::event::counted;
use highwater::journal::{Difference, JournalMode, Verdict};
use highwater::state::StateDocument;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// Print where a poller stands.
    Show(PollerOptions),
    /// Print the state document as it is stored, also one that is damaged.
    Export {
        /// Name of the poller.
        poller: String,
    },
    /// Put a document from a file in the place of the one that is stored.
    Import(restore::ImportOptions),
    /// Make a document that was lost or damaged again from the journal.
    Rebuild(restore::Options),
    /// Compare the journal with the document, and name the first difference; ends with 1 if one has no
    /// harmless explanation.
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
            say_bytes(&present.bytes.ok_or_else(|| missing(name))?);
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
    let Present { document, held_by, .. } = poller(vars, name)?.admin().present().await?;
    let document = document?.ok_or_else(|| missing(name))?;
    say_rows(&options.form.output.one(&document, || text(&document, held_by.as_deref())));
    Ok(Exit::Done)
}

/// Returns what people want to know of a document.
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
    let line = |(name, value): (&str, String)| {
        let plain: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{name:<18} {plain}")
    };
    format!("{}\n{}", document.poller_name, lines.map(line).join("\n"))
}

/// What `verify` prints.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// How the journal and the document go together.
    verdict: &'static str,
    /// Whether nothing is wrong but what a crash or a failed append leaves.
    explained: bool,
    /// In words.
    text: String,
    difference: Option<DifferenceReport<'a>>,
    /// Number of the last write that the journal leads to.
    journal_seq: Option<u64>,
    /// The same of the document.
    document_seq: Option<u64>,
    /// What is wrong with the history itself.
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
        let text = "its `JOURNAL` is `off`: the document has writes that nothing tells of";
        return Err(Failed::new(Exit::Usage, format!("{name}: {text}")));
    }
    let examined = poller.admin().examine().await?;
    let difference = match &examined.verdict {
        Verdict::Differs(Difference { pointer, journal, document }) => {
            Some(DifferenceReport { pointer, journal, document })
        }
        Verdict::Agrees
        | Verdict::Behind { .. }
        | Verdict::BegunAnew { .. }
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
    say(&options.form.output.one(&report, || {
        let findings = report.findings.iter().map(|finding| format!("\n{name}: {finding}"));
        format!("{name}: {}{}", report.text, findings.collect::<String>())
    }));
    Ok(if report.explained { Exit::Done } else { Exit::Failed })
}

fn name_of(examined: &HistoryCheck) -> &'static str {
    match &examined.verdict {
        Verdict::Agrees => "agrees",
        Verdict::Behind { .. } => "behind",
        Verdict::BegunAnew { .. } => "begun_anew",
        Verdict::DocumentIsOlder { .. } => "document_is_older",
        Verdict::Differs(_) => "differs",
        Verdict::NotBegun { .. } => "not_begun",
        Verdict::Removed { .. } => "removed",
        Verdict::NoDocument if examined.present.document.is_err() => "damaged",
        Verdict::NoDocument => "no_document",
        Verdict::NoHistory => "no_history",
    }
}

/// Returns what the verdict says, and what to do.
pub(super) fn words(name: &str, examined: &HistoryCheck) -> String {
    let rebuild = format!("`highwater state rebuild {name} --reason \"state was lost\"`");
    match &examined.verdict {
        Verdict::Agrees => "the journal leads to the state document".to_owned(),
        Verdict::Behind { from, to } if from == to => format!(
            "the document has had write {from}, which no entry tells of: an append failed, or a crash \
             came before it"
        ),
        Verdict::Behind { from, to } => format!(
            "the document has had writes {from} to {to}, which no entries tell of: an append failed, or \
             a crash came before it"
        ),
        Verdict::BegunAnew { generation } => {
            format!(
                "the document was begun anew as generation {generation}, and nothing tells of it yet"
            )
        }
        Verdict::DocumentIsOlder { document, journal } => format!(
            "the document has had {document} writes and the journal tells of {journal}: an old copy \
             stands in its place; {rebuild} restores the newer one"
        ),
        Verdict::Differs(difference) => format!(
            "same history, other state: {difference}; somebody else wrote the document, or something \
             is broken"
        ),
        Verdict::NoDocument => match &examined.present.document {
            Err(error) => format!("{}; {rebuild} restores it", chain(error)),
            Ok(_) => {
                format!("no state document is stored; {rebuild} restores it")
            }
        },
        Verdict::NotBegun { writes: 0 } => {
            "the journal has no entry to begin with yet: nothing that it \
             tells of has happened"
                .to_owned()
        }
        Verdict::NotBegun { writes } => format!(
            "the journal has no entry to begin with yet, and the document has had writes 1 to {writes}: \
             an append failed, a crash came before it, or the journal was removed or is kept elsewhere"
        ),
        Verdict::Removed { writes } => format!(
            "the journal has no entry, though it has told of this document before, which has had writes 1 \
             to {writes}: it was removed, or is kept elsewhere now; put it back, or start it again with \
             `highwater journal compact {name} --reason \"journal was removed\"`"
        ),
        Verdict::NoHistory => "the journal has no entry to begin with".to_owned(),
    }
}

/// Returns what is wrong beyond what a crash or a failed append leaves.
pub(super) fn disagreement(name: &str, examined: &HistoryCheck) -> Option<String> {
    (!examined.verdict.is_explained()).then(|| words(name, examined))
}
