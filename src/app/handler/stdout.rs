//! Handler: writes one line of JSON for each event to standard output.
//!
//! For trying out a poller and for piping into a local program. Success means only that the operating
//! system has accepted the bytes: if the reader crashes afterwards, they are lost. A process that runs
//! ticks refuses to start without a reader, and a batch fails as a whole if the reader goes away: what it had not
//! read is lost with the pipe. If the reader stops reading, the pipe fills up, and the handler makes no progress.

use std::fs::File;
use std::io::{self, Error, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::{fmt, fs};

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use super::{Delivery, Handler, HandlerError, Progress};

/// Lines are buffered up to this size before they are written.
const CHUNK_BYTES: usize = 64 << 10;

/// How to fix an output without a reader.
const REMEDY: &str = "start the command again with its output connected to a pipe, a file or a terminal, or set \
                      another `HANDLER__KIND`";

/// Writes events as newline-delimited JSON.
pub struct Stdout {
    out: Mutex<Out>,
    /// Whether this is the standard output of this process, which can be checked.
    is_own: bool,
}

struct Out {
    to: Box<dyn AsyncWrite + Send + Unpin>,
    /// Whether a write was abandoned, which may have left an incomplete line.
    mid_line: bool,
}

impl Stdout {
    /// Returns a handler that writes to the standard output of this process.
    pub fn new() -> Self {
        Self { is_own: true, ..Self::to(Box::new(tokio::io::stdout())) }
    }

    /// Returns a handler that writes to `to`.
    pub fn to(to: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        Self { out: Mutex::new(Out { to, mid_line: false }), is_own: false }
    }
}

impl Default for Stdout {
    fn default() -> Self {
        Self::new()
    }
}

/// Checks that `out` has a reader.
fn check(out: BorrowedFd<'_>) -> io::Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(out, PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec::default()))?;
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    if polled.iter().any(|out| out.revents().intersects(gone)) {
        return Err(Error::new(ErrorKind::BrokenPipe, "its reader is gone"));
    }
    if is_replaced(out)? {
        return Err(Error::new(ErrorKind::NotConnected, "it is not connected"));
    }
    Ok(())
}

/// Whether `out` is the null device that replaces a closed descriptor.
///
/// Before `main`, the runtime replaces each closed standard descriptor by the null device, opened for reading
/// and writing. A launcher that discards output does the same. `>/dev/null` opens it for writing only:
/// that is a deliberate choice, and is allowed.
fn is_replaced(out: BorrowedFd<'_>) -> io::Result<bool> {
    let mut file = File::from(out.try_clone_to_owned()?);
    let metadata = file.metadata()?;
    if !metadata.file_type().is_char_device() {
        return Ok(false);
    }
    let null = fs::metadata("/dev/null")?;
    // Reading the null device succeeds, unless it is open for writing only.
    Ok(metadata.rdev() == null.rdev() && file.read(&mut [0]).is_ok())
}

impl fmt::Debug for Stdout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stdout").finish_non_exhaustive()
    }
}

#[async_trait]
impl Handler for Stdout {
    fn check(&self) -> Result<(), HandlerError> {
        if self.is_own {
            check(io::stdout().as_fd()).map_err(|error| closed(&error))
        } else {
            Ok(())
        }
    }

    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        // The null device would accept the rows and lose them.
        self.check()?;
        let mut out = self.out.lock().await;
        let lines = delivery.events.iter().map(|event| event.json.as_str());
        out.write(lines, delivery.progress).await.map_err(|error| {
            if error.kind() == ErrorKind::BrokenPipe {
                return closed(&"its reader is gone");
            }
            HandlerError::Retryable(format!("write to standard output: {error}"))
        })
    }
}

/// Returns the error of an output without a reader. It does not count as an attempt at the rows.
fn closed(reason: &dyn fmt::Display) -> HandlerError {
    HandlerError::Misconfigured(format!("standard output is closed: {reason}; {REMEDY}"))
}

impl Out {
    async fn write(
        &mut self,
        lines: impl Iterator<Item = &str>,
        progress: &Progress,
    ) -> io::Result<()> {
        // End the incomplete line of a dropped delivery.
        let mut chunk = if self.mid_line { "\n".to_owned() } else { String::new() };
        self.mid_line = true;
        for line in lines {
            chunk.push_str(line);
            chunk.push('\n');
            if chunk.len() >= CHUNK_BYTES {
                self.to.write_all(chunk.as_bytes()).await?;
                chunk.clear();
                progress.report(1);
            }
        }
        self.to.write_all(chunk.as_bytes()).await?;
        self.to.flush().await?;
        self.mid_line = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;
    use crate::handler::testing::Sample;

    #[test]
    fn an_output_without_a_reader_is_refused() {
        let (reader, writer) = io::pipe().unwrap();
        check(writer.as_fd()).unwrap();
        drop(reader);
        assert_eq!(check(writer.as_fd()).unwrap_err().kind(), ErrorKind::BrokenPipe);
        let null = |options: &mut fs::OpenOptions| options.write(true).open("/dev/null").unwrap();
        check(null(&mut File::options()).as_fd()).unwrap();
        let error = check(null(File::options().read(true)).as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        check(tempfile::tempfile().unwrap().as_fd()).unwrap();
    }

    #[tokio::test]
    async fn each_event_is_one_line() {
        let (to, mut from) = duplex(1 << 20);
        let sample = Sample::new(3);
        let handler = Stdout::to(Box::new(to));
        handler.handle(sample.delivery()).await.unwrap();
        drop(handler);
        let mut text = String::new();
        from.read_to_string(&mut text).await.unwrap();
        let lines: Vec<&str> = sample.events.iter().map(|event| event.json.as_str()).collect();
        assert_eq!(text, lines.join("\n") + "\n");
    }

    #[tokio::test]
    async fn a_missing_reader_does_not_count_against_the_rows() {
        let (to, from) = duplex(16);
        drop(from);
        let error = Stdout::to(Box::new(to)).handle(Sample::new(1).delivery()).await.unwrap_err();
        assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("standard output is closed: its reader is gone; start"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delivery_after_a_dropped_one_starts_on_a_new_line() {
        let (to, mut from) = duplex(16);
        let (handler, sample) = (Stdout::to(Box::new(to)), Sample::new(1));
        let limit = std::time::Duration::from_secs(1);
        // Nothing is read, so the first delivery stalls after 16 bytes.
        tokio::time::timeout(limit, handler.handle(sample.delivery())).await.unwrap_err();
        let read = async {
            let mut text = String::new();
            from.read_to_string(&mut text).await.map(|_| text)
        };
        let write = async {
            handler.handle(sample.delivery()).await.unwrap();
            drop(handler);
        };
        let (text, ()) = tokio::join!(read, write);
        let (json, text) = (&sample.events[0].json, text.unwrap());
        let (half, rest) = text.split_once('\n').unwrap();
        assert!(half.len() == 16 && json.starts_with(half), "{half}");
        assert_eq!(rest, format!("{json}\n"));
    }
}
