//! Writes log lines to standard output and standard error.
//!
//! A write to a pipe blocks while its reader is stalled. Log lines come from the threads that also answer the
//! host, so these threads must not write them. Each stream has a bounded buffer and one writer thread.
//!
//! # When a buffer is full
//!
//! - A line below WARN is dropped and counted.
//! - A WARN or ERROR line waits for room for at most [`WAIT_MAX`], and is then dropped and counted too. The
//!   stream now counts as stalled: no further line waits until a write has ended. A worker thread of the
//!   runtime hands its other tasks over before it waits.
//! - After a drop, nothing is buffered until the writer has emptied the buffer. So missing lines are
//!   contiguous. A `log_lines_dropped` line on standard error has their number.
//!
//! The non-blocking writer of `tracing-appender` does not fit: it either drops or blocks, for all levels alike,
//! and blocks without a limit.
//!
//! # At the end of the process
//!
//! [`flush_lines`] waits for the buffered lines, at most [`FLUSH_TIME_MAX`] per stream. A stalled reader does
//! not keep the process from exiting.
//!
//! Rows of the handler `stdout` and the output of commands do not use these buffers, except for messages while a
//! command holds a lease. Both sides use the lock of the standard library's stream, so lines are never interleaved.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use time::format_description::well_known::Rfc3339;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::LineForm;
use super::host_level::escape_error;
use crate::clock::{Clock as _, SystemClock};

/// Size of a stream's buffer. Another buffer of this size may be in the current write.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// How long a WARN or ERROR line waits for room.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How long an exiting process waits for the lines of one stream.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

static STDOUT: LineStream = LineStream::new("stdout", Some(&STDERR));
static STDERR: LineStream = LineStream::new("stderr", None);

/// Starts the writers, once per process.
pub(super) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Whole lines under one lock: the handler `stdout` writes rows to the same stream.
        STDOUT.start(|bytes| {
            let mut stream = io::stdout().lock();
            stream.write_all(bytes).and_then(|()| stream.flush())
        });
        STDERR.start(|bytes| io::stderr().lock().write_all(bytes));
    });
}

/// Writes to standard error and waits for its reader for at most a second. For messages while a lease is held: a
/// stalled reader must not block its renewal. Such messages stay in order. Call [`flush_lines`] before writing to
/// the stream in another way.
pub fn write_stderr(text: &str) {
    start();
    STDERR.push(text.as_bytes(), WAIT_MAX);
}

/// Waits until all log lines are written, for at most two seconds.
///
/// For an exiting process: lines that are still buffered afterwards are lost.
pub fn flush_lines() {
    STDOUT.flush(FLUSH_TIME_MAX);
    STDERR.flush(FLUSH_TIME_MAX);
}

/// Returns how many lines each stream has dropped since the process started.
pub(super) fn dropped() -> [(&'static str, u64); 2] {
    [&STDOUT, &STDERR].map(|stream| (stream.name, stream.lock().dropped_total))
}

/// Sends WARN and ERROR lines to standard error and all others to standard output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams(pub(super) LineForm);

impl<'a> MakeWriter<'a> for Streams {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter { stream: &STDOUT, level: Level::INFO, form: self.0 }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LineWriter {
        let level = *metadata.level();
        // `Level` orders by verbosity: ERROR is the least.
        let stream = if level <= Level::WARN { &STDERR } else { &STDOUT };
        LineWriter { stream, level, form: self.0 }
    }
}

/// Accepts one line, which the layer writes in one piece.
#[derive(Debug)]
pub(super) struct LineWriter {
    stream: &'static LineStream,
    level: Level,
    form: LineForm,
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let wait = if self.level <= Level::WARN { WAIT_MAX } else { Duration::ZERO };
        if self.level == Level::ERROR {
            self.stream.push(&escape_error(line, self.form), wait);
        } else {
            self.stream.push(line, wait);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A buffer between the logging threads and the writer thread.
#[derive(Debug)]
struct LineStream {
    name: &'static str,
    buffer: Mutex<Buffer>,
    /// Notified on every change that a thread may wait for: a new line, room, the end of a write.
    changed: Condvar,
    /// The stream that reports the dropped lines of this one; `None` for itself.
    reports_to: Option<&'static Self>,
}

#[derive(Debug)]
struct Buffer {
    /// Complete lines that the writer has not taken yet.
    lines: Vec<u8>,
    /// Number of lines dropped after these.
    dropped: u64,
    /// Number of lines dropped since the process started.
    dropped_total: u64,
    is_writing: bool,
    /// Whether a line has timed out waiting since the last write ended.
    is_stalled: bool,
}

impl Buffer {
    /// A line of any length fits an empty buffer.
    fn has_room_for(&self, line: &[u8]) -> bool {
        let fits = self.lines.is_empty() || self.lines.len() + line.len() <= BUFFER_BYTES_MAX;
        self.dropped == 0 && fits
    }
}

impl LineStream {
    const fn new(name: &'static str, reports_to: Option<&'static Self>) -> Self {
        let buffer = Buffer {
            lines: Vec::new(),
            dropped: 0,
            dropped_total: 0,
            is_writing: false,
            is_stalled: false,
        };
        Self { name, buffer: Mutex::new(buffer), changed: Condvar::new(), reports_to }
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Buffers a line, or drops it if there is no room within `wait`.
    fn push(&self, line: &[u8], wait: Duration) {
        let mut buffer = self.lock();
        let waits = |buffer: &Buffer| !buffer.has_room_for(line) && !buffer.is_stalled;
        if !wait.is_zero() && waits(&buffer) {
            buffer = off_worker(|| {
                let waited = self.changed.wait_timeout_while(buffer, wait, |buffer| waits(buffer));
                waited.unwrap_or_else(PoisonError::into_inner).0
            });
            buffer.is_stalled |= waits(&buffer);
        }
        if buffer.has_room_for(line) {
            buffer.lines.extend_from_slice(line);
            drop(buffer);
            self.changed.notify_all();
        } else {
            buffer.dropped += 1;
            buffer.dropped_total += 1;
        }
    }

    fn start(&'static self, write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) {
        let thread = thread::Builder::new().name(format!("log-{}", self.name));
        let spawned = thread.spawn(|| self.write_all(write));
        spawned.expect("the system can start a thread");
    }

    /// Writes buffered lines until the process exits.
    fn write_all(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
        loop {
            let bytes = self.take();
            // If the reader is gone, there is nowhere to report it.
            write(&bytes).unwrap_or_default();
            let mut buffer = self.lock();
            buffer.is_writing = false;
            buffer.is_stalled = false;
            drop(buffer);
            self.changed.notify_all();
        }
    }

    /// Waits for lines and takes all of them. Adds a report if lines were dropped after them.
    fn take(&self) -> Vec<u8> {
        let buffer = self.lock();
        let waited = self.changed.wait_while(buffer, |buffer| buffer.lines.is_empty());
        let mut buffer = waited.unwrap_or_else(PoisonError::into_inner);
        let mut lines = std::mem::take(&mut buffer.lines);
        let dropped = std::mem::take(&mut buffer.dropped);
        buffer.is_writing = true;
        drop(buffer);
        // Wake lines that wait for room.
        self.changed.notify_all();
        match self.reports_to.filter(|_| dropped > 0) {
            Some(other) => other.push(&self.report(dropped), Duration::ZERO),
            None if dropped > 0 => lines.extend_from_slice(&self.report(dropped)),
            None => {}
        }
        lines
    }

    /// Returns the line that reports dropped lines.
    fn report(&self, dropped: u64) -> Vec<u8> {
        let name = self.name;
        let report = Report {
            timestamp: SystemClock.now().format(&Rfc3339).unwrap_or_default(),
            level: Level::WARN.as_str(),
            message: format!("Dropped {dropped} log lines: the reader of {name} fell behind"),
            event: "log_lines_dropped",
            stream: name,
            lines: dropped,
        };
        let mut line = serde_json::to_vec(&report).expect("a report has only string keys");
        line.push(b'\n');
        line
    }

    /// Waits until all lines are written, for at most `time`.
    fn flush(&self, time: Duration) {
        let is_busy = |buffer: &mut Buffer| !buffer.lines.is_empty() || buffer.is_writing;
        drop(self.changed.wait_timeout_while(self.lock(), time, is_busy));
    }
}

/// The report of dropped lines, in the format of other lines.
#[derive(Serialize)]
struct Report {
    timestamp: String,
    level: &'static str,
    message: String,
    event: &'static str,
    stream: &'static str,
    lines: u64,
}

/// Waits on this thread; a worker of the runtime hands its other tasks to another thread first.
fn off_worker<T>(wait: impl FnOnce() -> T) -> T {
    let is_worker = Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_worker { block_in_place(wait) } else { wait() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Longer than any test runs.
    const LONG: Duration = Duration::from_secs(600);

    /// A stream whose writes block until the test lets them finish.
    struct Stalled {
        stream: &'static LineStream,
        written: Receiver<String>,
        resume: Sender<()>,
    }

    impl Stalled {
        /// Returns a stream with a first line in a blocked write.
        fn new() -> Self {
            let stream: &'static LineStream = Box::leak(Box::new(LineStream::new("test", None)));
            let ((write, written), (resume, resumed)) = (channel(), channel());
            stream.start(move |bytes: &[u8]| {
                write.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap_or_default();
                resumed.recv().map_err(io::Error::other)
            });
            let stalled = Self { stream, written, resume };
            stalled.push("first\n");
            assert_eq!(stalled.written(), "first\n");
            stalled
        }

        /// Returns a stream with a blocked write and a full buffer.
        fn full() -> Self {
            let stalled = Self::new();
            let long = format!("{}\n", "x".repeat(BUFFER_BYTES_MAX));
            stalled.push(&long);
            stalled
        }

        fn push(&self, line: &str) {
            self.stream.push(line.as_bytes(), Duration::ZERO);
        }

        fn written(&self) -> String {
            self.written.recv_timeout(LONG).unwrap()
        }

        fn resume(&self) {
            self.resume.send(()).unwrap();
        }

        fn dropped_total(&self) -> u64 {
            self.stream.lock().dropped_total
        }
    }

    fn report(of: &str) -> serde_json::Value {
        serde_json::from_str(of.lines().last().unwrap()).unwrap()
    }

    #[test]
    fn lines_without_room_are_dropped_and_reported_in_their_place() {
        let stalled = Stalled::full();
        stalled.push("dropped\n");
        stalled.push("dropped too\n");
        assert_eq!(stalled.dropped_total(), 2);
        stalled.resume();
        let written = stalled.written();
        assert!(written.starts_with("xxx") && !written.contains("dropped too"));
        let report = report(&written);
        assert_eq!(
            (&report["event"], &report["lines"], &report["stream"]),
            (&"log_lines_dropped".into(), &2.into(), &"test".into())
        );
        // Later lines are written again, and the drop is reported once.
        stalled.push("after\n");
        stalled.resume();
        assert_eq!(stalled.written(), "after\n");
        assert_eq!(stalled.dropped_total(), 2);
    }

    #[test]
    fn one_stream_may_report_the_dropped_lines_of_another() {
        let other: &'static LineStream = Box::leak(Box::new(LineStream::new("other", None)));
        let stream = LineStream::new("test", Some(other));
        stream.push(b"kept\n", Duration::ZERO);
        stream.push("x".repeat(BUFFER_BYTES_MAX).as_bytes(), Duration::ZERO);
        assert_eq!(stream.take(), b"kept\n");
        let report = report(&String::from_utf8(other.take()).unwrap());
        assert_eq!((&report["lines"], &report["stream"]), (&1.into(), &"test".into()));
    }

    #[test]
    fn after_a_drop_no_shorter_line_overtakes_the_report() {
        let stalled = Stalled::new();
        stalled.push("short\n");
        let long = format!("{}\n", "x".repeat(BUFFER_BYTES_MAX));
        stalled.push(&long);
        stalled.push("short, and it would fit\n");
        stalled.resume();
        let written = stalled.written();
        assert_eq!(written.lines().count(), 2, "{written}");
        assert_eq!(report(&written)["lines"], 2);
    }

    #[test]
    fn an_urgent_line_waits_until_there_is_room() {
        let stalled = Stalled::full();
        let stream = stalled.stream;
        let urgent = thread::spawn(move || stream.push(b"urgent\n", LONG));
        stalled.resume();
        assert!(stalled.written().starts_with("xxx"));
        urgent.join().unwrap();
        stalled.resume();
        assert_eq!(stalled.written(), "urgent\n");
        assert_eq!(stalled.dropped_total(), 0);
    }

    #[test]
    fn on_a_stalled_stream_no_line_waits_until_a_write_has_ended() {
        let stalled = Stalled::full();
        stalled.stream.push(b"times out\n", Duration::from_millis(1));
        // The test would time out if this line waited.
        stalled.stream.push(b"does not wait\n", LONG);
        assert_eq!(stalled.dropped_total(), 2);
        stalled.resume();
        assert_eq!(report(&stalled.written())["lines"], 2);
        stalled.resume();
        stalled.stream.flush(LONG);
        assert!(!stalled.stream.lock().is_stalled);
    }

    #[test]
    fn a_flush_waits_for_the_last_write_and_not_for_a_stalled_one() {
        let stalled = Stalled::new();
        stalled.stream.flush(Duration::from_millis(1));
        let stream = stalled.stream;
        let flush = thread::spawn(move || stream.flush(LONG));
        stalled.resume();
        flush.join().unwrap();
        assert!(!stalled.stream.lock().is_writing);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_line_that_waits_leaves_the_worker_to_other_tasks() {
        let stalled = Stalled::full();
        let stream = stalled.stream;
        let (starts, started) = tokio::sync::oneshot::channel();
        let urgent = tokio::spawn(async move {
            starts.send(()).unwrap();
            stream.push(b"urgent\n", LONG);
        });
        started.await.unwrap();
        // The only worker is occupied by the waiting task above.
        tokio::spawn(async {}).await.unwrap();
        stalled.resume();
        assert!(stalled.written().starts_with("xxx"));
        urgent.await.unwrap();
    }
}
