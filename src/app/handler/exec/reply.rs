//! What a process said, and what that means. Pure.
//!
//! A line of standard output that is a JSON object with a list `batchItemFailures` says which events
//! were not taken, as the reply of an `http` target does; several such lines add up. Every other line
//! is passed over. A line that has the word, in whatever case, and cannot be read as such, and one that
//! names an event which is not in the batch, leave open what was taken: then nothing was.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde::{Deserialize, Deserializer};

use crate::event::ChangeEvent;
use crate::handler::HandlerError;
use crate::redaction::excerpt_of_end;

/// Longest line that is read; more failures than it holds can be told in several.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How much of the end of standard error is kept.
const TAIL_BYTES: usize = 2 << 10;
/// Longest part of it that an error repeats.
const TAIL_CHARS_MAX: usize = 400;
/// What makes a line one of failures.
const WORD: &[u8] = b"batchItemFailures";
/// Why a line with the word says nothing about events.
const MISPLACED: &str =
    "has no such list itself: it is written otherwise, or stands further inside";

/// The data is wrong. <https://man.freebsd.org/cgi/man.cgi?query=sysexits>
const EX_DATAERR: i32 = 65;
/// Ask again later.
const EX_TEMPFAIL: i32 = 75;
/// No permission.
const EX_NOPERM: i32 = 77;
/// Something is set up wrongly.
const EX_CONFIG: i32 = 78;
/// A shell found the program but could not run it.
/// <https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02>
const NOT_EXECUTABLE: i32 = 126;
/// A shell did not find the program.
const NOT_FOUND: i32 = 127;

/// The failures that a process tells, read as they come.
#[derive(Debug)]
pub(super) struct Replies<'a> {
    events: &'a [ChangeEvent],
    /// Indexes by event id; made when the first failure is told.
    indexes: BTreeMap<&'a str, usize>,
    line: Vec<u8>,
    /// Where the line is too long: the end of what was read of it.
    beyond: Option<Vec<u8>>,
    /// Whether the word stands in what is not kept of the line.
    has_word_beyond: bool,
    count: usize,
    first: Option<usize>,
    /// Why it is not known what was taken.
    unclear: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    /// `None` where the object has no such member; it may be `null`.
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

/// Whether bytes hold the word, in whatever case.
fn has_word(bytes: &[u8]) -> bool {
    bytes.windows(WORD.len()).any(|window| window.eq_ignore_ascii_case(WORD))
}

/// Returns so much of the end of bytes that the word may begin in it.
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

    /// Takes a piece of output.
    pub(super) fn take(&mut self, bytes: &[u8]) {
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

    /// Takes the last line, which need not end with a line break.
    pub(super) fn finish(&mut self) {
        self.end_line();
    }

    /// Looks for the word in what is too much to be kept, in whatever pieces it comes.
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

    /// Decides what was taken by a process that says it took what it names no failure of.
    fn judge(&self, program: &str) -> Result<(), HandlerError> {
        if let Some(unclear) = &self.unclear {
            let line = "but a line with `batchItemFailures`";
            let reason = format!("`{program}` ended with code 0, {line} {unclear}");
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
    /// Takes a piece of output.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        let Self(kept) = self;
        kept.extend_from_slice(bytes);
        kept.drain(..kept.len().saturating_sub(TAIL_BYTES));
    }

    #[cfg(test)]
    pub(super) fn bytes_kept(&self) -> usize {
        self.0.capacity()
    }

    /// Returns `what`, and what the process said last.
    pub(super) fn after(&self, what: &str) -> String {
        let said = excerpt_of_end(&self.0, TAIL_CHARS_MAX);
        if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") }
    }
}

/// Decides what the end of a process means.
pub(super) fn judge(
    program: &str,
    status: ExitStatus,
    replies: &Replies<'_>,
    tail: &Tail,
) -> Result<(), HandlerError> {
    let Some(code) = status.code() else {
        let signal = status.signal().unwrap_or_default();
        let what = format!("`{program}` was ended by signal {signal}");
        return Err(HandlerError::Retryable(tail.after(&what)));
    };
    let reason = || tail.after(&format!("`{program}` ended with code {code}"));
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
