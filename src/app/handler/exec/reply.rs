//! Output and exit code of a process, and their meaning. Pure.
//!
//! A line of standard output that is a JSON object with a list `batchItemFailures` reports failed events,
//! like the reply of an `http` target; several such lines add up. Other lines are ignored. A line may
//! contain the word, in any case, without being such an object, or may name an event that is not in the
//! batch. Then it is unknown which events were accepted, and the whole batch counts as failed.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde::{Deserialize, Deserializer};

use crate::event::ChangeEvent;
use crate::handler::HandlerError;
use crate::redaction::excerpt_tail;

/// Longest line that is read. More failures than fit can be split over several lines.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How much of the end of standard error is kept.
const TAIL_BYTES: usize = 2 << 10;
/// Longest part of it that is quoted in an error.
const TAIL_CHARS_MAX: usize = 400;
/// Marks a line that reports failures.
const WORD: &[u8] = b"batchItemFailures";
/// Why a line with the word is not a valid report.
const MISPLACED: &str = "does not have it as a top-level field spelled exactly so";

/// The input is invalid. <https://man.freebsd.org/cgi/man.cgi?query=sysexits>
const EX_DATAERR: i32 = 65;
/// Temporary failure; retry later.
const EX_TEMPFAIL: i32 = 75;
/// No permission.
const EX_NOPERM: i32 = 77;
/// Configuration error.
const EX_CONFIG: i32 = 78;
/// A shell found the program but could not run it.
/// <https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02>
const NOT_EXECUTABLE: i32 = 126;
/// A shell did not find the program.
const NOT_FOUND: i32 = 127;

/// The failures that a process reports, parsed as its output arrives.
#[derive(Debug)]
pub(super) struct Replies<'a> {
    events: &'a [ChangeEvent],
    /// Indexes by event id; built on the first failure.
    indexes: BTreeMap<&'a str, usize>,
    line: Vec<u8>,
    /// If the line is too long: the last bytes read of it.
    beyond: Option<Vec<u8>>,
    /// Whether the word occurs in the part of the line that is not kept.
    has_word_beyond: bool,
    count: usize,
    first: Option<usize>,
    /// Why it is unknown which events were accepted.
    unclear: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    /// `None` if the object has no such member; the member may be `null`.
    #[serde(rename = "batchItemFailures", default, deserialize_with = "member")]
    failures: Option<Failures>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(rename = "itemIdentifier")]
    id: Option<String>,
}

#[derive(Deserialize)]
struct Failures(Option<Vec<Failure>>);

fn member<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Failures>, D::Error> {
    Failures::deserialize(deserializer).map(Some)
}

/// Whether bytes contain the word, in any case.
fn has_word(bytes: &[u8]) -> bool {
    bytes.windows(WORD.len()).any(|window| window.eq_ignore_ascii_case(WORD))
}

/// Returns the last bytes, in which the word may begin and continue in the next piece.
fn end_of(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(WORD.len() - 1)..).unwrap_or_default()
}

impl<'a> Replies<'a> {
    pub(super) fn new(events: &'a [ChangeEvent]) -> Self {
        Self {
            events,
            indexes: BTreeMap::new(),
            line: Vec::new(),
            beyond: None,
            has_word_beyond: false,
            count: 0,
            first: None,
            unclear: None,
        }
    }

    /// Adds a piece of output.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                Some(_) | None => (part, false),
            };
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            let (kept, more) = text.split_at_checked(room).unwrap_or((text, &[]));
            self.line.extend_from_slice(kept);
            self.look_beyond(more);
            if ends {
                self.end_line();
            }
        }
    }

    /// Ends the last line, which may lack a line break.
    pub(super) fn finish(&mut self) {
        self.end_line();
    }

    /// Looks for the word in the part of a line that is too long to be kept, also across pieces.
    fn look_beyond(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let line = &self.line;
        let beyond = self.beyond.get_or_insert_with(|| end_of(line).to_vec());
        beyond.extend_from_slice(bytes);
        self.has_word_beyond |= has_word(beyond);
        *beyond = end_of(beyond).to_vec();
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let is_too_long = self.beyond.take().is_some();
        let has_word_beyond = std::mem::take(&mut self.has_word_beyond);
        if has_word_beyond || has_word(&line) {
            self.read(&line, is_too_long);
        }
    }

    fn read(&mut self, line: &[u8], is_too_long: bool) {
        if is_too_long {
            self.unclear = Some("is longer than 1 MiB: print several lines".to_owned());
            return;
        }
        match serde_json::from_slice::<Line>(line) {
            Ok(Line { failures: Some(Failures(failures)) }) => {
                failures.unwrap_or_default().iter().for_each(|failure| {
                    self.add(failure.id.as_deref().unwrap_or_default());
                });
            }
            Ok(Line { failures: None }) => self.unclear = Some(MISPLACED.to_owned()),
            Err(error) => self.unclear = Some(format!("cannot be read: {error}")),
        }
    }

    fn add(&mut self, id: &str) {
        if self.indexes.is_empty() {
            let indexed = self.events.iter().enumerate();
            self.indexes = indexed.map(|(index, event)| (event.id.as_str(), index)).collect();
        }
        self.count += 1;
        match self.indexes.get(id) {
            Some(index) => self.first = Some(self.first.unwrap_or(*index).min(*index)),
            None => self.unclear = Some("names an event that is not in the batch".to_owned()),
        }
    }

    #[cfg(test)]
    pub(super) fn bytes_kept(&self) -> usize {
        self.line.capacity()
    }

    /// Decides which events a process with exit code 0 accepted.
    fn judge(&self, program: &str) -> Result<(), HandlerError> {
        if let Some(unclear) = &self.unclear {
            let line = "but a line with `batchItemFailures`";
            let reason = format!("`{program}` exited with code 0, {line} {unclear}");
            return Err(HandlerError::Retryable(reason));
        }
        let Some(accepted) = self.first else { return Ok(()) };
        let (count, of) = (self.count, self.events.len());
        let reason =
            format!("`{program}`: {count} of {of} events failed, the first at index {accepted}");
        Err(HandlerError::Partial { accepted, reason })
    }
}

/// The end of what a process wrote to standard error.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// Adds a piece of output.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let Self(kept) = self;
        kept.extend_from_slice(bytes);
        kept.drain(..kept.len().saturating_sub(TAIL_BYTES));
    }

    #[cfg(test)]
    pub(super) fn bytes_kept(&self) -> usize {
        self.0.capacity()
    }

    /// Returns `what`, followed by the end of standard error.
    pub(super) fn after(&self, what: &str) -> String {
        let output = excerpt_tail(&self.0, TAIL_CHARS_MAX);
        if output.is_empty() { what.to_owned() } else { format!("{what}: {output}") }
    }
}

/// Interprets the exit of a process.
pub(super) fn judge(
    program: &str,
    status: ExitStatus,
    replies: &Replies<'_>,
    tail: &Tail,
) -> Result<(), HandlerError> {
    let Some(code) = status.code() else {
        let signal = status.signal().unwrap_or_default();
        let what = format!("`{program}` was killed by signal {signal}");
        return Err(HandlerError::Retryable(tail.after(&what)));
    };
    let reason = || tail.after(&format!("`{program}` exited with code {code}"));
    match code {
        0 => replies.judge(program),
        EX_DATAERR => Err(HandlerError::Rejected(reason())),
        EX_TEMPFAIL => Err(HandlerError::Throttled { reason: reason(), retry_after: None }),
        EX_NOPERM | EX_CONFIG | NOT_EXECUTABLE | NOT_FOUND => {
            Err(HandlerError::Misconfigured(reason()))
        }
        _ => Err(HandlerError::Retryable(reason())),
    }
}
