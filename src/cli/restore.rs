//! `highwater state rebuild` and `state import`: replace the stored state document.
//!
//! Both print a plan and do nothing without confirmation. The plan is made from one version of the stored
//! document: if that was written since, nothing is done.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::confirm::{Confirmation, confirm};
use super::output::{Exit, Failed, OutputOption, print_message, print_text, time_text};
use super::state::words;
use super::{poller_to_restore, reset};
use highwater::admin::{PresentState, RestoreError, RestoredDocument};
use highwater::config::Vars;
use highwater::document::LoadError;
use highwater::error::{chain, reset_to_beginning};
use highwater::journal::{EventKind, Verdict};
use highwater::poller::{Operator, Poller};
use highwater::state::{StateDocument, decode};

/// Printed once the document is replaced.
pub(super) const SEEN_LATER: &str = "a running process sees this at its next tick if its last one failed, else at its next \
                                     write, or within `STATE_REFRESH`";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    pub(super) poller: String,
    #[command(flatten)]
    asked: Confirmation,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Debug, Args)]
pub(super) struct ImportOptions {
    /// The file, as printed by `state export`.
    file: PathBuf,
    #[command(flatten)]
    common: Options,
    /// Agree that skipped rows (between the checkpoint and the file's) are never delivered.
    #[arg(long)]
    skip_rows: bool,
}

/// What both commands print.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// Whether the document was replaced.
    changed: bool,
    generation: u64,
    fencing_token: u64,
    /// Key of the saved previous document.
    saved: Option<String>,
}

pub(super) async fn rebuild(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let poller = poller_to_restore(vars, name).await?;
    let examined = poller.admin().examine().await?;
    let refuse = |text: &str| {
        Err(Failed::new(Exit::Failed, format!("{name}: {}{text}", words(name, &examined))))
    };
    let Some(document) = examined.history() else { return refuse("; nothing can be rebuilt") };
    poller.reject_other_partition(document).map_err(failed)?;
    match &examined.verdict {
        Verdict::Agrees => {
            let (generation, fencing_token) =
                (document.generation.0, document.lease.fencing_token.0);
            let report =
                Report { poller: name, changed: false, generation, fencing_token, saved: None };
            print_text(&options.form.output.one(&report, || {
                format!("{name}: {}; there is nothing to do", words(name, &examined))
            }));
            return Ok(Exit::Done);
        }
        Verdict::Behind { .. } | Verdict::RestartedHistory { .. } => {
            return refuse("; a rebuilt document would be older than the stored one");
        }
        Verdict::DocumentIsOlder { .. }
        | Verdict::Differs(_)
        | Verdict::NotBegun { .. }
        | Verdict::Removed { .. }
        | Verdict::NoDocument
        | Verdict::NoHistory => {}
    }
    for finding in examined.findings() {
        print_message(&format!("{name}: {finding}"));
    }
    let from = format!(
        "{}\n  from the journal, as of entry {} of generation {}",
        words(name, &examined),
        document.journal_seq,
        document.generation
    );
    let present = &examined.present;
    let plan = plan(name, &from, document, present, present.usable());
    put(&poller, (EventKind::Rebuilt, options), vars, &plan, (document, present)).await
}

/// Reads a document of the poller `name` from a file.
pub(super) fn read(name: &str, file: &Path) -> Result<StateDocument, Failed> {
    let shown = file.display();
    let bytes = std::fs::read(file)
        .map_err(|error| Failed::new(Exit::Usage, format!("read `{shown}`: {error}")))?;
    // The file store writes a header line above each document, including saved ones.
    let bytes = without_header(&bytes);
    decode(name, bytes).map_err(|error| {
        let defect = error.defect();
        let text = format!(
            "file `{shown}` is not a state document of `{name}`: it {defect}; nothing was done, choose another copy"
        );
        Failed::new(Exit::Usage, text)
    })
}

/// Strips the header line of the file store from a document.
fn without_header(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let Some((header, rest)) = end.and_then(|at| bytes.split_at_checked(at)) else { return bytes };
    let is_header = serde_json::from_slice::<serde_json::Value>(header)
        .is_ok_and(|header| header.get("last_modified").is_some());
    if is_header { rest } else { bytes }
}

pub(super) async fn import(vars: &dyn Vars, import: &ImportOptions) -> Result<Exit, Failed> {
    let ImportOptions { file, common: options, skip_rows } = import;
    let name = options.poller.as_str();
    options.asked.reason()?;
    let poller = poller_to_restore(vars, name).await?;
    let document = read(name, file)?;
    poller.reject_other_partition(&document).map_err(failed)?;
    poller.reject_conflicting_siblings().await?;
    let shown = file.display();
    let present = poller.admin().present().await?;
    let what = match &present.document {
        Ok(Some(_)) => "a state document is stored".to_owned(),
        Ok(None) => "no state document is stored".to_owned(),
        Err(error) => chain(error),
    };
    let mut from = format!("{what}\n  from the file `{shown}`");
    let last = poller.admin().last_known(&present).await?;
    let plan = |from: &str| {
        let mut text = plan(name, from, &document, &present, last.as_ref());
        if last.is_none() && document.lost_position().is_none() {
            text.push_str(&unknown_loss(name));
        }
        text
    };
    let weighed = Box::pin(poller.admin().compare_with(&document, &present)).await;
    let weighed = weighed.map_err(|error| Failed::new(Exit::Usage, error.to_string()))?;
    if let Some(weight) = weighed.filter(|_| present.held_by.is_none()) {
        let [again, skipped] = reset::weight_lines(&weight, document.checkpoint.cursor.as_ref());
        from = format!("{from}\n{again}\n{skipped}");
        reset::refuse_skip(name, &plan(&from), &weight, *skip_rows)?;
    }
    put(&poller, (EventKind::Imported, options), vars, &plan(&from), (&document, &present)).await
}

/// Replaces the document, after confirmation.
async fn put(
    poller: &Poller,
    (event, options): (EventKind, &Options),
    vars: &dyn Vars,
    plan: &str,
    (document, present): (&StateDocument, &PresentState),
) -> Result<Exit, Failed> {
    let name = poller.name();
    if let Some(owner_id) = present.held_by.clone() {
        return Err(failed(RestoreError::Held { owner_id }));
    }
    if !confirm(plan, name, options.asked.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.asked.by(vars);
    let reason = options.asked.reason().unwrap_or_default();
    let restored =
        poller.admin().restore(document, present, (event, Operator { by: &by, reason })).await;
    let RestoredDocument { document, saved } = restored.map_err(failed)?;
    let report = Report {
        poller: name,
        changed: true,
        generation: document.generation.0,
        fencing_token: document.lease.fencing_token.0,
        saved: saved.map(|key| key.to_string()),
    };
    print_text(&options.form.output.one(&report, || {
        let saved = report.saved.as_ref().map(|key| format!("; previous state saved as `{key}`"));
        format!(
            "{name}: {} as generation {}{}\n  {SEEN_LATER}",
            event.as_str(),
            report.generation,
            saved.unwrap_or_default()
        )
    }));
    Ok(Exit::Done)
}

/// Returns the warning for a plan without a stored document or a journal that could record a loss.
fn unknown_loss(name: &str) -> String {
    format!(
        "\n  whether rows were lost after this copy was made is unknown: the state document is missing or damaged, and there \
         is no journal. If the logs since then contain `position_lost`, reset instead: run {}",
        reset_to_beginning(name, "position lost")
    )
}

/// Returns the plan and its consequences. `known` is the poller's last known document, if any.
fn plan(
    name: &str,
    from: &str,
    document: &StateDocument,
    present: &PresentState,
    known: Option<&StateDocument>,
) -> String {
    let position = |document: &StateDocument| {
        let cursor = document.checkpoint.cursor.as_ref();
        cursor.map_or_else(
            || "the beginning".to_owned(),
            |cursor| serde_json::to_string(cursor).unwrap_or_else(|error| error.to_string()),
        )
    };
    let mut lines = vec![
        format!("{name}: {from}"),
        format!("  ticks continue after {}", position(document)),
        format!(
            "  committed at {}",
            document.checkpoint.updated_at.map_or_else(|| "an unknown time".to_owned(), time_text,)
        ),
    ];
    match present.usable() {
        Some(now) => {
            lines.push(format!("  replaces a checkpoint at {}", position(now)));
            if now.source_fingerprint != document.source_fingerprint {
                let text = "  it is of another source: ticks reject it unless the settings name that source";
                lines.push(text.to_owned());
            }
        }
        None if present.bytes.is_some() => {
            lines.push("  a tick may be running; its writes will be discarded".to_owned());
        }
        None => {}
    }
    let known = known.filter(|known| known.source_fingerprint == document.source_fingerprint);
    let lost = document.lost_position().or_else(|| known?.lost_position());
    if let Some(reason) = lost {
        lines.push(format!("  ticks stay stopped until a reset, because rows are lost: {reason}"));
    }
    if let Some(paused) = &document.paused {
        lines.push(format!("  it is paused by {}: {}", paused.by, paused.reason));
    }
    let end = "  new generation: rows already delivered after that position are redelivered, as new batches; \
               the previous state is saved";
    lines.push(end.to_owned());
    lines.join("\n")
}

pub(super) fn failed(error: RestoreError) -> Failed {
    match error {
        RestoreError::Held { .. } | RestoreError::Moved => {
            Failed::new(Exit::Conflict, format!("{error}; nothing was done"))
        }
        RestoreError::OtherPart { .. } => {
            Failed::new(Exit::Usage, format!("{error}; nothing was done"))
        }
        RestoreError::Load(LoadError::Store(error)) => error.into(),
        RestoreError::Load(LoadError::Format(error)) => error.into(),
        RestoreError::Refused(error) => Failed::new(Exit::Failed, chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_is_reported_with_its_defect_and_without_the_command_that_was_run() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broken.json");
        let lease = r#"{"version":1,"poller_name":"p","source_fingerprint":"f","checkpoint":{},"lease":{}}"#;
        for (content, defect) in [
            ("{", "it is not JSON (1 bytes; "),
            ("null", "it is `null`, expected an object"),
            (lease, "it has no fencing token"),
        ] {
            std::fs::write(&file, content).unwrap();
            let failed = read("p", &file).unwrap_err();
            let shown = format!("file `{}`", file.display());
            for expected in [shown.as_str(), defect, "choose another copy"] {
                assert!(failed.text.contains(expected), "{}", failed.text);
            }
            assert!(!failed.text.contains("highwater "), "{}", failed.text);
        }
    }
}
