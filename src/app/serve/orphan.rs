//! Detects that the host that started this process is gone.
//!
//! A host that is killed, or that stops while a tick takes longer than 10 s, leaves its handler running. The
//! orphan gets no more calls, but it keeps its port and maybe a lease. There is no signal for this, so two
//! conditions are polled: a new parent process, and an output without a reader. The second one also works with a
//! wrapper script in between, and for a host that was gone before the first check.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::parent_id;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::sleep;

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How the loss was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The parent has exited, and this process has a new parent.
    Parent,
    /// The output of this process has no reader.
    Reader,
}

impl Gone {
    /// Returns the reason for a log line.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Parent => "its process has exited",
            Self::Reader => "this process's output has no reader",
        }
    }
}

/// Completes when the host is gone; checks immediately and then every second.
pub(super) async fn host_lost() -> Gone {
    let parent = parent_id();
    loop {
        if is_unread(io::stdout().as_fd()) || is_unread(io::stderr().as_fd()) {
            return Gone::Reader;
        }
        if parent_id() != parent {
            return Gone::Parent;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Whether a pipe has lost its last reader; never true for a file.
fn is_unread(out: BorrowedFd<'_>) -> bool {
    // `poll` always reports errors, even if not requested.
    let mut polled = [PollFd::from_borrowed_fd(out, PollFlags::empty())];
    let polled_ok = poll(&mut polled, Some(&Timespec::default()));
    polled_ok.is_ok() && polled.iter().any(|out| out.revents().contains(PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_a_pipe_without_a_reader_is_unread() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_unread(writer.as_fd()));
        drop(reader);
        assert!(is_unread(writer.as_fd()));
        let null = File::options().write(true).open("/dev/null").unwrap();
        assert!(!is_unread(null.as_fd()));
        assert!(!is_unread(tempfile::tempfile().unwrap().as_fd()));
    }
}
