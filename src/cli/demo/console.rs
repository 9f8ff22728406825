//! Reads what handler processes write to their streams, as the Functions host does.
//!
//! Every line is a log event. Some are counted; with `--verbose`, all are shown.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::progress::Progress;
use highwater::state::LoggedStore;

/// Filter under which the processes log what is counted here.
pub(super) const FILTER: &str = "info,highwater::state=debug";

/// Totals of the log events of all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Reads of the state store.
    pub(super) state_reads: u64,
    /// Writes to the state store, refused ones included.
    pub(super) state_writes: u64,
    /// Rows committed by ticks that ended well.
    pub(super) tick_rows: u64,
    /// Time that those ticks took.
    pub(super) tick_ms: u64,
}

/// Collects the lines of all processes.
#[derive(Debug)]
pub(super) struct Console {
    shown: bool,
    progress: Progress,
    counts: Mutex<Counts>,
    /// The last line that each process wrote to its standard error.
    last_errors: Mutex<BTreeMap<&'static str, String>>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    event: String,
    #[serde(default)]
    rows: u64,
    #[serde(default)]
    duration_ms: u64,
}

impl Console {
    /// Returns a console that shows the lines if `shown`.
    pub(super) fn new(shown: bool, progress: Progress) -> Self {
        Self { shown, progress, counts: Mutex::default(), last_errors: Mutex::default() }
    }

    /// Prepares the streams of a command for `follow`.
    pub(super) fn prepare(command: &mut Command) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Reads the streams of a process until they end, which they do with the process.
    pub(super) fn follow(self: &Arc<Self>, name: &'static str, child: &mut Child) -> JoinSet<()> {
        // An error of the previous process is not the cause of this one's exit.
        locked(&self.last_errors).remove(name);
        let mut readers = JoinSet::new();
        if let Some(stream) = child.stdout.take() {
            let console = Arc::clone(self);
            readers.spawn(each_line(stream, move |line| console.take(name, &line)));
        }
        if let Some(stream) = child.stderr.take() {
            let console = Arc::clone(self);
            readers.spawn(each_line(stream, move |line| console.take_error(name, line)));
        }
        readers
    }

    fn take_error(&self, name: &'static str, line: String) {
        self.take(name, &line);
        // A panic ends with a note, which is not the error.
        if !line.starts_with("note: ") {
            locked(&self.last_errors).insert(name, line);
        }
    }

    /// Takes a line of a process, or one of a reply.
    pub(super) fn take(&self, name: &str, line: &str) {
        self.count(line);
        if self.shown {
            self.progress.say(&format!("{name} | {line}"));
        }
    }

    /// Returns the last line that a process wrote to its standard error.
    pub(super) fn last_error(&self, name: &str) -> Option<String> {
        locked(&self.last_errors).get(name).cloned()
    }

    fn count(&self, line: &str) {
        // Some lines are not JSON, such as a panic's message.
        let Ok(line) = serde_json::from_str::<Line>(line) else { return };
        let mut counts = locked(&self.counts);
        match line.event.as_str() {
            LoggedStore::READ => counts.state_reads += 1,
            LoggedStore::WRITE => counts.state_writes += 1,
            "tick_complete" => {
                counts.tick_rows += line.rows;
                counts.tick_ms += line.duration_ms;
            }
            _ => {}
        }
    }

    /// Returns what has been counted.
    pub(super) fn counts(&self) -> Counts {
        *locked(&self.counts)
    }
}

/// Reads a stream to its end, in any encoding: a process whose output is not read blocks.
pub(crate) async fn each_line(stream: impl AsyncRead + Unpin, take: impl Fn(String)) {
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    while stream.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        take(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned());
        line.clear();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_that_are_known_are_counted() {
        let console = Console::new(false, Progress::start(0));
        for line in [
            r#"{"level":"DEBUG","message":"Read","event":"state_read","key":"flights.json"}"#,
            r#"{"level":"DEBUG","message":"Wrote","event":"state_written","answer":"conflict"}"#,
            r#"{"level":"INFO","event":"tick_complete","rows":7,"batches":2,"duration_ms":31}"#,
            r#"{"level":"INFO","event":"batch_complete","rows":7}"#,
            "thread 'main' panicked",
            "",
        ] {
            console.count(line);
        }
        let counts = Counts { state_reads: 1, state_writes: 1, tick_rows: 7, tick_ms: 31 };
        assert_eq!(console.counts(), counts);
    }
}
