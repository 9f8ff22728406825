//! Output and exit code of a process, and their meaning. Pure.
//!
//! A line of standard output that is a JSON object with a list `batchItemFailures` reports failed events,
//! like the reply of an `http` target; several such lines add up. A JSON object `{"batchItemAccepted":"<event id>"}`
//! reports an event as permanently accepted, as soon as the line arrives and whatever the exit code. Other lines are
//! ignored. A line may contain one of the two words, in any case, without being such an object, or may name an event
//! that is not in the batch. Then it is unknown which other events were accepted, and they count as failed.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde::{Deserialize, Deserializer};

use crate::event::ChangeEvent;
use crate::handler::prefix::AcceptedPrefix;
use crate::handler::{HandlerError, Progress};
use crate::redaction::excerpt_tail;

/// Longest line that is read. More failures than fit can be split over several lines.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How much of the end of standard error is kept.
const TAIL_BYTES: usize = 2 << 10;
/// Longest part of it that is quoted in an error.
const TAIL_CHARS_MAX: usize = 400;
/// Marks a line that reports failures.
const FAILURES: &str = "batchItemFailures";
/// Marks a line that reports an accepted event.
const ACCEPTED: &str = "batchItemAccepted";
/// All words that mark a line.
const WORDS: [&str; 2] = [FAILURES, ACCEPTED];
/// With what each of them starts.
const WORDS_START: &[u8] = b"batchItem";
/// Length of the longest of them.
const WORD_BYTES_MAX: usize = 17;
/// Why a line with one of the words is not a valid report.
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

/// The failed and the accepted events that a process reports, parsed as its output arrives.
#[derive(Debug)]
pub(super) struct Replies<'a> {
    events: &'a [ChangeEvent],
    accepted: AcceptedPrefix<'a>,
    /// Indexes by event id; built on the first report.
    indexes: BTreeMap<&'a str, usize>,
    line: Vec<u8>,
    /// If the line is too long: the last bytes read of it.
    beyond: Option<Vec<u8>>,
    /// The word that occurs in the part of the line that is not kept.
    word_beyond: Option<&'static str>,
    /// How many events are reported as failed.
    count: usize,
    /// Index of the first of them.
    first: Option<usize>,
    /// Why it is unknown which events were accepted.
    invalid: Option<InvalidLine>,
}

/// A line that cannot be interpreted.
#[derive(Debug)]
struct InvalidLine {
    word: &'static str,
    why: String,
}

#[derive(Deserialize)]
struct Line {
    /// `None` if the object has no such member; the member may be `null`.
    #[serde(rename = "batchItemFailures", default, deserialize_with = "member")]
    failures: Option<Failures>,
    #[serde(rename = "batchItemAccepted")]
    accepted: Option<String>,
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

/// Returns the first word that bytes contain, in any case.
fn word_in(bytes: &[u8]) -> Option<&'static str> {
    // A single pass: a process may write many megabytes.
    let starts = bytes.windows(WORDS_START.len()).enumerate();
    let mut starts = starts.filter(|(_, start)| start.eq_ignore_ascii_case(WORDS_START));
    starts.find_map(|(at, _)| {
        let is_here = |word: &&str| {
            let text = bytes.get(at..at + word.len()).unwrap_or_default();
            text.eq_ignore_ascii_case(word.as_bytes())
        };
        WORDS.into_iter().find(is_here)
    })
}

/// Returns the last bytes, in which a word may begin and continue in the next piece.
fn end_of(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(WORD_BYTES_MAX - 1)..).unwrap_or_default()
}

impl<'a> Replies<'a> {
    pub(super) fn new(events: &'a [ChangeEvent], progress: &'a Progress) -> Self {
        Self {
            events,
            accepted: AcceptedPrefix::new(events.len(), progress),
            indexes: BTreeMap::new(),
            line: Vec::new(),
            beyond: None,
            word_beyond: None,
            count: 0,
            first: None,
            invalid: None,
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

    /// Looks for a word in the part of a line that is too long to be kept, also across pieces.
    fn look_beyond(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let line = &self.line;
        let beyond = self.beyond.get_or_insert_with(|| end_of(line).to_vec());
        beyond.extend_from_slice(bytes);
        self.word_beyond = self.word_beyond.or_else(|| word_in(beyond));
        *beyond = end_of(beyond).to_vec();
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let is_too_long = self.beyond.take().is_some();
        let word_beyond = self.word_beyond.take();
        if let Some(word) = word_in(&line).or(word_beyond)
            && let Err(why) = self.read(&line, is_too_long)
        {
            self.invalid = Some(InvalidLine { word, why });
        }
    }

    fn read(&mut self, line: &[u8], is_too_long: bool) -> Result<(), String> {
        if is_too_long {
            return Err("is longer than 1 MiB: print several lines".to_owned());
        }
        let read = serde_json::from_slice::<Line>(line);
        let Line { failures, accepted } =
            read.map_err(|error| format!("cannot be read: {error}"))?;
        if failures.is_none() && accepted.is_none() {
            return Err(MISPLACED.to_owned());
        }
        if let Some(id) = accepted {
            let index = self.index_of(&id)?;
            self.accepted.accept([index]);
        }
        let failures = failures.and_then(|Failures(failures)| failures).unwrap_or_default();
        self.count += failures.len();
        for failure in failures {
            let index = self.index_of(failure.id.as_deref().unwrap_or_default())?;
            self.first = Some(self.first.unwrap_or(index).min(index));
        }
        Ok(())
    }

    fn index_of(&mut self, id: &str) -> Result<usize, String> {
        if self.indexes.is_empty() {
            let indexed = self.events.iter().enumerate();
            self.indexes = indexed.map(|(index, event)| (event.id.as_str(), index)).collect();
        }
        let index = self.indexes.get(id).copied();
        index.ok_or_else(|| "names an event that is not in the batch".to_owned())
    }

    #[cfg(test)]
    pub(super) fn bytes_kept(&self) -> usize {
        self.line.capacity()
    }

    /// Decides which events a process with exit code 0 accepted.
    fn judge(&self, program: &str) -> Result<(), HandlerError> {
        if let Some(InvalidLine { word, why }) = &self.invalid {
            let reason = format!("`{program}` exited with code 0, but a line with `{word}` {why}");
            return Err(HandlerError::Retryable(reason));
        }
        let Some(accepted) = self.first else { return Ok(()) };
        if accepted < self.accepted.len() {
            let reason = format!(
                "`{program}` reported the event at index {accepted} as failed after it had reported it as accepted"
            );
            return Err(HandlerError::Retryable(reason));
        }
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
