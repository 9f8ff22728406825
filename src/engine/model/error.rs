//! Error kinds for operators, and the text of a chain of causes.

use std::error::Error;
use std::fmt::{Display, Write as _};

use crate::printable::printable_char;
use crate::redaction::redacted;

/// What the operator has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing: the next tick retries, and nothing was lost.
    Transient,
    /// Fix a setting, a permission, or an object named in a setting.
    Configuration,
    /// The data or the state is broken: each tick fails until it is fixed.
    Data,
    /// Report a bug.
    Internal,
}

impl ErrorKind {
    /// Returns the kind's name, as used in attributes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Configuration => "configuration",
            Self::Data => "data",
            Self::Internal => "internal",
        }
    }
}

/// Returns an error with its causes, outermost first, as `a: b: c`.
///
/// A cause that its parent's text already ends with is left out. Foreign text passes here on its way to logs, replies
/// and state documents, so the secrets of this process are redacted.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            // Writing to a string cannot fail.
            write!(text, ": {part}").unwrap_or_default();
        }
        cause = error.source();
    }
    redacted(text)
}

/// Most characters of an error in a state document.
const STORED_CHARS_MAX: usize = 1_000;

/// Returns a text on one line without secrets, cut with an ellipsis if it is long.
///
/// Secrets are redacted before the text is cut, since a partial secret would not be found.
pub(crate) fn shortened(text: String) -> String {
    let is_printable = text.chars().all(|c| printable_char(c) == c);
    if is_printable && text.chars().nth(STORED_CHARS_MAX).is_none() {
        return text;
    }
    let line = text.chars().map(printable_char);
    let mut kept: String = line.clone().take(STORED_CHARS_MAX).collect();
    if line.count() > STORED_CHARS_MAX {
        kept.pop();
        kept.push('…');
    }
    kept
}

/// Returns the command that restarts a poller, for an error without another remedy.
pub fn reset_to_beginning(poller: &str, reason: &str) -> String {
    format!("`highwater reset {poller} to-beginning --reason \"{reason}\"`")
}

/// Returns the commands that replace a lost or damaged state document. `has_journal` says whether there is a journal
/// to rebuild it from; `None` if unknown.
pub(crate) fn restore_state(document: &str, has_journal: Option<bool>) -> String {
    if let Some(restart) = restart_range(document) {
        return restart;
    }
    let poller = document;
    let rebuild = format!("`highwater state rebuild {poller} --reason \"state was lost\"`");
    let rebuild = match has_journal {
        Some(true) => format!("rebuild it from the journal with {rebuild}, "),
        Some(false) => String::new(),
        None => format!("if a journal is kept, rebuild it with {rebuild}, "),
    };
    // Only the operator knows whether there is a copy, and where.
    format!(
        "{rebuild}restore a copy (a backup, an export, or the newest `{poller}.saved.*.json`) as described in \
         `highwater state import --help`, or deliver everything again with {}",
        reset_to_beginning(poller, "state was lost")
    )
}

/// Returns what to do about the state document of a range, which commands for pollers do not accept; `None` for the
/// document of a poller.
pub(crate) fn restart_range(document: &str) -> Option<String> {
    let (poller, _) = document.split_once('.')?;
    Some(format!(
        "it only has the progress of a replay or backfill of `{poller}`: start that range again"
    ))
}

/// Returns the commands that accept another source than the one of the checkpoint.
pub(crate) fn accept_source(poller: &str) -> String {
    format!(
        "accept the new source: `highwater reset {poller} keep --new-source --reason \"same rows\"` keeps the \
         position, `highwater reset {poller} to-beginning --new-source --reason \"other rows\"` delivers everything"
    )
}

/// Returns the commands that accept another source to which the position of the checkpoint does not apply.
pub fn restart_in_source(poller: &str) -> String {
    format!(
        "deliver everything with `highwater reset {poller} to-beginning --new-source --reason \"other rows\"`, or \
         skip to the end with `highwater reset {poller} to-now --new-source --skip-rows --reason \"other rows\"`"
    )
}

/// What the commands that resolve the loss of a position depend on.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Whether the poller reads by change tracking.
    pub is_tracked: bool,
    /// Whether the position cannot be kept: rows after it are gone, or in another order.
    pub is_final: bool,
    /// Whether the settings have another source than the checkpoint.
    pub is_new_source: bool,
}

/// Returns the commands that resolve the loss of a poller's position.
pub fn end_loss(poller: &str, loss: Loss) -> String {
    let source = if loss.is_new_source { " --new-source" } else { "" };
    // No read of a tracked table shows which rows were deleted meanwhile, so an operator must accept that.
    let skip = if loss.is_tracked { " --skip-rows" } else { "" };
    let again = format!(
        "deliver everything again with `highwater reset {poller} to-beginning{source}{skip} --reason \"position \
         lost\"`"
    );
    if loss.is_final {
        return format!(
            "{again}, or skip to the end with `highwater reset {poller} to-now{source} --skip-rows \
             --reason \"position lost\"`"
        );
    }
    format!(
        "{again}; only if the source has the same rows as before and none changed meanwhile, keep the position with \
         `highwater reset {poller} keep --new-source --reason \"no row is missing\"`"
    )
}

/// Returns the command that lets a poller deliver again after its target has accepted the higher grant `current`.
pub(crate) fn raise_above(document: &str, current: &impl Display) -> String {
    match document.split('.').collect::<Vec<_>>().as_slice() {
        [poller, purpose, id, ..] => format!(
            "cancel it with `highwater {purpose} {poller} --cancel {id}`, and start the range again"
        ),
        _ => format!(
            "if no other app delivers `{document}` to this target, run `highwater lease break {document} --above \
             {current} --reason \"state document is an older copy\"`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("load state document")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_chain_reads_from_the_outside_in() {
        let error = Outer(std::io::Error::other("connection reset"));
        assert_eq!(chain(&error), "load state document: connection reset");
    }
}
